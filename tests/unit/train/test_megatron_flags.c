/* Every core flag of Megatron-LM's pretraining, and what becomes of it here: an option with
 * Megatron's default, one that is passed over with a reason, or one that is refused with a reason.
 * Source of names and defaults: arguments.py of Megatron-LM, of today's and of releases 2 and 3.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "train/train_options.h"

enum fate { REAL, PASSED, REFUSED };

#define NEEDED NULL /* no default here, nor in Megatron where None is refused later */
#define NONE "None"

static const struct flag {
    const char *name;
    enum fate fate;
    const char *value; /* REAL: the default as Python prints it; else a word to give, or NULL */
} flags[] = {
    /* model */
    {"num-layers", REAL, NEEDED},
    {"hidden-size", REAL, NEEDED},
    {"num-attention-heads", REAL, NEEDED},
    {"max-position-embeddings", REAL, NEEDED},
    {"seq-length", REAL, NEEDED},
    {"ffn-hidden-size", REAL, NONE},
    {"kv-channels", REAL, NONE},
    {"group-query-attention", REFUSED, NULL},
    {"num-query-groups", REFUSED, "4"},
    {"position-embedding-type", REAL, "learned_absolute"},
    {"rotary-base", REFUSED, "10000"},
    {"rotary-percent", REFUSED, "1.0"},
    {"make-vocab-size-divisible-by", REAL, "128"},
    {"normalization", REAL, "LayerNorm"},
    {"norm-epsilon", REAL, "1e-05"},
    {"layernorm-epsilon", REAL, "1e-05"},
    {"swiglu", REFUSED, NULL},
    {"squared-relu", REFUSED, NULL},
    {"disable-bias-linear", REFUSED, NULL},
    {"add-qkv-bias", REFUSED, NULL},
    {"qk-layernorm", REFUSED, NULL},
    {"untie-embeddings-and-output-weights", REAL, "False"},
    {"attention-dropout", REAL, "0.1"},
    {"hidden-dropout", REAL, "0.1"},
    {"attention-softmax-in-fp32", PASSED, NULL},
    {"attention-backend", PASSED, "auto"},
    {"use-flash-attn", PASSED, NULL},
    {"init-method-std", REAL, "0.02"},
    {"init-method-xavier-uniform", REFUSED, NULL},
    {"embedding-init-method-std", REFUSED, "0.1"},
    {"use-mcore-models", PASSED, NULL},
    {"transformer-impl", PASSED, "transformer_engine"},
    /* batch and run */
    {"micro-batch-size", REAL, NEEDED},
    {"batch-size", REAL, NEEDED},
    {"global-batch-size", REAL, NONE},
    {"step-batch-size-schedule", REAL, NONE},
    {"rampup-batch-size", REAL, NONE},
    {"train-iters", REAL, NONE},
    {"train-samples", REAL, NONE},
    {"exit-interval", REAL, NONE},
    {"exit-duration-in-mins", REAL, NONE},
    {"exit-signal-handler", PASSED, NULL},
    {"exit-signal", PASSED, "SIGTERM"},
    {"seed", REAL, "1234"},
    {"data-parallel-random-init", REFUSED, NULL},
    {"use-cpu-initialization", PASSED, NULL},
    {"deterministic-mode", PASSED, NULL},
    {"iterations-to-skip", REAL, NONE},
    /* learning rate and regularization */
    {"lr", REAL, NEEDED},
    {"min-lr", REAL, "0.0"},
    {"lr-decay-style", REAL, "linear"},
    {"lr-decay-iters", REAL, NONE},
    {"lr-decay-samples", REAL, NONE},
    {"lr-warmup-fraction", REAL, NONE},
    {"warmup", REAL, NONE},
    {"lr-warmup-iters", REAL, "0"},
    {"lr-warmup-samples", REAL, "0"},
    {"lr-warmup-init", REAL, "0.0"},
    {"lr-wsd-decay-style", REAL, "exponential"},
    {"lr-wsd-decay-iters", REAL, NONE},
    {"lr-wsd-decay-samples", REAL, NONE},
    {"weight-decay", REAL, "0.01"},
    {"start-weight-decay", REAL, NONE},
    {"end-weight-decay", REAL, NONE},
    {"weight-decay-incr-style", REAL, "constant"},
    {"clip-grad", REAL, "1.0"},
    {"adam-beta1", REAL, "0.9"},
    {"adam-beta2", REAL, "0.999"},
    {"adam-eps", REAL, "1e-08"},
    {"optimizer", REAL, "adam"},
    {"sgd-momentum", REFUSED, "0.9"},
    {"decoupled-lr", REFUSED, "0.1"},
    {"override-opt_param-scheduler", REAL, "False"},
    {"use-checkpoint-opt_param-scheduler", REAL, "False"},
    {"calculate-per-token-loss", REFUSED, NULL},
    /* parallel */
    {"tensor-model-parallel-size", REAL, "1"},
    {"model-parallel-size", REAL, "1"},
    {"pipeline-model-parallel-size", REAL, "1"},
    {"decoder-first-pipeline-num-layers", REAL, NONE},
    {"decoder-last-pipeline-num-layers", REAL, NONE},
    {"num-layers-per-virtual-pipeline-stage", REAL, NONE},
    {"num-virtual-stages-per-pipeline-rank", REAL, NONE},
    {"sequence-parallel", REAL, "False"},
    {"num-layers-per-virtual-pipeline-stage", REAL, NONE},
    {"num-virtual-stages-per-pipeline-rank", REAL, NONE},
    {"microbatch-group-size-per-virtual-pipeline-stage", PASSED, "4"},
    {"no-overlap-p2p-communication", PASSED, NULL},
    {"overlap-p2p-communication-warmup-flush", PASSED, NULL},
    {"sequence-parallel", REAL, "False"},
    {"context-parallel-size", REAL, "1"},
    {"expert-model-parallel-size", REAL, "1"},
    {"num-experts", REFUSED, "8"},
    {"overlap-grad-reduce", REAL, "False"},
    {"overlap-param-gather", REAL, "False"},
    {"ddp-bucket-size", PASSED, "40000000"},
    {"no-gradient-accumulation-fusion", PASSED, NULL},
    {"tp-comm-overlap", PASSED, NULL},
    {"distributed-backend", PASSED, "nccl"},
    {"distributed-timeout-minutes", REAL, "10.0"},
    {"local_rank", PASSED, "0"},
    {"DDP-impl", PASSED, "local"},
    {"no-scatter-gather-tensors-in-pipeline", PASSED, NULL},
    /* recompute */
    {"recompute-activations", REAL, "False"},
    {"checkpoint-activations", REAL, "False"},
    {"recompute-granularity", REAL, NONE},
    {"recompute-method", REAL, NONE},
    {"recompute-num-layers", REAL, NONE},
    {"recompute-modules", PASSED, "core_attn"},
    {"distribute-saved-activations", REAL, "False"},
    /* data and tokenizer */
    {"data-path", REAL, NONE},
    {"data-args-path", REAL, NONE},
    {"per-split-data-args-path", REFUSED, "x"},
    {"train-data-path", REAL, NONE},
    {"valid-data-path", REAL, NONE},
    {"test-data-path", REAL, NONE},
    {"split", REAL, "969,30,1"},
    {"data-cache-path", REAL, NONE},
    {"mock-data", REAL, "False"},
    {"num-workers", REAL, "2"},
    {"dataloader-type", REAL, "single"},
    {"data-sharding", REAL, "True"},
    {"reset-position-ids", REAL, "False"},
    {"reset-attention-mask", REAL, "False"},
    {"eod-mask-loss", REAL, "False"},
    {"no-mmap-bin-files", PASSED, NULL},
    {"data-impl", PASSED, "mmap"},
    {"no-create-attention-mask-in-dataloader", PASSED, NULL},
    {"tokenizer-type", REAL, "GPT2BPETokenizer"},
    {"vocab-file", REAL, NONE},
    {"merge-file", REAL, NONE},
    {"tokenizer-model", REAL, NONE},
    {"vocab-size", REAL, NONE},
    {"vocab-extra-ids", REFUSED, "0"},
    /* checkpoint */
    {"save", REAL, NONE},
    {"load", REAL, NONE},
    {"save-interval", REAL, NONE},
    {"save-retain-interval", REAL, NONE},
    {"non-persistent-save-interval", PASSED, "10"},
    {"ckpt-format", PASSED, "torch_dist"},
    {"async-save", PASSED, NULL},
    {"finetune", REAL, "False"},
    {"ckpt-step", REAL, "-1"},
    {"no-save-optim", PASSED, NULL},
    {"no-load-optim", REAL, "False"},
    {"no-save-rng", PASSED, NULL},
    {"no-load-rng", PASSED, NULL},
    {"use-checkpoint-args", REAL, "False"},
    {"use-mp-args-from-checkpoint-args", REAL, "False"},
    {"use-tokenizer-model-from-checkpoint-args", PASSED, NULL},
    {"exit-on-missing-checkpoint", REAL, "False"},
    {"pretrained-checkpoint", REFUSED, "x"},
    /* evaluation and log */
    {"eval-iters", REAL, "100"},
    {"eval-interval", REAL, NONE},
    {"skip-train", REFUSED, NULL},
    {"log-interval", REAL, "100"},
    {"log-throughput", REAL, "False"},
    {"log-params-norm", REAL, "False"},
    {"log-num-zeros-in-grad", REAL, "False"},
    {"log-energy", PASSED, NULL},
    {"log-progress", PASSED, NULL},
    {"check-for-nan-in-loss-and-grad", REAL, "True"},
    {"check-for-nan", REAL, "True"},
    {"check-for-spiky-loss", REAL, "True"},
    /* fusions and services */
    {"no-bias-gelu-fusion", PASSED, NULL},
    {"no-bias-dropout-fusion", PASSED, NULL},
    {"no-masked-softmax-fusion", PASSED, NULL},
    {"no-rope-fusion", PASSED, NULL},
    {"no-persist-layer-norm", PASSED, NULL},
    {"wandb-project", PASSED, "mine"},
    {"wandb-exp-name", PASSED, "mine"},
    {"adlr-autoresume", PASSED, NULL},
    {"profile", PASSED, NULL},
    {"profile-step-start", PASSED, "10"},
};

static struct train_options options;

/* The needed options, and one more flag with its word. */
static enum status parse(const char *name, const char *word)
{
    static const char *const needed[] = {
        "num-layers", "hidden-size",      "num-attention-heads",    "seq-length",
        "lr",         "micro-batch-size", "max-position-embeddings"};
    char *argv[32] = {(char *)"train"};
    char flag[128], pairs[8][64];
    const char *texts[32];
    struct option_positionals positionals = {.texts = texts};
    bool help = false;
    int argc = 1;

    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
        snprintf(pairs[i], sizeof(pairs[i]), "--%s=4", needed[i]);
        argv[argc++] = pairs[i];
    }
    snprintf(flag, sizeof(flag), "--%s", name);
    if (name[0] != 0) {
        argv[argc++] = flag;
    }
    if (word != NULL) {
        argv[argc++] = (char *)word;
    }
    memset(&options, 0, sizeof(options));
    return options_parse(&train_options_table, argc, argv, &options, &positionals, &help);
}

/* Where a name is a foreign one, whether it is refused; else -1. */
static int is_refused(const char *name)
{
    for (size_t i = 0; i < train_options_table.foreign_count; i++) {
        const struct option_foreign *foreign = &train_options_table.foreign[i];
        size_t stem = strcspn(foreign->name, "*");
        if (strncmp(foreign->name, name, stem) == 0 &&
            (foreign->name[stem] == '*' || name[stem] == 0)) {
            return foreign->is_refused;
        }
    }
    return -1;
}

static void check_default(const struct flag *flag)
{
    const struct option *option = NULL;
    char name[128];

    snprintf(name, sizeof(name), "%s", flag->name);
    for (char *at = name; *at != 0; at++) {
        *at = *at == '_' ? '-' : *at;
    }
    for (size_t i = 0; i < train_options_table.alias_count; i++) {
        if (strcmp(train_options_table.aliases[i].name, name) == 0) {
            snprintf(name, sizeof(name), "%s", train_options_table.aliases[i].target);
        }
    }
    for (size_t i = 0; i < train_options_table.option_count && option == NULL; i++) {
        if (strcmp(train_options_table.options[i].name, name) == 0) {
            option = &train_options_table.options[i];
        }
    }
    cr_assert_not_null(option, "--%s is no option", flag->name);
    if (flag->value == NEEDED) {
        cr_assert_null(option->default_text, "--%s has a default", flag->name);
        return;
    }
    cr_assert_eq(parse("", NULL), STATUS_OK);
    char printed[OPTIONS_PYTHON_MAX];
    options_format_python(option, &options, printed);
    cr_assert_str_eq(printed, flag->value, "--%s is %s by default, not %s", flag->name, printed,
                     flag->value);
}

Test(megatron_flags, each_is_what_it_is_said_to_be)
{
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        const struct flag *flag = &flags[i];
        if (flag->fate == REAL) {
            check_default(flag);
            continue;
        }
        cr_assert_eq(parse(flag->name, flag->value),
                     flag->fate == PASSED ? STATUS_OK : STATUS_USAGE, "--%s: %s", flag->name,
                     status_last()->message);
        if (flag->fate == REFUSED) {
            cr_assert_not_null(strstr(status_last()->message, "is not possible here: "), "%s",
                               status_last()->message);
        }
    }
}

/* What stands in both tables would be two facts; a flag that is real needs no excuse. */
Test(megatron_flags, no_name_is_in_two_tables)
{
    for (size_t i = 0; i < train_options_table.option_count; i++) {
        cr_assert_eq(is_refused(train_options_table.options[i].name), -1, "--%s",
                     train_options_table.options[i].name);
    }
    for (size_t i = 0; i < train_options_table.alias_count; i++) {
        cr_assert_eq(is_refused(train_options_table.aliases[i].name), -1, "--%s",
                     train_options_table.aliases[i].name);
    }
    for (size_t i = 0; i < train_options_table.foreign_count; i++) {
        const char *name = train_options_table.foreign[i].name;
        for (size_t j = 0; j < i; j++) {
            cr_assert_str_neq(name, train_options_table.foreign[j].name);
        }
    }
}

Test(megatron_flags, unknown_ones_name_the_nearest)
{
    static const struct {
        const char *name, *message;
    } cases[] = {
        {"num-layer", "unknown option '--num-layer'; did you mean '--num-layers'?"},
        {"tensor_parallel_size",
         "unknown option '--tensor_parallel_size'; did you mean '--tensor-model-parallel-size'?"},
        {"lr-warmup-iter", "unknown option '--lr-warmup-iter'; did you mean '--lr-warmup-iters'?"},
        {"checkpoint-activation",
         "unknown option '--checkpoint-activation'; did you mean '--checkpoint-activations'?"},
        {"model-paralel-size",
         "unknown option '--model-paralel-size'; did you mean '--model-parallel-size'?"},
        {"bananas-and-oranges-and-more",
         "unknown option '--bananas-and-oranges-and-more'; 'holdfast train --help' lists all"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cr_assert_eq(parse(cases[i].name, NULL), STATUS_USAGE, "%s", cases[i].name);
        cr_assert_str_eq(status_last()->message, cases[i].message);
    }
}
