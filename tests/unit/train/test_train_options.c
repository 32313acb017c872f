/* Megatron's rules about flags: what is refused, with which numbers, and what is derived. */
#include <criterion/criterion.h>
#include <stdarg.h>
#include <string.h>

#include "train/train_layout.h"
#include "train/train_options.h"

#define ARGS_MAX 64

static const char *const base[] = {"--num-layers",
                                   "4",
                                   "--hidden-size",
                                   "64",
                                   "--num-attention-heads",
                                   "4",
                                   "--seq-length",
                                   "32",
                                   "--max-position-embeddings",
                                   "32",
                                   "--vocab-size",
                                   "100",
                                   "--micro-batch-size",
                                   "2",
                                   "--lr",
                                   "1e-3",
                                   "--mock-data"};

static struct train_options options;
static struct train_plan plan;

static enum status parse(int argc, char **argv)
{
    const char *texts[ARGS_MAX];
    struct option_positionals positionals = {.texts = texts};
    bool help = false;

    memset(&options, 0, sizeof(options));
    return options_parse(&train_options_table, argc, argv, &options, &positionals, &help);
}

/* Parses the base and further words (ended by NULL), then resolves for `ranks`. */
static enum status resolve(int ranks, ...)
{
    char *argv[ARGS_MAX] = {(char *)"holdfast-train"};
    int argc = 1;
    va_list words;

    for (size_t i = 0; i < sizeof(base) / sizeof(base[0]); i++) {
        argv[argc++] = (char *)base[i];
    }
    va_start(words, ranks);
    for (char *word = va_arg(words, char *); word != NULL; word = va_arg(words, char *)) {
        argv[argc++] = word;
    }
    va_end(words);
    enum status st = parse(argc, argv);
    cr_assert_eq(st, STATUS_OK, "%s", status_last()->message);
    return train_options_resolve(&options, ranks, &plan);
}

static void expect_message(const char *a, const char *b)
{
    const char *message = status_last()->message;

    cr_assert(strstr(message, a) != NULL && strstr(message, b) != NULL,
              "'%s' names not both '%s' and '%s'", message, a, b);
}

Test(train_options, derives_what_is_left_out)
{
    cr_assert_eq(resolve(8, "--train-iters", "10", "--tensor-model-parallel-size", "2", NULL),
                 STATUS_OK);
    cr_assert(plan.layout.tp == 2 && plan.layout.pp == 1 && plan.layout.dp == 4);
    cr_assert_eq(options.ffn_hidden_size, 256);
    cr_assert_eq(options.global_batch_size, 8);
    cr_assert_eq(options.lr_decay_iters, 10);
    cr_assert_eq(plan.micro_batches, 1);
    cr_assert_eq(plan.train_steps, 10);
    cr_assert_eq(plan.schedule.decay_samples, 80);
    cr_assert(options.adam_beta2 == 0.999 && options.clip_grad == 1.0 && options.seed == 1234);
}

Test(train_options, batch_follows_from_accumulation_and_accumulation_from_batch)
{
    cr_assert_eq(resolve(2, "--train-iters", "1", "--global-batch-size", "24", NULL), STATUS_OK);
    cr_assert_eq(plan.micro_batches, 6);
    cr_assert_eq(resolve(2, "--train-iters", "1", "--gradient-accumulation-steps", "3", NULL),
                 STATUS_OK);
    cr_assert_eq(options.global_batch_size, 12);
    cr_assert_eq(plan.micro_batches, 3);
}

Test(train_options, samples_make_steps_and_schedule)
{
    cr_assert_eq(resolve(1, "--train-samples", "101", "--global-batch-size", "4",
                         "--lr-warmup-fraction", "0.1", NULL),
                 STATUS_OK);
    cr_assert_eq(plan.train_steps, 25);
    cr_assert_eq(plan.schedule.decay_samples, 101);
    cr_assert_float_eq(plan.schedule.warmup_samples, 10.1, 1e-12);
}

Test(train_options, old_spellings_are_known)
{
    cr_assert_eq(resolve(2, "--train-iters", "1", "--model-parallel-size", "2", NULL), STATUS_OK);
    cr_assert_eq(plan.layout.tp, 2);
    cr_assert_eq(resolve(2, "--train_iters=1", "--batch-size", "1", NULL), STATUS_OK);
    cr_assert_eq(options.micro_batch_size, 1);
}

Test(train_options, refuses_shapes_that_do_not_divide)
{
    cr_assert_eq(resolve(1, "--train-iters", "1", "--hidden-size", "66", NULL), STATUS_USAGE);
    expect_message("66", "--num-attention-heads 4");
    cr_assert_eq(resolve(1, "--train-iters", "1", "--seq-length", "33", NULL), STATUS_USAGE);
    expect_message("--seq-length 33", "32");
    cr_assert_eq(resolve(3, "--train-iters", "1", "--tensor-model-parallel-size", "3", NULL),
                 STATUS_USAGE);
    expect_message("--num-attention-heads 4", "3");
    cr_assert_eq(resolve(2, "--train-iters", "1", "--tensor-model-parallel-size", "2",
                         "--ffn-hidden-size", "129", NULL),
                 STATUS_USAGE);
    expect_message("129", "2");
    cr_assert_eq(resolve(5, "--train-iters", "1", "--pipeline-model-parallel-size", "5", NULL),
                 STATUS_USAGE);
    expect_message("5", "--num-layers 4");
    cr_assert_eq(resolve(6, "--train-iters", "1", "--tensor-model-parallel-size", "4", NULL),
                 STATUS_USAGE);
    expect_message("6 ranks", "4");
}

static void expect_stages(int stages, const int *layers)
{
    int expected = 0;

    for (int stage = 0; stage < stages; stage++) {
        struct gpt_stage part = train_layout_stage(&plan, (struct coords){.pp = stage}, NULL);
        cr_assert_eq(part.layer_begin, expected, "stage %d", stage);
        cr_assert_eq(part.layer_end - part.layer_begin, layers[stage], "stage %d", stage);
        expected = part.layer_end;
    }
    cr_assert_eq(expected, plan.model.layers);
}

Test(train_options, first_and_last_stage_may_hold_another_number_of_layers)
{
    cr_assert_eq(resolve(3, "--train-iters", "1", "--num-layers", "10",
                         "--pipeline-model-parallel-size", "3",
                         "--decoder-first-pipeline-num-layers", "1",
                         "--decoder-last-pipeline-num-layers", "4", NULL),
                 STATUS_OK);
    expect_stages(3, (const int[]){1, 5, 4});
    cr_assert_eq(resolve(4, "--train-iters", "1", "--num-layers", "10",
                         "--pipeline-model-parallel-size", "4",
                         "--decoder-last-pipeline-num-layers", "2", NULL),
                 STATUS_OK);
    expect_stages(4, (const int[]){3, 3, 2, 2});
    cr_assert_eq(resolve(2, "--train-iters", "1", "--pipeline-model-parallel-size", "2",
                         "--decoder-first-pipeline-num-layers", "1",
                         "--decoder-last-pipeline-num-layers", "3", NULL),
                 STATUS_OK);
    expect_stages(2, (const int[]){1, 3});
}

/* Every layer is in the chunk that the schedule's way through the model brings it to. */
static void expect_chunks(int stages, int chunks, const int *layers)
{
    int expected = 0;

    cr_assert_eq(plan.chunks, chunks);
    for (int place = 0; place < stages * chunks; place++) {
        struct coords coords = {.pp = place % stages};
        struct gpt_stage part = train_layout_stage(&plan, coords, NULL);
        int first = place / stages * part.chunk_stride;
        cr_assert_eq(first + part.layer_begin, expected, "place %d", place);
        cr_assert_eq(part.layer_end - part.layer_begin, layers[place % stages]);
        expected = first + part.layer_end;
    }
    cr_assert_eq(expected, plan.model.layers);
}

Test(train_options, stages_may_hold_several_chunks_of_layers)
{
    cr_assert_eq(resolve(2, "--train-iters", "1", "--num-layers", "12",
                         "--pipeline-model-parallel-size", "2", "--global-batch-size", "4",
                         "--num-layers-per-virtual-pipeline-stage", "2", NULL),
                 STATUS_OK);
    expect_chunks(2, 3, (const int[]){2, 2});
    cr_assert_eq(resolve(3, "--train-iters", "1", "--num-layers", "10",
                         "--pipeline-model-parallel-size", "3", "--global-batch-size", "6",
                         "--decoder-first-pipeline-num-layers", "2",
                         "--decoder-last-pipeline-num-layers", "4",
                         "--num-virtual-stages-per-pipeline-rank", "2", NULL),
                 STATUS_OK);
    expect_chunks(3, 2, (const int[]){1, 2, 2});
    cr_assert_eq(resolve(2, "--train-iters", "1", "--pipeline-model-parallel-size", "2",
                         "--num-layers-per-virtual-pipeline-stage", "2", NULL),
                 STATUS_OK);
    expect_chunks(2, 1, (const int[]){2, 2});
}

Test(train_options, refuses_chunks_that_do_not_divide)
{
    cr_assert_eq(
        resolve(1, "--train-iters", "1", "--num-virtual-stages-per-pipeline-rank", "2", NULL),
        STATUS_USAGE);
    expect_message("2 virtual stages", "--pipeline-model-parallel-size");
    cr_assert_eq(resolve(2, "--train-iters", "1", "--pipeline-model-parallel-size", "2",
                         "--global-batch-size", "4", "--num-layers-per-virtual-pipeline-stage", "3",
                         NULL),
                 STATUS_USAGE);
    expect_message("--num-layers 4", "--num-layers-per-virtual-pipeline-stage 3");
    cr_assert_eq(resolve(2, "--train-iters", "1", "--pipeline-model-parallel-size", "2",
                         "--global-batch-size", "4", "--num-virtual-stages-per-pipeline-rank", "2",
                         "--decoder-first-pipeline-num-layers", "1", NULL),
                 STATUS_USAGE);
    expect_message("2 virtual stages do not divide", "the 1 layers of stage 0");
    cr_assert_eq(resolve(2, "--train-iters", "1", "--pipeline-model-parallel-size", "2",
                         "--num-virtual-stages-per-pipeline-rank", "2",
                         "--num-layers-per-virtual-pipeline-stage", "1", NULL),
                 STATUS_USAGE);
    expect_message("--num-virtual-stages-per-pipeline-rank 2", "exclude each other");
}

Test(train_options, interleaved_micro_batches_must_divide_by_the_stages_on_the_way_too)
{
    cr_assert_eq(resolve(2, "--train-iters", "1", "--pipeline-model-parallel-size", "2",
                         "--global-batch-size", "6", "--num-virtual-stages-per-pipeline-rank", "2",
                         NULL),
                 STATUS_USAGE);
    expect_message("number of microbatches (3)", "pipeline-model-parallel-size (2)");
    cr_assert_eq(resolve(2, "--train-samples", "40", "--pipeline-model-parallel-size", "2",
                         "--global-batch-size", "4", "--rampup-batch-size", "2 2 8",
                         "--num-virtual-stages-per-pipeline-rank", "2", NULL),
                 STATUS_USAGE);
    expect_message("number of microbatches (1)", "--global-batch-size 2");
}

Test(train_options, refuses_stages_whose_layers_do_not_add_up)
{
    cr_assert_eq(resolve(1, "--train-iters", "1", "--decoder-first-pipeline-num-layers", "2", NULL),
                 STATUS_USAGE);
    expect_message("--decoder-first-pipeline-num-layers 2", "--pipeline-model-parallel-size");
    cr_assert_eq(resolve(2, "--train-iters", "1", "--pipeline-model-parallel-size", "2",
                         "--decoder-first-pipeline-num-layers", "1",
                         "--decoder-last-pipeline-num-layers", "2", NULL),
                 STATUS_USAGE);
    expect_message("leave 1 of --num-layers 4", "0 other stages");
    cr_assert_eq(resolve(4, "--train-iters", "1", "--pipeline-model-parallel-size", "4",
                         "--decoder-first-pipeline-num-layers", "2", NULL),
                 STATUS_USAGE);
    expect_message("leave 2 of --num-layers 4", "3 other stages");
}

Test(train_options, refuses_batches_that_do_not_divide_naming_all_three)
{
    cr_assert_eq(resolve(3, "--train-iters", "1", "--global-batch-size", "8", NULL), STATUS_USAGE);
    expect_message("--global-batch-size 8", "--micro-batch-size 2 x DP 3");
    cr_assert_eq(resolve(1, "--train-iters", "1", "--global-batch-size", "8",
                         "--gradient-accumulation-steps", "3", NULL),
                 STATUS_USAGE);
    expect_message("8", "is 6");
}

Test(train_options, refuses_two_lengths_or_none)
{
    cr_assert_eq(resolve(1, NULL), STATUS_USAGE);
    cr_assert_eq(resolve(1, "--train-iters", "5", "--train-samples", "50", NULL), STATUS_USAGE);
    expect_message("--train-iters 5", "--train-samples 50");
    cr_assert_eq(resolve(1, "--train-samples", "50", "--lr-warmup-iters", "2", NULL), STATUS_USAGE);
    cr_assert_eq(resolve(1, "--train-iters", "5", "--lr-decay-samples", "2", NULL), STATUS_USAGE);
}

Test(train_options, refuses_schedules_that_contradict_themselves)
{
    cr_assert_eq(resolve(1, "--train-iters", "5", "--lr-warmup-iters", "5", NULL), STATUS_USAGE);
    cr_assert_eq(resolve(1, "--train-iters", "50", "--lr-warmup-iters", "5", "--lr-warmup-fraction",
                         "0.1", NULL),
                 STATUS_USAGE);
    cr_assert_eq(resolve(1, "--train-iters", "5", "--min-lr", "0.01", NULL), STATUS_USAGE);
    expect_message("--min-lr 0.01", "--lr 0.001");
}

Test(train_options, refuses_checkpoint_flags_that_need_each_other)
{
    cr_assert_eq(resolve(1, "--train-iters", "5", "--save", "x", NULL), STATUS_USAGE);
    cr_assert_eq(resolve(1, "--train-iters", "5", "--save-interval", "2", NULL), STATUS_USAGE);
    cr_assert_eq(resolve(1, "--train-iters", "5", "--keep-every", "2", NULL), STATUS_USAGE);
    cr_assert_eq(resolve(1, "--train-iters", "5", "--save", "x", "--save-interval", "4",
                         "--keep-last", "2", "--keep-every", "6", NULL),
                 STATUS_USAGE);
    expect_message("--keep-every 6", "--save-interval 4");
    cr_assert_eq(resolve(1, "--train-iters", "5", "--ckpt-step", "3", NULL), STATUS_USAGE);
    cr_assert_eq(resolve(1, "--train-iters", "5", "--data-path", "x", NULL), STATUS_USAGE);
}

Test(train_options, retained_checkpoints_are_kept_beside_the_newest)
{
    cr_assert_eq(resolve(1, "--train-iters", "5", "--save", "x", "--save-interval", "2",
                         "--save-retain-interval", "4", NULL),
                 STATUS_OK);
    cr_assert(options.keep_every == 4 && options.keep_last == 1);
}

Test(train_options, refuses_a_model_that_is_not_this_one)
{
    char *argv[] = {(char *)"train", (char *)"--swiglu"};

    cr_assert_eq(parse(2, argv), STATUS_USAGE);
    expect_message("--swiglu", "GELU");
    argv[1] = (char *)"--normalization=RMSNorm";
    cr_assert_eq(parse(2, argv), STATUS_USAGE);
    expect_message("RMSNorm", "LayerNorm");
    argv[1] = (char *)"--context-parallel-size=2";
    cr_assert_eq(parse(2, argv), STATUS_USAGE);
    cr_assert_eq(resolve(1, "--train-iters", "5", "--kv-channels", "32", NULL), STATUS_USAGE);
    expect_message("--kv-channels 32", "--hidden-size 64 / --num-attention-heads 4");
    cr_assert_eq(resolve(1, "--train-iters", "5", "--kv-channels", "16", NULL), STATUS_OK);
    cr_assert_eq(resolve(1, "--train-iters", "5", "--vocab-size", "0", NULL), STATUS_USAGE);
    expect_message("--vocab-size", "--vocab-file");
}

Test(train_options, passes_over_what_has_no_meaning_here)
{
    cr_assert_eq(resolve(1, "--train-iters", "5", "--no-bias-gelu-fusion", "--use-mcore-models",
                         "--attention-backend", "auto", "--wandb-project", "mine",
                         "--use-flash-attn", "--transformer_impl", "transformer_engine",
                         "--distributed-backend", "nccl", "--no-masked-softmax-fusion",
                         "--optimizer", "adam", "--local_rank", "0", "--batch-size", "3", NULL),
                 STATUS_OK);
    cr_assert_eq(options.micro_batch_size, 3);
}

Test(train_options, plans_wsd_and_a_growing_weight_decay_in_samples)
{
    cr_assert_eq(resolve(1, "--train-iters", "100", "--global-batch-size", "4", "--lr-decay-style",
                         "WSD", "--lr-wsd-decay-iters", "20", "--lr-wsd-decay-style", "minus_sqrt",
                         "--weight-decay-incr-style", "cosine", "--start-weight-decay", "0.01",
                         "--end-weight-decay", "0.2", NULL),
                 STATUS_OK);
    cr_assert(plan.schedule.decay == LR_DECAY_WSD && plan.schedule.wsd_samples == 80);
    cr_assert(plan.schedule.wsd_decay == LR_WSD_DECAY_MINUS_SQRT);
    cr_assert(plan.schedule.weight_decay == LR_WEIGHT_DECAY_COSINE);
    cr_assert(plan.schedule.weight_decay_first == 0.01 && plan.schedule.weight_decay_last == 0.2);
    cr_assert(plan.schedule.weight_decay_samples == 400);
    cr_assert_eq(resolve(1, "--train-iters", "9", "--weight-decay", "0.3", NULL), STATUS_OK);
    cr_assert(plan.schedule.weight_decay_first == 0.3 && plan.schedule.weight_decay_last == 0.3);
}

Test(train_options, refuses_a_wsd_without_length_and_a_weight_decay_without_ends)
{
    cr_assert_eq(resolve(1, "--train-iters", "10", "--lr-decay-style", "WSD", NULL), STATUS_USAGE);
    expect_message("--lr-wsd-decay-iters", "0 of 20 samples");
    cr_assert_eq(resolve(1, "--train-iters", "10", "--lr-decay-style", "WSD",
                         "--lr-wsd-decay-iters", "11", NULL),
                 STATUS_USAGE);
    expect_message("22 of 20 samples", "WSD");
    cr_assert_eq(resolve(1, "--train-samples", "50", "--lr-wsd-decay-iters", "2", NULL),
                 STATUS_USAGE);
    cr_assert_eq(resolve(1, "--train-iters", "9", "--weight-decay-incr-style", "linear",
                         "--start-weight-decay", "0.1", NULL),
                 STATUS_USAGE);
    expect_message("--weight-decay-incr-style linear", "--end-weight-decay");
    cr_assert_eq(resolve(1, "--train-iters", "9", "--start-weight-decay", "0.1", NULL),
                 STATUS_USAGE);
    expect_message("--start-weight-decay 0.1", "--weight-decay-incr-style");
    cr_assert_eq(resolve(1, "--train-iters", "9", "--weight-decay-incr-style", "linear",
                         "--start-weight-decay", "0.1", "--end-weight-decay", "0.05", NULL),
                 STATUS_USAGE);
    expect_message("--end-weight-decay 0.05", "--start-weight-decay 0.1");
}

Test(train_options, recompute_follows_megatrons_rules)
{
    cr_assert_eq(resolve(1, "--train-iters", "1", NULL), STATUS_OK);
    cr_assert_eq(plan.model.recompute, GPT_RECOMPUTE_NONE);
    cr_assert_eq(resolve(1, "--train-iters", "1", "--checkpoint-activations", NULL), STATUS_OK);
    cr_assert(plan.model.recompute == GPT_RECOMPUTE_UNIFORM && plan.model.recompute_layers == 1);
    cr_assert_eq(resolve(1, "--train-iters", "1", "--checkpoint-activations",
                         "--checkpoint-num-layers", "3", "--checkpoint-method", "block", NULL),
                 STATUS_OK);
    cr_assert(plan.model.recompute == GPT_RECOMPUTE_BLOCK && plan.model.recompute_layers == 3);
    cr_assert_eq(resolve(1, "--train-iters", "1", "--checkpoint-activations",
                         "--recompute-activations", NULL),
                 STATUS_OK);
    cr_assert_eq(plan.model.recompute, GPT_RECOMPUTE_SELECTIVE);
    cr_assert_eq(resolve(1, "--train-iters", "1", "--recompute-granularity", "full",
                         "--recompute-method", "uniform", "--recompute-num-layers", "2", NULL),
                 STATUS_OK);
    cr_assert(plan.model.recompute == GPT_RECOMPUTE_UNIFORM && plan.model.recompute_layers == 2);
    cr_assert_eq(resolve(1, "--train-iters", "1", "--recompute-granularity", "full",
                         "--recompute-method", "block", "--recompute-num-layers", "5", NULL),
                 STATUS_USAGE);
    expect_message("--recompute-num-layers 5", "--num-layers 4");
    cr_assert_eq(resolve(1, "--train-iters", "1", "--recompute-granularity", "full", NULL),
                 STATUS_USAGE);
    expect_message("--recompute-method", "--recompute-num-layers");
    cr_assert_eq(resolve(1, "--train-iters", "1", "--recompute-activations", "--recompute-method",
                         "uniform", NULL),
                 STATUS_USAGE);
    expect_message("--recompute-method uniform", "selective");
}

/* The base gives --mock-data; these words take it back. */
#define NO_MOCK "--train-iters", "10", "--no-mock-data"

Test(train_options, data_come_from_exactly_one_source)
{
    cr_assert_eq(resolve(1, NO_MOCK, NULL), STATUS_USAGE);
    expect_message("no data", "--train-data-path");
    cr_assert_eq(resolve(1, "--train-iters", "10", "--data-path", "a", NULL), STATUS_USAGE);
    expect_message("--data-path 'a'", "--mock-data true");
    cr_assert_eq(resolve(1, NO_MOCK, "--data-path", "a", "--valid-data-path", "b", NULL),
                 STATUS_USAGE);
    expect_message("--data-path 'a'", "--valid-data-path 'b'");
    cr_assert_eq(resolve(1, NO_MOCK, "--data-path", "a", "--data-args-path", "b", NULL),
                 STATUS_USAGE);
    expect_message("--data-path 'a'", "--data-args-path 'b'");
    cr_assert_eq(resolve(1, NO_MOCK, "--valid-data-path", "b", NULL), STATUS_USAGE);
    expect_message("--valid-data-path 'b'", "need a --train-data-path");
    cr_assert_eq(resolve(1, NO_MOCK, "--train-data-path", "a", "--eval-interval", "5", NULL),
                 STATUS_USAGE);
    expect_message("--eval-interval 5", "--valid-data-path");
    cr_assert_eq(resolve(1, NO_MOCK, "--train-data-path", "a", "--split", "9,1,0", NULL),
                 STATUS_USAGE);
    expect_message("--split '9,1,0'", "--train-data-path 'a'");
    cr_assert_eq(resolve(1, NO_MOCK, "--train-data-path", "1", "a", "2", "b", "--valid-data-path",
                         "c", "--eval-interval", "5", NULL),
                 STATUS_OK);
    cr_assert_str_eq(options.train_data_path, "1 a 2 b");
}

Test(train_options, plans_a_growing_batch)
{
    cr_assert_eq(resolve(2, "--train-iters", "60", "--global-batch-size", "16",
                         "--rampup-batch-size", "4", "4", "64", NULL),
                 STATUS_OK);
    cr_assert(plan.train_steps == 60 && plan.train_samples == 856 && plan.micro_batches == 4);
    cr_assert_eq(resolve(2, "--train-samples", "860", "--global-batch-size", "16",
                         "--rampup-batch-size", "4", "4", "64", NULL),
                 STATUS_OK);
    cr_assert(plan.train_steps == 60 && plan.train_samples == 856);
    cr_assert_eq(
        resolve(1, "--train-iters", "9", "--step-batch-size-schedule", "0:8", "1K:4", NULL),
        STATUS_OK);
    cr_assert(options.global_batch_size == 4 && plan.micro_batches == 4);
    cr_assert_eq(plan.batch.stages[1].begin, 1000 / 32);
}

Test(train_options, refuses_a_growing_batch_that_does_not_divide)
{
    cr_assert_eq(resolve(2, "--train-iters", "9", "--global-batch-size", "16",
                         "--rampup-batch-size", "4", "6", "64", NULL),
                 STATUS_USAGE);
    expect_message("4 6 64", "--micro-batch-size 2 x DP 2");
    cr_assert_eq(resolve(1, "--train-iters", "9", "--step-batch-size-schedule", "0:8",
                         "--global-batch-size", "4", NULL),
                 STATUS_USAGE);
    expect_message("--global-batch-size 4", "0:8");
    cr_assert_eq(resolve(1, "--train-iters", "9", "--step-batch-size-schedule", "0:8",
                         "--rampup-batch-size", "4", "4", "64", NULL),
                 STATUS_USAGE);
}

Test(train_options, refuses_two_schedules_and_finetuning_in_place)
{
    cr_assert_eq(resolve(1, "--train-iters", "5", "--override-opt_param-scheduler",
                         "--use-checkpoint-opt_param-scheduler", NULL),
                 STATUS_USAGE);
    cr_assert_eq(resolve(1, "--train-iters", "5", "--finetune", NULL), STATUS_USAGE);
    cr_assert_eq(resolve(1, "--train-iters", "5", "--finetune", "--load", "x", "--save", "x",
                         "--save-interval", "1", NULL),
                 STATUS_USAGE);
    expect_message("--finetune", "'x'");
    cr_assert_eq(resolve(1, "--train-iters", "5", "--finetune", "--load", "x", NULL), STATUS_OK);
}

Test(train_options, looking_for_ends_of_documents_needs_an_id_of_the_vocabulary)
{
    cr_assert_eq(resolve(1, "--train-iters", "10", "--eod-mask-loss", NULL), STATUS_USAGE);
    expect_message("--eod-mask-loss, ", "not -1");
    cr_assert_eq(resolve(1, "--train-iters", "10", "--reset-attention-mask", NULL), STATUS_USAGE);
    cr_assert_eq(resolve(1, "--train-iters", "10", "--reset-position-ids", NULL), STATUS_USAGE);
    cr_assert_eq(resolve(1, "--train-iters", "10", "--eod-mask-loss", "--eod-id", "100", NULL),
                 STATUS_USAGE);
    expect_message("--vocab-size 100", "not 100");
    cr_assert_eq(resolve(1, "--train-iters", "10", "--eod-mask-loss", "--eod-id", "99", NULL),
                 STATUS_OK);
}
