/* How a training is cut and what it keeps: rules, one function for each flag's family. */
#include "train/train_layout.h"

#include <stdio.h>
#include <string.h>

#include "train/parallel/topology.h"

static void set_default(char value[OPTIONS_TEXT_MAX], const char *text)
{
    if (strcmp(value, "none") == 0) {
        snprintf(value, OPTIONS_TEXT_MAX, "%s", text);
    }
}

/* The old flag of Megatron 2, by the rules of Megatron 3. */
static void spell_out_checkpoint_activations(struct train_options *options)
{
    if (!options->checkpoint_activations || options->recompute_activations) {
        return;
    }
    set_default(options->recompute_granularity, "full");
    if (strcmp(options->recompute_granularity, "full") == 0) {
        set_default(options->recompute_method, "uniform");
        if (options->recompute_num_layers == 0) {
            options->recompute_num_layers = 1;
        }
    }
}

static enum status check_sequence_parallel(const struct train_options *options,
                                           const struct train_plan *plan)
{
    if (plan->model.sequence_parallel && plan->model.sequence % plan->layout.tp != 0) {
        return FAIL(STATUS_USAGE,
                    "--seq-length %d is not a multiple of --tensor-model-parallel-size %d, which "
                    "--sequence-parallel needs",
                    plan->model.sequence, plan->layout.tp);
    }
    if (plan->model.sequence_parallel && options->distribute_saved_activations) {
        return FAIL(STATUS_USAGE, "--sequence-parallel and --distribute-saved-activations exclude "
                                  "each other: what is saved is distributed already");
    }
    return STATUS_OK;
}

static enum status check_distribution(const struct train_options *options)
{
    if (!options->distribute_saved_activations) {
        return STATUS_OK;
    }
    if (options->tensor_model_parallel_size == 1) {
        return FAIL(STATUS_USAGE, "--distribute-saved-activations needs a "
                                  "--tensor-model-parallel-size of more than 1");
    }
    if (strcmp(options->recompute_granularity, "full") != 0) {
        return FAIL(STATUS_USAGE,
                    "--distribute-saved-activations needs --recompute-granularity full, not %s",
                    options->recompute_granularity);
    }
    return STATUS_OK;
}

/* --recompute-activations is Megatron's short form of the selective granularity. */
static enum status plan_recompute(struct train_options *options, struct gpt_config *model)
{
    const char *method = options->recompute_method;
    bool has_method = strcmp(method, "none") != 0;
    long long layers = (long long)options->recompute_num_layers;

    if (options->recompute_activations) {
        snprintf(options->recompute_granularity, sizeof(options->recompute_granularity),
                 "selective");
    }
    if (strcmp(options->recompute_granularity, "full") != 0) {
        if (has_method || layers > 0) {
            return FAIL(STATUS_USAGE,
                        "--recompute-method %s and --recompute-num-layers %lld are for "
                        "--recompute-granularity full, not %s",
                        method, layers, options->recompute_granularity);
        }
        model->recompute = strcmp(options->recompute_granularity, "selective") == 0
                               ? GPT_RECOMPUTE_SELECTIVE
                               : GPT_RECOMPUTE_NONE;
        return STATUS_OK;
    }
    if (!has_method || layers < 1) {
        return FAIL(STATUS_USAGE,
                    "--recompute-granularity full needs --recompute-method uniform or block (not "
                    "%s) and --recompute-num-layers of at least 1 (not %lld)",
                    method, layers);
    }
    if (layers > options->num_layers) {
        return FAIL(STATUS_USAGE, "--recompute-num-layers %lld is more than --num-layers %lld",
                    layers, (long long)options->num_layers);
    }
    model->recompute = strcmp(method, "block") == 0 ? GPT_RECOMPUTE_BLOCK : GPT_RECOMPUTE_UNIFORM;
    model->recompute_layers = (int)layers;
    return STATUS_OK;
}

/* As in Megatron, the first and the last stage may hold fewer layers, or more, than those between
 * them, which share the rest evenly. */
static enum status plan_stages(const struct train_options *options, struct train_plan *plan)
{
    long long first = (long long)options->decoder_first_pipeline_num_layers;
    long long last = (long long)options->decoder_last_pipeline_num_layers;
    long long rest = plan->model.layers - first - last;
    int between = plan->layout.pp - (first > 0) - (last > 0);

    plan->first_stage_layers = (int)first;
    plan->last_stage_layers = (int)last;
    if (first == 0 && last == 0) {
        return STATUS_OK;
    }
    if (plan->layout.pp == 1) {
        return FAIL(
            STATUS_USAGE,
            "--decoder-first-pipeline-num-layers %lld and --decoder-last-pipeline-num-layers "
            "%lld need a --pipeline-model-parallel-size of more than 1",
            first, last);
    }
    if (between == 0 ? rest != 0 : rest < between) {
        return FAIL(
            STATUS_USAGE,
            "--decoder-first-pipeline-num-layers %lld and --decoder-last-pipeline-num-layers "
            "%lld leave %lld of --num-layers %d to the %d other stages",
            first, last, rest, plan->model.layers, between);
    }
    return STATUS_OK;
}

/* The layers [*out_begin, *out_end) of a stage if it were not cut into chunks. */
static void stage_layers(const struct train_plan *plan, int stage, int *out_begin, int *out_end)
{
    int first = plan->first_stage_layers, last = plan->last_stage_layers;
    int layers = plan->model.layers, stages = plan->layout.pp;

    if (first > 0 && stage == 0) {
        *out_begin = 0;
        *out_end = first;
    } else if (last > 0 && stage == stages - 1) {
        *out_begin = layers - last;
        *out_end = layers;
    } else {
        topology_stage_layers(layers - first - last, stages - (first > 0) - (last > 0),
                              stage - (first > 0), out_begin, out_end);
        *out_begin += first;
        *out_end += first;
    }
}

static enum status count_chunks(const struct train_options *options, const struct train_plan *plan,
                                long long *out_chunks)
{
    long long each = (long long)options->num_layers_per_virtual_pipeline_stage;
    long long layers = (long long)options->num_layers, stages = plan->layout.pp;

    *out_chunks = (long long)options->num_virtual_stages_per_pipeline_rank;
    if (each == 0) {
        return STATUS_OK;
    }
    if (*out_chunks > 0) {
        return FAIL(STATUS_USAGE,
                    "--num-layers-per-virtual-pipeline-stage %lld and "
                    "--num-virtual-stages-per-pipeline-rank %lld exclude each other",
                    each, *out_chunks);
    }
    if (plan->first_stage_layers > 0 || plan->last_stage_layers > 0) {
        return FAIL(STATUS_USAGE,
                    "--num-layers-per-virtual-pipeline-stage %lld needs stages of equal size: with "
                    "--decoder-first-pipeline-num-layers %d and --decoder-last-pipeline-num-layers "
                    "%d give --num-virtual-stages-per-pipeline-rank",
                    each, plan->first_stage_layers, plan->last_stage_layers);
    }
    if (layers % (stages * each) != 0) {
        return FAIL(STATUS_USAGE,
                    "--num-layers %lld is not a multiple of --pipeline-model-parallel-size %lld x "
                    "--num-layers-per-virtual-pipeline-stage %lld",
                    layers, stages, each);
    }
    *out_chunks = layers / stages / each;
    return STATUS_OK;
}

/* Megatron's interleaved schedule: each stage holds several chunks of layers. */
static enum status plan_chunks(const struct train_options *options, struct train_plan *plan)
{
    enum status st = STATUS_OK;
    long long chunks = 0;
    int64_t at_once = options->micro_batch_size * plan->layout.dp;

    TRY(st, count_chunks(options, plan, &chunks), done);
    plan->chunks = chunks > 1 ? (int)chunks : 1;
    if (chunks > 0 && plan->layout.pp == 1) {
        return FAIL(STATUS_USAGE,
                    "%lld virtual stages need a --pipeline-model-parallel-size of more than 1",
                    chunks);
    }
    for (int stage = 0; plan->chunks > 1 && stage < plan->layout.pp; stage++) {
        int begin, end;
        stage_layers(plan, stage, &begin, &end);
        if ((end - begin) % plan->chunks != 0) {
            return FAIL(STATUS_USAGE, "%d virtual stages do not divide the %d layers of stage %d",
                        plan->chunks, end - begin, stage);
        }
    }
    for (size_t i = 0; plan->chunks > 1 && i < plan->batch.count; i++) {
        int64_t micro_batches = plan->batch.stages[i].batch / at_once;
        if (micro_batches % plan->layout.pp != 0) {
            return FAIL(STATUS_USAGE,
                        "number of microbatches (%lld) is not divisible by "
                        "pipeline-model-parallel-size (%d) when using interleaved schedule: "
                        "--global-batch-size %lld is %lld x --micro-batch-size %lld x DP %d",
                        (long long)micro_batches, plan->layout.pp,
                        (long long)plan->batch.stages[i].batch, (long long)micro_batches,
                        (long long)options->micro_batch_size, plan->layout.dp);
        }
    }
done:
    return st;
}

struct gpt_stage train_layout_stage(const struct train_plan *plan, struct coords coords,
                                    struct comm *tp)
{
    struct gpt_stage stage = {.chunks = plan->chunks,
                              .chunk_stride = plan->model.layers / plan->chunks,
                              .is_first = coords.pp == 0,
                              .is_last = coords.pp == plan->layout.pp - 1,
                              .tp_rank = coords.tp,
                              .tp_size = plan->layout.tp,
                              .tp = tp};

    /* All stages' layers divide by the chunks, so those before this stage do too. */
    stage_layers(plan, coords.pp, &stage.layer_begin, &stage.layer_end);
    stage.layer_begin /= plan->chunks;
    stage.layer_end /= plan->chunks;
    return stage;
}

enum status train_layout_resolve(struct train_options *options, struct train_plan *plan)
{
    enum status st = STATUS_OK;

    spell_out_checkpoint_activations(options);
    TRY(st, plan_recompute(options, &plan->model), done);
    TRY(st, check_distribution(options), done);
    TRY(st, check_sequence_parallel(options, plan), done);
    TRY(st, plan_stages(options, plan), done);
    TRY(st, plan_chunks(options, plan), done);
done:
    return st;
}
