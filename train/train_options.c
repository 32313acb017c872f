/* The table of flags, and Megatron's rules about them. Before it: the command line; after it:
 * train_main and trainer. All checks are pure, so a wrong flag stops every rank before one waits
 * for another.
 */
#include "train/train_options.h"

#include <string.h>

#include "ckpt/base/status.h"
#include "train/data/read_ahead.h"
#include "train/data/tokenizer.h"
#include "train/train_data.h"
#include "train/train_settings.h"
#include "train/train_layout.h"

static const struct option rows[] = {
#define OPTION(field, name, type, text, min, max, choices, resume, group, common, help)            \
    {name,                                                                                         \
     OPTION_##type,                                                                                \
     offsetof(struct train_options, field),                                                        \
     text,                                                                                         \
     min,                                                                                          \
     max,                                                                                          \
     choices,                                                                                      \
     OPTION_##resume,                                                                              \
     group,                                                                                        \
     common,                                                                                       \
     help},
#include "train/train_options.def"
#undef OPTION
};

static const struct option_foreign foreign[] = {
#define PASSED(name, why) {name, false, why},
#define REFUSED(name, why) {name, true, why},
#include "train/train_foreign.def"
#undef PASSED
#undef REFUSED
};

static const struct option_alias aliases[] = {
    {"batch-size", "micro-batch-size"},
    {"model-parallel-size", "tensor-model-parallel-size"},
    {"layernorm-epsilon", "norm-epsilon"},
    {"warmup", "lr-warmup-fraction"},
    {"save-retain-interval", "keep-every"},
    {"check-for-nan", "check-for-nan-in-loss-and-grad"},
    {"use-checkpointing", "checkpoint-activations"},
    {"checkpoint-granularity", "recompute-granularity"},
    {"checkpoint-method", "recompute-method"},
    {"checkpoint-num-layers", "recompute-num-layers"},
    {"distribute-checkpointed-activations", "distribute-saved-activations"},
    {"num-microbatches-in-minibatch", "gradient-accumulation-steps"},
    {"override-lr-scheduler", "override-opt-param-scheduler"},
    {"use-checkpoint-lr-scheduler", "use-checkpoint-opt-param-scheduler"},
};

const struct option_table train_options_table = {
    .program = "holdfast train",
    .usage = "[options]",
    .about = "Trains a GPT as one rank of RANK/WORLD_SIZE (alone without them). Start several "
             "ranks with `holdfast run`. Flags have Megatron-LM's names and meanings.",
    .options = rows,
    .option_count = TRAIN_OPTION_COUNT,
    .aliases = aliases,
    .alias_count = sizeof(aliases) / sizeof(aliases[0]),
    .foreign = foreign,
    .foreign_count = sizeof(foreign) / sizeof(foreign[0]),
    .complete = train_settings_complete,
    .given_offset = offsetof(struct train_options, given),
    .positional_min = 0,
    .positional_max = 0,
};

static enum status check_model(struct train_options *options)
{
    int64_t tp = options->tensor_model_parallel_size;

    if (options->ffn_hidden_size == 0) {
        options->ffn_hidden_size = 4 * options->hidden_size;
    }
    if (options->hidden_size % options->num_attention_heads != 0) {
        return FAIL(STATUS_USAGE,
                    "--hidden-size %lld is not a multiple of --num-attention-heads %lld",
                    (long long)options->hidden_size, (long long)options->num_attention_heads);
    }
    int64_t head_width = options->hidden_size / options->num_attention_heads;
    if (options->kv_channels != 0 && options->kv_channels != head_width) {
        return FAIL(STATUS_USAGE,
                    "--kv-channels %lld is not --hidden-size %lld / --num-attention-heads %lld",
                    (long long)options->kv_channels, (long long)options->hidden_size,
                    (long long)options->num_attention_heads);
    }
    options->kv_channels = head_width;
    if (options->vocab_size == 0) {
        return FAIL(STATUS_USAGE, "missing --vocab-size, or the tokenizer's --vocab-file and "
                                  "--merge-file, or its --tokenizer-model");
    }
    if (options->max_position_embeddings < options->seq_length) {
        return FAIL(STATUS_USAGE, "--max-position-embeddings %lld is less than --seq-length %lld",
                    (long long)options->max_position_embeddings, (long long)options->seq_length);
    }
    if (options->num_attention_heads % tp != 0) {
        return FAIL(STATUS_USAGE,
                    "--num-attention-heads %lld is not a multiple of --tensor-model-parallel-size "
                    "%lld",
                    (long long)options->num_attention_heads, (long long)tp);
    }
    if (options->ffn_hidden_size % tp != 0) {
        return FAIL(STATUS_USAGE,
                    "--ffn-hidden-size %lld is not a multiple of --tensor-model-parallel-size %lld",
                    (long long)options->ffn_hidden_size, (long long)tp);
    }
    if (options->pipeline_model_parallel_size > options->num_layers) {
        return FAIL(STATUS_USAGE,
                    "--pipeline-model-parallel-size %lld is more than --num-layers %lld: a stage "
                    "needs a layer",
                    (long long)options->pipeline_model_parallel_size,
                    (long long)options->num_layers);
    }
    return STATUS_OK;
}

static enum status plan_layout(const struct train_options *options, int world_size,
                               struct layout *out_layout)
{
    int64_t tp = options->tensor_model_parallel_size;
    int64_t pp = options->pipeline_model_parallel_size;

    if (world_size % (tp * pp) != 0) {
        return FAIL(STATUS_USAGE,
                    "%d ranks are not a multiple of --tensor-model-parallel-size %lld x "
                    "--pipeline-model-parallel-size %lld",
                    world_size, (long long)tp, (long long)pp);
    }
    if (options->overlap_param_gather && !options->overlap_grad_reduce) {
        return FAIL(STATUS_USAGE, "--overlap-param-gather needs --overlap-grad-reduce beside it");
    }
    *out_layout =
        (struct layout){.tp = (int)tp, .pp = (int)pp, .dp = (int)(world_size / (tp * pp))};
    return STATUS_OK;
}

/* Of --global-batch-size and --gradient-accumulation-steps one follows from the other. */
static enum status derive_global_batch(struct train_options *options, int dp)
{
    int64_t at_once = options->micro_batch_size * dp;

    if (options->gradient_accumulation_steps > 0) {
        int64_t implied = at_once * options->gradient_accumulation_steps;
        if (options->global_batch_size > 0 && options->global_batch_size != implied) {
            return FAIL(STATUS_USAGE,
                        "--global-batch-size %lld and --gradient-accumulation-steps %lld do not "
                        "agree (--micro-batch-size %lld x DP %d x %lld is %lld)",
                        (long long)options->global_batch_size,
                        (long long)options->gradient_accumulation_steps,
                        (long long)options->micro_batch_size, dp,
                        (long long)options->gradient_accumulation_steps, (long long)implied);
        }
        options->global_batch_size = implied;
    }
    if (options->global_batch_size == 0) {
        options->global_batch_size = at_once;
    }
    return STATUS_OK;
}

/* --step-batch-size-schedule ends with the global batch. */
static enum status plan_batch_steps(struct train_options *options, struct batch_schedule *batch)
{
    enum status st = STATUS_OK;

    TRY(st, batch_schedule_steps(options->step_batch_size_schedule, options->seq_length, batch),
        done);
    int64_t last = batch->stages[batch->count - 1].batch;
    if (options->rampup_batch_size[0] != 0) {
        return FAIL(STATUS_USAGE,
                    "--rampup-batch-size '%s' and --step-batch-size-schedule '%s' "
                    "exclude each other",
                    options->rampup_batch_size, options->step_batch_size_schedule);
    }
    if (options->global_batch_size > 0 && options->global_batch_size != last) {
        return FAIL(STATUS_USAGE,
                    "--global-batch-size %lld is not %lld, the last of "
                    "--step-batch-size-schedule '%s'",
                    (long long)options->global_batch_size, (long long)last,
                    options->step_batch_size_schedule);
    }
    options->global_batch_size = last;
done:
    return st;
}

static enum status plan_batch(struct train_options *options, struct train_plan *plan)
{
    enum status st = STATUS_OK;
    int64_t at_once = options->micro_batch_size * plan->layout.dp;
    struct batch_schedule *batch = &plan->batch;
    bool has_steps = options->step_batch_size_schedule[0] != 0;
    const char *growth = has_steps ? options->step_batch_size_schedule : options->rampup_batch_size;

    if (has_steps) {
        TRY(st, plan_batch_steps(options, batch), done);
    }
    TRY(st, derive_global_batch(options, plan->layout.dp), done);
    if (!has_steps && options->rampup_batch_size[0] != 0) {
        TRY(st, batch_schedule_ramp(options->rampup_batch_size, options->global_batch_size, batch),
            done);
    } else if (!has_steps) {
        batch_schedule_constant(options->global_batch_size, batch);
    }
    for (size_t i = 0; i < batch->count; i++) {
        if (batch->stages[i].batch % at_once != 0) {
            return FAIL(STATUS_USAGE,
                        "--global-batch-size %lld%s%s is not a multiple of --micro-batch-size "
                        "%lld x DP %d",
                        (long long)batch->stages[i].batch, growth[0] != 0 ? " on the way of " : "",
                        growth, (long long)options->micro_batch_size, plan->layout.dp);
        }
    }
    plan->micro_batches = batch_schedule_largest(batch) / at_once;
done:
    return st;
}

/* A training is measured in iterations or in samples, and its schedule likewise. */
static enum status plan_length(const struct train_options *options, struct train_plan *plan)
{
    bool by_samples = options->train_samples > 0;

    if ((options->train_iters > 0) == by_samples) {
        return FAIL(STATUS_USAGE,
                    "--train-iters %lld and --train-samples %lld: give exactly one of them",
                    (long long)options->train_iters, (long long)options->train_samples);
    }
    if (by_samples && (options->lr_decay_iters > 0 || options->lr_warmup_iters > 0 ||
                       options->lr_wsd_decay_iters > 0)) {
        return FAIL(STATUS_USAGE,
                    "--lr-decay-iters %lld, --lr-warmup-iters %lld and --lr-wsd-decay-iters %lld "
                    "do not go with --train-samples: use the same flags with -samples",
                    (long long)options->lr_decay_iters, (long long)options->lr_warmup_iters,
                    (long long)options->lr_wsd_decay_iters);
    }
    if (!by_samples && (options->lr_decay_samples > 0 || options->lr_warmup_samples > 0 ||
                        options->lr_wsd_decay_samples > 0)) {
        return FAIL(STATUS_USAGE,
                    "--lr-decay-samples %lld, --lr-warmup-samples %lld and "
                    "--lr-wsd-decay-samples %lld do not go with --train-iters: use the same flags "
                    "with -iters",
                    (long long)options->lr_decay_samples, (long long)options->lr_warmup_samples,
                    (long long)options->lr_wsd_decay_samples);
    }
    for (const char *at = options->iterations_to_skip; *at != 0; at += strspn(at, " ")) {
        size_t digits = strspn(at, "0123456789");
        if (digits == 0 || digits > 15 || (at[digits] != 0 && at[digits] != ' ')) {
            return FAIL(STATUS_USAGE, "--iterations-to-skip '%s' is no list of whole numbers",
                        options->iterations_to_skip);
        }
        at += digits;
    }
    plan->train_steps =
        by_samples ? batch_schedule_step_count(&plan->batch, (uint64_t)options->train_samples)
                   : (uint64_t)options->train_iters;
    plan->train_samples = batch_schedule_sample_count(&plan->batch, plan->train_steps);
    if (plan->train_steps == 0) {
        return FAIL(STATUS_USAGE, "--train-samples %lld is less than one step of %lld",
                    (long long)options->train_samples,
                    (long long)batch_schedule_at(&plan->batch, 0));
    }
    return STATUS_OK;
}

/* Which of `names` an option has; the table allows no other. */
static int find_name(const char *const *names, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0) {
            return (int)i;
        }
    }
    CHECK(false);
}

#define FIND_NAME(names, name) find_name(names, sizeof(names) / sizeof((names)[0]), name)

static const char *const decay_names[] = {
    [LR_DECAY_CONSTANT] = "constant", [LR_DECAY_LINEAR] = "linear",
    [LR_DECAY_COSINE] = "cosine",     [LR_DECAY_INVERSE_SQUARE_ROOT] = "inverse-square-root",
    [LR_DECAY_WSD] = "WSD",
};

static const char *const wsd_decay_names[] = {
    [LR_WSD_DECAY_EXPONENTIAL] = "exponential",
    [LR_WSD_DECAY_LINEAR] = "linear",
    [LR_WSD_DECAY_COSINE] = "cosine",
    [LR_WSD_DECAY_MINUS_SQRT] = "minus_sqrt",
};

static const char *const weight_decay_names[] = {
    [LR_WEIGHT_DECAY_CONSTANT] = "constant",
    [LR_WEIGHT_DECAY_LINEAR] = "linear",
    [LR_WEIGHT_DECAY_COSINE] = "cosine",
};

/* The lengths of the schedule, all in samples. */
static enum status plan_rate_lengths(struct train_options *options, struct lr_schedule *schedule)
{
    double batch = (double)options->global_batch_size;

    if (options->train_samples > 0) {
        if (options->lr_decay_samples == 0) {
            options->lr_decay_samples = options->train_samples;
        }
        schedule->decay_samples = (double)options->lr_decay_samples;
        schedule->warmup_samples = (double)options->lr_warmup_samples;
        schedule->wsd_samples = (double)options->lr_wsd_decay_samples;
        schedule->weight_decay_samples = (double)options->train_samples;
    } else {
        if (options->lr_decay_iters == 0) {
            options->lr_decay_iters = options->train_iters;
        }
        schedule->decay_samples = (double)options->lr_decay_iters * batch;
        schedule->warmup_samples = (double)options->lr_warmup_iters * batch;
        schedule->wsd_samples = (double)options->lr_wsd_decay_iters * batch;
        schedule->weight_decay_samples = (double)options->train_iters * batch;
    }
    if (options->lr_warmup_fraction > 0) {
        if (schedule->warmup_samples > 0) {
            return FAIL(STATUS_USAGE,
                        "--lr-warmup-fraction %g and a warm-up of %.0f samples exclude each other",
                        options->lr_warmup_fraction, schedule->warmup_samples);
        }
        schedule->warmup_samples = options->lr_warmup_fraction * schedule->decay_samples;
    }
    return STATUS_OK;
}

static enum status check_rates(const struct train_options *options,
                               const struct lr_schedule *schedule)
{
    if (schedule->warmup_samples >= schedule->decay_samples) {
        return FAIL(STATUS_USAGE,
                    "the learning rate's warm-up of %.0f samples is not shorter than its decay of "
                    "%.0f",
                    schedule->warmup_samples, schedule->decay_samples);
    }
    if (schedule->decay == LR_DECAY_WSD &&
        (schedule->wsd_samples == 0 || schedule->wsd_samples > schedule->decay_samples)) {
        return FAIL(STATUS_USAGE,
                    "--lr-decay-style WSD needs --lr-wsd-decay-iters or -samples from 1 to its "
                    "whole length (they make %.0f of %.0f samples)",
                    schedule->wsd_samples, schedule->decay_samples);
    }
    if (options->min_lr > options->lr) {
        return FAIL(STATUS_USAGE, "--min-lr %g is more than --lr %g", options->min_lr, options->lr);
    }
    if (options->lr_warmup_init > options->lr) {
        return FAIL(STATUS_USAGE, "--lr-warmup-init %g is more than --lr %g",
                    options->lr_warmup_init, options->lr);
    }
    return STATUS_OK;
}

/* A constant decay has one number, any other two. */
static enum status plan_weight_decay(struct train_options *options, struct lr_schedule *schedule)
{
    bool has_ends = options->given[TRAIN_OPTION_start_weight_decay] &&
                    options->given[TRAIN_OPTION_end_weight_decay];
    bool has_an_end = options->given[TRAIN_OPTION_start_weight_decay] ||
                      options->given[TRAIN_OPTION_end_weight_decay];

    schedule->weight_decay = FIND_NAME(weight_decay_names, options->weight_decay_incr_style);
    if (schedule->weight_decay == LR_WEIGHT_DECAY_CONSTANT) {
        if (has_an_end && (options->start_weight_decay != options->weight_decay ||
                           options->end_weight_decay != options->weight_decay)) {
            return FAIL(STATUS_USAGE,
                        "--start-weight-decay %g and --end-weight-decay %g need a "
                        "--weight-decay-incr-style: linear or cosine",
                        options->start_weight_decay, options->end_weight_decay);
        }
        options->start_weight_decay = options->end_weight_decay = options->weight_decay;
    } else if (!has_ends) {
        return FAIL(STATUS_USAGE,
                    "--weight-decay-incr-style %s needs --start-weight-decay and "
                    "--end-weight-decay",
                    options->weight_decay_incr_style);
    }
    if (options->end_weight_decay < options->start_weight_decay) {
        return FAIL(STATUS_USAGE, "--end-weight-decay %g is less than --start-weight-decay %g",
                    options->end_weight_decay, options->start_weight_decay);
    }
    schedule->weight_decay_first = options->start_weight_decay;
    schedule->weight_decay_last = options->end_weight_decay;
    return STATUS_OK;
}

static enum status plan_schedule(struct train_options *options, struct lr_schedule *out_schedule)
{
    enum status st = STATUS_OK;
    struct lr_schedule schedule = {
        .decay = FIND_NAME(decay_names, options->lr_decay_style),
        .wsd_decay = FIND_NAME(wsd_decay_names, options->lr_wsd_decay_style),
        .max = options->lr,
        .min = options->min_lr,
        .warmup_init = options->lr_warmup_init,
    };

    TRY(st, plan_rate_lengths(options, &schedule), done);
    TRY(st, check_rates(options, &schedule), done);
    TRY(st, plan_weight_decay(options, &schedule), done);
    *out_schedule = schedule;
done:
    return st;
}

static enum status check_files(struct train_options *options)
{
    bool saves = options->save[0] != 0;

    if (saves && options->save_interval == 0) {
        return FAIL(STATUS_USAGE, "--save '%s' needs a --save-interval above 0", options->save);
    }
    if (!saves && options->save_interval > 0) {
        return FAIL(STATUS_USAGE, "--save-interval %lld needs a directory: --save",
                    (long long)options->save_interval);
    }
    if (options->keep_every > 0 && options->keep_last == 0) {
        options->keep_last = 1;
    }
    if (options->keep_every > 0 && (!saves || options->keep_every % options->save_interval != 0)) {
        return FAIL(STATUS_USAGE, "--keep-every %lld is not a multiple of --save-interval %lld",
                    (long long)options->keep_every, (long long)options->save_interval);
    }
    if (options->finetune && (options->load[0] == 0 || strcmp(options->load, options->save) == 0)) {
        return FAIL(STATUS_USAGE, "--finetune needs a --load, and a --save '%s' that is another",
                    options->save);
    }
    if (options->override_opt_param_scheduler && options->use_checkpoint_opt_param_scheduler) {
        return FAIL(STATUS_USAGE, "--override-opt-param-scheduler and "
                                  "--use-checkpoint-opt-param-scheduler exclude each other");
    }
    if (options->ckpt_step >= 0 && options->load[0] == 0) {
        return FAIL(STATUS_USAGE, "--ckpt-step %lld needs a directory: --load",
                    (long long)options->ckpt_step);
    }
    if (options->from_scratch && (options->ckpt_step >= 0 || options->exit_on_missing_checkpoint)) {
        return FAIL(STATUS_USAGE,
                    "--from-scratch excludes --ckpt-step and --exit-on-missing-checkpoint");
    }
    return STATUS_OK;
}

enum status train_options_resolve(struct train_options *options, int world_size,
                                  struct train_plan *out_plan)
{
    enum status st = STATUS_OK;
    struct train_plan plan = {0};

    TRY(st, check_model(options), done);
    TRY(st, plan_layout(options, world_size, &plan.layout), done);
    TRY(st, plan_batch(options, &plan), done);
    TRY(st, plan_length(options, &plan), done);
    TRY(st, plan_schedule(options, &plan.schedule), done);
    TRY(st, train_data_check(options), done);
    TRY(st, check_files(options), done);
    plan.model = (struct gpt_config){
        .layers = (int)options->num_layers,
        .hidden = (int)options->hidden_size,
        .heads = (int)options->num_attention_heads,
        .ffn_hidden = (int)options->ffn_hidden_size,
        .vocab = options->vocab_size,
        .vocab_divisor = (int)options->make_vocab_size_divisible_by,
        .max_positions = (int)options->max_position_embeddings,
        .sequence = (int)options->seq_length,
        .micro_batch = (int)options->micro_batch_size,
        .untied = options->untie_embeddings_and_output_weights,
        .sequence_parallel = options->sequence_parallel && options->tensor_model_parallel_size > 1,
        .attention_dropout = (float)options->attention_dropout,
        .hidden_dropout = (float)options->hidden_dropout,
        .layernorm_epsilon = (float)options->norm_epsilon,
        .init_std = (float)options->init_method_std,
        .seed = (uint64_t)options->seed,
    };
    TRY(st, train_layout_resolve(options, &plan), done);
    *out_plan = plan;
done:
    return st;
}
