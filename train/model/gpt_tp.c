/* What the ranks of a TP group tell each other in forward and backward: sums of partial results,
 * and with sequence parallelism the rows of the other ranks' positions.
 *
 * Before and after it: gpt_forward.c, gpt_head.c, gpt_backward.c; for gpt_sum_gradients: grads.
 * A sample's rows are one collective, so that all rows stay in the order of samples and positions.
 */
#include "train/model/gpt_state.h"

enum status gpt_sum_over_tp(struct gpt *gpt, float *data, size_t count)
{
    enum status st = STATUS_OK;

    if (gpt->stage.tp_size > 1) {
        TRY(st, gpt->device->ops->synchronize(gpt->device), done);
        TRY(st, comm_all_reduce(gpt->stage.tp, data, count, COMM_F32, COMM_SUM), done);
    }
done:
    return st;
}

enum status gpt_gather_rows(struct gpt *gpt, const float *own, const float **out_rows)
{
    const struct gpt_sizes *n = &gpt->sizes;
    const struct device_ops *ops = gpt->device->ops;
    size_t part = (size_t)n->T_part * (size_t)n->C, sample = (size_t)n->T * (size_t)n->C;
    enum status st = STATUS_OK;

    *out_rows = own;
    if (n->S == n->R) {
        return STATUS_OK;
    }
    for (size_t b = 0; b < (size_t)n->B; b++) {
        TRY(st,
            ops->copy(gpt->device, gpt->gathered + b * sample + (size_t)gpt->stage.tp_rank * part,
                      own + b * part, part * sizeof(float)),
            done);
    }
    TRY(st, ops->synchronize(gpt->device), done);
    for (size_t b = 0; b < (size_t)n->B; b++) {
        TRY(st, comm_all_gather(gpt->stage.tp, gpt->gathered + b * sample, gpt->part_bytes), done);
    }
    *out_rows = gpt->gathered;
done:
    return st;
}

/* Parts only move to where no part that is still needed lies: no further back than its own. */
enum status gpt_sum_rows(struct gpt *gpt, float *data)
{
    const struct gpt_sizes *n = &gpt->sizes;
    const struct device_ops *ops = gpt->device->ops;
    size_t part = (size_t)n->T_part * (size_t)n->C, sample = (size_t)n->T * (size_t)n->C;
    enum status st = STATUS_OK;

    if (n->S == n->R) {
        return gpt_sum_over_tp(gpt, data, (size_t)n->R * (size_t)n->C);
    }
    TRY(st, ops->synchronize(gpt->device), done);
    for (size_t b = 0; b < (size_t)n->B; b++) {
        const float *own = data + b * sample + (size_t)gpt->stage.tp_rank * part;
        TRY(st, comm_reduce_scatter(gpt->stage.tp, data + b * sample, gpt->part_counts, COMM_F32),
            done);
        if (own != data + b * part) {
            TRY(st, ops->copy(gpt->device, data + b * part, own, part * sizeof(float)), done);
        }
    }
done:
    return st;
}

/* Weight and bias of a norm lie side by side. */
static enum status sum_norm(struct gpt *gpt, enum gpt_tensor weight, enum gpt_tensor bias,
                            int layer)
{
    float *begin = gpt_grad_of(gpt, weight, layer);
    float *end = gpt_grad_of(gpt, bias, layer) + gpt->sizes.C;

    return gpt_sum_over_tp(gpt, begin, (size_t)(end - begin));
}

enum status gpt_sum_gradients(struct gpt *gpt)
{
    const struct gpt_sizes *n = &gpt->sizes;
    enum status st = STATUS_OK;

    if (n->S == n->R) {
        return STATUS_OK;
    }
    for (int layer = 0; layer < n->chunks * n->layers; layer++) {
        TRY(st, sum_norm(gpt, GPT_NORM1_WEIGHT, GPT_NORM1_BIAS, layer), done);
        TRY(st, sum_norm(gpt, GPT_NORM2_WEIGHT, GPT_NORM2_BIAS, layer), done);
    }
    if (gpt->stage.is_last) {
        TRY(st, sum_norm(gpt, GPT_NORM_WEIGHT, GPT_NORM_BIAS, 0), done);
    }
done:
    return st;
}
