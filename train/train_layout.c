/* How a training is cut and what it keeps: rules, one function for each flag's family. */
#include "train/train_layout.h"

#include <stdio.h>
#include <string.h>

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

enum status train_layout_resolve(struct train_options *options, struct train_plan *plan)
{
    enum status st = STATUS_OK;

    TRY(st, plan_recompute(options, &plan->model), done);
done:
    return st;
}
