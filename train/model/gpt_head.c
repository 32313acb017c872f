/* The end of the model: output matrix, loss and their gradients, by chunks of rows.
 *
 * Before it: the final norm (gpt_forward.c). After it: gpt_backward.c, which starts from
 * slot->dnorm. A chunk's logits [chunk,V_part] are made, turned into their gradient in place and
 * used up before the next chunk, so that [R,V] never exists.
 */
#include <string.h>

#include "train/model/gpt_state.h"

/* losses of `rows` rows; in training `gpt->logits` becomes the gradient. */
static enum status chunk_loss(struct gpt *gpt, struct gpt_slot *slot, const struct gpt_batch *batch,
                              int begin, int rows)
{
    const struct gpt_sizes *n = &gpt->sizes;
    const struct device_ops *ops = gpt->device->ops;
    const int32_t *labels = slot->labels + begin;
    const float *mask = batch->loss_mask != NULL ? slot->mask + begin : NULL;
    float *losses = slot->losses + begin;
    enum status st = STATUS_OK;

    if (gpt->stage.tp_size == 1) {
        return ops->loss_whole(gpt->device, losses, gpt->logits, labels, mask, batch->loss_scale,
                               batch->is_training, rows, n->V_stride, n->valid);
    }
    TRY(st, ops->loss_max(gpt->device, gpt->row_max, gpt->logits, rows, n->V_stride, n->valid),
        done);
    TRY(st, ops->synchronize(gpt->device), done);
    TRY(st, comm_all_reduce(gpt->stage.tp, gpt->row_max, (size_t)rows, COMM_F32, COMM_MAX), done);
    TRY(st,
        ops->loss_sums(gpt->device, gpt->sums, gpt->logits, gpt->row_max, labels, rows, n->V_part,
                       n->valid, n->vocab_begin),
        done);
    TRY(st, gpt_sum_over_tp(gpt, gpt->sums, 2 * (size_t)rows), done);
    TRY(st,
        ops->loss_finish(gpt->device, losses, gpt->logits, gpt->sums, labels, mask,
                         batch->loss_scale, batch->is_training, rows, n->V_stride, n->valid,
                         n->vocab_begin),
        done);
done:
    return st;
}

enum status gpt_head_run(struct gpt *gpt, struct gpt_slot *slot, const struct gpt_batch *batch,
                         double *out_loss_sum)
{
    const struct gpt_sizes *n = &gpt->sizes;
    const struct device_ops *ops = gpt->device->ops;
    enum gpt_tensor output = gpt_output_tensor(gpt);
    const float *weight = gpt_param_of(gpt, output, 0);
    float *dweight = gpt_grad_of(gpt, output, 0);
    float *dnorm = n->S < n->R ? gpt->branch : slot->dnorm; /* [R,C] */
    const float *norm = NULL;
    double sum = 0.0;
    enum status st = STATUS_OK;

    TRY(st, gpt_gather_rows(gpt, slot->norm, &norm), done);
    for (int begin = 0; begin < n->R; begin += n->chunk) {
        int rows = n->R - begin < n->chunk ? n->R - begin : n->chunk;
        size_t at = (size_t)begin * (size_t)n->C;

        TRY(st,
            ops->linear_forward(gpt->device, gpt->logits, n->V_stride, norm + at, n->C, weight,
                                NULL, rows, n->C, n->V_part),
            done);
        TRY(st, chunk_loss(gpt, slot, batch, begin, rows), done);
        if (batch->is_training) {
            TRY(st,
                ops->linear_backward(gpt->device, dnorm + at, n->C, dweight, NULL, gpt->logits,
                                     n->V_stride, norm + at, n->C, weight, rows, n->C, n->V_part),
                done);
        }
    }
    if (batch->is_training) {
        TRY(st, gpt_sum_rows(gpt, dnorm), done);
        if (dnorm != slot->dnorm) {
            TRY(st, ops->copy(gpt->device, slot->dnorm, dnorm, gpt_activation_bytes(gpt)), done);
        }
    }
    TRY(st,
        ops->copy_out(gpt->device, gpt->host_losses, slot->losses, (size_t)n->R * sizeof(float)),
        done);
    for (int r = 0; r < n->R; r++) {
        sum += (double)gpt->host_losses[r];
    }
    *out_loss_sum = sum;
done:
    return st;
}

enum status gpt_token_losses(struct gpt *gpt, int slot, float *out_losses)
{
    CHECK(slot >= 0 && slot < gpt->slot_count && gpt->stage.is_last);
    return gpt->device->ops->copy_out(gpt->device, out_losses, gpt->slots[slot].losses,
                                      (size_t)gpt->sizes.R * sizeof(float));
}

enum status gpt_logits(struct gpt *gpt, int slot, int row_begin, int row_count, float *out_logits)
{
    const struct gpt_sizes *n = &gpt->sizes;
    const struct device_ops *ops = gpt->device->ops;
    const float *weight = NULL, *rows_norm = NULL;
    enum status st = STATUS_OK;

    CHECK(slot >= 0 && slot < gpt->slot_count && gpt->stage.is_last);
    CHECK(row_begin >= 0 && row_count >= 0 && row_begin + row_count <= n->R);
    weight = gpt_param_of(gpt, gpt_output_tensor(gpt), 0);
    TRY(st, gpt_gather_rows(gpt, gpt->slots[slot].norm, &rows_norm), done);
    for (int done_rows = 0; done_rows < row_count; done_rows += n->chunk) {
        int rows = row_count - done_rows < n->chunk ? row_count - done_rows : n->chunk;
        const float *norm = rows_norm + (size_t)(row_begin + done_rows) * (size_t)n->C;

        TRY(st,
            ops->linear_forward(gpt->device, gpt->logits, n->V_stride, norm, n->C, weight, NULL,
                                rows, n->C, n->V_part),
            done);
        for (int r = 0; r < rows; r++) {
            TRY(st,
                ops->copy_out(gpt->device, out_logits + (size_t)(done_rows + r) * (size_t)n->valid,
                              gpt->logits + (size_t)r * (size_t)n->V_stride,
                              (size_t)n->valid * sizeof(float)),
                done);
        }
    }
done:
    return st;
}
