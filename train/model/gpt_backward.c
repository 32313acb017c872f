/* Backward of one chunk of a stage, branch by branch in the reverse order of gpt_forward.c.
 *
 * `dresidual` is the gradient of the residual stream. A branch takes its own gradient from it
 * (through the dropout), and the norm at the branch's begin adds the branch's part back.
 */
#include "train/model/gpt_state.h"

/* The gradient of what joined the residual stream at `site`, all rows: dresidual itself without
 * dropout and sequence parallelism. */
static enum status branch_gradient(struct gpt *gpt, const struct gpt_batch *batch, int layer,
                                   enum gpt_site site, const float **out_gradient)
{
    const struct gpt_sizes *n = &gpt->sizes;
    struct device_dropout dropout = gpt_dropout(gpt, batch, layer, site);

    const float *own = gpt->dresidual;
    enum status st = STATUS_OK;

    if (dropout.probability != 0.0f) {
        TRY(st,
            gpt->device->ops->dropout(gpt->device, gpt->branch, gpt->dresidual, n->S, n->C,
                                      &dropout),
            done);
        own = gpt->branch;
    }
    TRY(st, gpt_gather_rows(gpt, own, out_gradient), done);
done:
    return st;
}

static enum status mlp_backward(struct gpt *gpt, const struct gpt_slot *slot,
                                const struct gpt_batch *batch, int layer)
{
    const struct gpt_sizes *n = &gpt->sizes;
    const struct device_ops *ops = gpt->device->ops;
    const struct gpt_layer_acts *acts = &slot->layers[layer];
    const float *dbranch = NULL, *rows = NULL;
    enum status st = STATUS_OK;

    TRY(st, branch_gradient(gpt, batch, layer, GPT_SITE_MLP_OUTPUT, &dbranch), done);
    TRY(st,
        ops->linear_backward(
            gpt->device, gpt->wide, n->F_stride, gpt_grad_of(gpt, GPT_FC2_WEIGHT, layer),
            gpt_grad_of(gpt, GPT_FC2_BIAS, layer), dbranch, n->C, acts->gelu, n->F_stride,
            gpt_param_of(gpt, GPT_FC2_WEIGHT, layer), n->R, n->F_part, n->C),
        done);
    TRY(st,
        ops->gelu_backward(gpt->device, gpt->wide, gpt_grad_of(gpt, GPT_FC1_BIAS, layer), gpt->wide,
                           acts->fc1, n->F_stride, gpt_param_of(gpt, GPT_FC1_BIAS, layer), n->R,
                           n->F_part),
        done);
    TRY(st, gpt_gather_rows(gpt, acts->norm2, &rows), done);
    TRY(st,
        ops->linear_backward(gpt->device, gpt->dinput, n->C,
                             gpt_grad_of(gpt, GPT_FC1_WEIGHT, layer), NULL, gpt->wide, n->F_stride,
                             rows, n->C, gpt_param_of(gpt, GPT_FC1_WEIGHT, layer), n->R, n->C,
                             n->F_part),
        done);
    TRY(st, gpt_sum_rows(gpt, gpt->dinput), done);
    TRY(st,
        ops->layernorm_backward(
            gpt->device, gpt->dresidual, gpt_grad_of(gpt, GPT_NORM2_WEIGHT, layer),
            gpt_grad_of(gpt, GPT_NORM2_BIAS, layer), gpt->dinput, acts->middle,
            gpt_param_of(gpt, GPT_NORM2_WEIGHT, layer), acts->mean2, acts->rstd2, n->S, n->C),
        done);
done:
    return st;
}

static enum status attention_backward(struct gpt *gpt, const struct gpt_slot *slot,
                                      const struct gpt_batch *batch, int layer)
{
    const struct gpt_sizes *n = &gpt->sizes;
    const struct device_ops *ops = gpt->device->ops;
    const struct gpt_layer_acts *acts = &slot->layers[layer];
    struct device_dropout on_scores =
        gpt_dropout(gpt, batch, layer, GPT_SITE_ATTENTION_PROBABILITY);
    const float *dbranch = NULL, *rows = NULL;
    enum status st = STATUS_OK;

    if (gpt->config.recompute == GPT_RECOMPUTE_SELECTIVE) {
        TRY(st, gpt_attend(gpt, slot, batch, layer), done);
    }
    TRY(st, branch_gradient(gpt, batch, layer, GPT_SITE_ATTENTION_OUTPUT, &dbranch), done);
    TRY(st,
        ops->linear_backward(
            gpt->device, gpt->dattention, n->C_part, gpt_grad_of(gpt, GPT_PROJ_WEIGHT, layer),
            gpt_grad_of(gpt, GPT_PROJ_BIAS, layer), dbranch, n->C, acts->attention, n->C_part,
            gpt_param_of(gpt, GPT_PROJ_WEIGHT, layer), n->R, n->C_part, n->C),
        done);
    TRY(st,
        ops->attention_backward(gpt->device, gpt->wide, gpt->dattention, acts->attention,
                                acts->stats, acts->qkv,
                                batch->attention_starts != NULL ? slot->attention_starts : NULL,
                                n->B, n->T, n->H_part, n->D, &on_scores),
        done);
    TRY(st, gpt_gather_rows(gpt, acts->norm1, &rows), done);
    TRY(st,
        ops->linear_backward(
            gpt->device, gpt->dinput, n->C, gpt_grad_of(gpt, GPT_QKV_WEIGHT, layer),
            gpt_grad_of(gpt, GPT_QKV_BIAS, layer), gpt->wide, 3 * n->C_part, rows, n->C,
            gpt_param_of(gpt, GPT_QKV_WEIGHT, layer), n->R, n->C, 3 * n->C_part),
        done);
    TRY(st, gpt_sum_rows(gpt, gpt->dinput), done);
    TRY(st,
        ops->layernorm_backward(
            gpt->device, gpt->dresidual, gpt_grad_of(gpt, GPT_NORM1_WEIGHT, layer),
            gpt_grad_of(gpt, GPT_NORM1_BIAS, layer), gpt->dinput, gpt_layer_input(gpt, slot, layer),
            gpt_param_of(gpt, GPT_NORM1_WEIGHT, layer), acts->mean1, acts->rstd1, n->S, n->C),
        done);
done:
    return st;
}

/* dresidual at the chunk's end. */
static enum status start(struct gpt *gpt, int chunk, const struct gpt_slot *slot,
                         const float *grad_output)
{
    const struct gpt_sizes *n = &gpt->sizes;
    const struct device_ops *ops = gpt->device->ops;
    size_t bytes = gpt_activation_bytes(gpt);
    enum status st = STATUS_OK;

    if (!gpt_ends(gpt, chunk)) {
        return ops->copy(gpt->device, gpt->dresidual, grad_output, bytes);
    }
    TRY(st, ops->fill_zero(gpt->device, gpt->dresidual, bytes), done);
    TRY(st,
        ops->layernorm_backward(
            gpt->device, gpt->dresidual, gpt_grad_of(gpt, GPT_NORM_WEIGHT, 0),
            gpt_grad_of(gpt, GPT_NORM_BIAS, 0), slot->dnorm, gpt_chunk_output(gpt, slot, chunk),
            gpt_param_of(gpt, GPT_NORM_WEIGHT, 0), slot->mean, slot->rstd, n->S, n->C),
        done);
done:
    return st;
}

static enum status embedding_backward(struct gpt *gpt, const struct gpt_slot *slot,
                                      const struct gpt_batch *batch)
{
    const struct gpt_sizes *n = &gpt->sizes;
    const float *dembedding = NULL;
    enum status st = STATUS_OK;

    TRY(st, branch_gradient(gpt, batch, 0, GPT_SITE_EMBEDDING, &dembedding), done);
    TRY(st,
        gpt->device->ops->embed_backward(
            gpt->device, gpt_grad_of(gpt, GPT_WORD, 0), gpt_grad_of(gpt, GPT_POSITION, 0),
            dembedding, slot->tokens, batch->position_starts != NULL ? slot->position_starts : NULL,
            n->R, n->T, n->C, n->vocab_begin, n->vocab_begin + n->valid),
        done);
done:
    return st;
}

enum status gpt_backward(struct gpt *gpt, int chunk, int slot_index, const struct gpt_batch *batch,
                         const float *grad_output, float *out_grad_input)
{
    int first = chunk * gpt->sizes.layers;
    struct gpt_slot *slot = &gpt->slots[slot_index];
    const struct device_ops *ops = gpt->device->ops;
    enum status st = STATUS_OK;

    CHECK(slot_index >= 0 && slot_index < gpt->slot_count && batch->is_training);
    CHECK(chunk >= 0 && chunk < gpt->sizes.chunks);
    CHECK(gpt_ends(gpt, chunk) || grad_output != NULL);
    CHECK(gpt_begins(gpt, chunk) || out_grad_input != NULL);
    TRY(st, start(gpt, chunk, slot, grad_output), done);
    for (int layer = first + gpt->sizes.layers - 1; layer >= first; layer--) {
        if (gpt_ends_group(&gpt->sizes, layer)) {
            int begin = first + (layer - first) / gpt->sizes.group * gpt->sizes.group;
            TRY(st, gpt_make_again(gpt, slot, batch, begin, layer + 1), done);
        }
        TRY(st, mlp_backward(gpt, slot, batch, layer), done);
        TRY(st, attention_backward(gpt, slot, batch, layer), done);
    }
    if (gpt_begins(gpt, chunk)) {
        TRY(st, embedding_backward(gpt, slot, batch), done);
    } else {
        TRY(st, ops->copy(gpt->device, out_grad_input, gpt->dresidual, gpt_activation_bytes(gpt)),
            done);
    }
    TRY(st, ops->synchronize(gpt->device), done);
done:
    return st;
}
