/* Forward of one chunk of a stage.
 *
 * Before it: data/ or the previous stage. After it: gpt_head.c on the last stage, else the next
 * stage; then gpt_backward.c from what the slot keeps.
 *
 * One pass over the residual stream per branch: each branch's end (bias, dropout, residual) is one
 * operation with the norm that follows it, so the norm of layer l + 1 is taken at the end of layer
 * l, the final norm at the end of the last layer.
 */
#include <string.h>

#include "train/model/gpt_state.h"

/* A norm's parameters and where its results go; `out` NULL: none follows. */
struct norm {
    const float *weight, *bias;
    float *out, *mean, *rstd;
};

/* The norm that reads the residual stream before a layer, or behind the chunk's last. */
static struct norm norm_before(const struct gpt *gpt, const struct gpt_slot *slot, int chunk,
                               int layer)
{
    if (layer < (chunk + 1) * gpt->sizes.layers) {
        const struct gpt_layer_acts *acts = &slot->layers[layer];
        return (struct norm){gpt_param_of(gpt, GPT_NORM1_WEIGHT, layer),
                             gpt_param_of(gpt, GPT_NORM1_BIAS, layer), acts->norm1, acts->mean1,
                             acts->rstd1};
    }
    if (gpt_ends(gpt, chunk)) {
        return (struct norm){gpt_param_of(gpt, GPT_NORM_WEIGHT, 0),
                             gpt_param_of(gpt, GPT_NORM_BIAS, 0), slot->norm, slot->mean,
                             slot->rstd};
    }
    return (struct norm){0};
}

/* residual_out = residual + dropout(branch + bias), then the norm. */
static enum status join(struct gpt *gpt, float *residual_out, const float *residual,
                        const float *bias, const struct norm *norm,
                        const struct device_dropout *dropout)
{
    const struct gpt_sizes *n = &gpt->sizes;

    return gpt->device->ops->residual_layernorm_forward(
        gpt->device, residual_out, norm->out, norm->mean, norm->rstd, residual, gpt->branch, bias,
        norm->weight, norm->bias, n->S, n->C, gpt->config.layernorm_epsilon, dropout);
}

enum status gpt_attend(struct gpt *gpt, const struct gpt_slot *slot, const struct gpt_batch *batch,
                       int layer)
{
    const struct gpt_sizes *n = &gpt->sizes;
    const struct gpt_layer_acts *acts = &slot->layers[layer];
    struct device_dropout dropout = gpt_dropout(gpt, batch, layer, GPT_SITE_ATTENTION_PROBABILITY);

    return gpt->device->ops->attention_forward(
        gpt->device, acts->attention, acts->stats, acts->qkv,
        batch->attention_starts != NULL ? slot->attention_starts : NULL, n->B, n->T, n->H_part,
        n->D, &dropout);
}

static enum status attention(struct gpt *gpt, const struct gpt_slot *slot,
                             const struct gpt_batch *batch, int layer)
{
    const struct gpt_sizes *n = &gpt->sizes;
    const struct device_ops *ops = gpt->device->ops;
    const struct gpt_layer_acts *acts = &slot->layers[layer];
    struct device_dropout on_output = gpt_dropout(gpt, batch, layer, GPT_SITE_ATTENTION_OUTPUT);
    struct norm norm2 = {gpt_param_of(gpt, GPT_NORM2_WEIGHT, layer),
                         gpt_param_of(gpt, GPT_NORM2_BIAS, layer), acts->norm2, acts->mean2,
                         acts->rstd2};
    const float *rows = NULL;
    enum status st = STATUS_OK;

    TRY(st, gpt_gather_rows(gpt, acts->norm1, &rows), done);
    TRY(st,
        ops->linear_forward(gpt->device, acts->qkv, 3 * n->C_part, rows, n->C,
                            gpt_param_of(gpt, GPT_QKV_WEIGHT, layer),
                            gpt_param_of(gpt, GPT_QKV_BIAS, layer), n->R, n->C, 3 * n->C_part),
        done);
    TRY(st, gpt_attend(gpt, slot, batch, layer), done);
    TRY(st,
        ops->linear_forward(gpt->device, gpt->branch, n->C, acts->attention, n->C_part,
                            gpt_param_of(gpt, GPT_PROJ_WEIGHT, layer), NULL, n->R, n->C_part, n->C),
        done);
    TRY(st, gpt_sum_rows(gpt, gpt->branch), done);
    TRY(st,
        join(gpt, acts->middle, gpt_layer_input(gpt, slot, layer),
             gpt_param_of(gpt, GPT_PROJ_BIAS, layer), &norm2, &on_output),
        done);
done:
    return st;
}

/* The MLP up to what its second matrix reads. */
static enum status mlp_inside(struct gpt *gpt, const struct gpt_slot *slot, int layer)
{
    const struct gpt_sizes *n = &gpt->sizes;
    const struct device_ops *ops = gpt->device->ops;
    const struct gpt_layer_acts *acts = &slot->layers[layer];
    const float *rows = NULL;
    enum status st = STATUS_OK;

    TRY(st, gpt_gather_rows(gpt, acts->norm2, &rows), done);
    TRY(st,
        ops->linear_forward(gpt->device, acts->fc1, n->F_stride, rows, n->C,
                            gpt_param_of(gpt, GPT_FC1_WEIGHT, layer), NULL, n->R, n->C, n->F_part),
        done);
    TRY(st,
        ops->gelu_forward(gpt->device, acts->gelu, acts->fc1, n->F_stride,
                          gpt_param_of(gpt, GPT_FC1_BIAS, layer), n->R, n->F_part),
        done);
done:
    return st;
}

static enum status mlp(struct gpt *gpt, const struct gpt_slot *slot, const struct gpt_batch *batch,
                       int layer)
{
    const struct gpt_sizes *n = &gpt->sizes;
    const struct gpt_layer_acts *acts = &slot->layers[layer];
    struct device_dropout on_output = gpt_dropout(gpt, batch, layer, GPT_SITE_MLP_OUTPUT);
    struct norm next = norm_before(gpt, slot, layer / n->layers, layer + 1);
    enum status st = STATUS_OK;

    TRY(st, mlp_inside(gpt, slot, layer), done);
    TRY(st,
        gpt->device->ops->linear_forward(gpt->device, gpt->branch, n->C, acts->gelu, n->F_stride,
                                         gpt_param_of(gpt, GPT_FC2_WEIGHT, layer), NULL, n->R,
                                         n->F_part, n->C),
        done);
    TRY(st, gpt_sum_rows(gpt, gpt->branch), done);
    TRY(st,
        join(gpt, acts->output, acts->middle, gpt_param_of(gpt, GPT_FC2_BIAS, layer), &next,
             &on_output),
        done);
done:
    return st;
}

static enum status check_ids(const struct gpt *gpt, const int32_t *ids, const char *what)
{
    for (int r = 0; r < gpt->sizes.R; r++) {
        if (ids[r] < 0 || ids[r] >= gpt->config.vocab) {
            return FAIL(STATUS_BAD_DATA,
                        "%s %d at row %d is not in the vocabulary of %lld: the data was made with "
                        "another tokenizer",
                        what, (int)ids[r], r, (long long)gpt->config.vocab);
        }
    }
    return STATUS_OK;
}

/* Copies where documents begin; false places would lead out of arrays. */
static enum status copy_starts(struct gpt *gpt, int32_t *to, const int32_t *starts)
{
    const struct gpt_sizes *n = &gpt->sizes;

    if (starts == NULL) {
        return STATUS_OK;
    }
    for (int r = 0; r < n->R; r++) {
        CHECK(starts[r] >= 0 && starts[r] <= r % n->T);
    }
    return gpt->device->ops->copy_in(gpt->device, to, starts, (size_t)n->R * sizeof(int32_t));
}

/* Checks and copies the batch to the device, then makes the chunk's input. */
static enum status begin_slot(struct gpt *gpt, int chunk, struct gpt_slot *slot,
                              const struct gpt_batch *batch, const float *input)
{
    const struct gpt_sizes *n = &gpt->sizes;
    const struct device_ops *ops = gpt->device->ops;
    enum status st = STATUS_OK;

    TRY(st, copy_starts(gpt, slot->attention_starts, batch->attention_starts), done);
    if (gpt_ends(gpt, chunk)) {
        TRY(st, check_ids(gpt, batch->labels, "label"), done);
        TRY(st,
            ops->copy_in(gpt->device, slot->labels, batch->labels, (size_t)n->R * sizeof(int32_t)),
            done);
        if (batch->loss_mask != NULL) {
            TRY(st,
                ops->copy_in(gpt->device, slot->mask, batch->loss_mask,
                             (size_t)n->R * sizeof(float)),
                done);
        }
    }
    if (!gpt_begins(gpt, chunk)) {
        TRY(st, ops->copy(gpt->device, slot->input, input, gpt_activation_bytes(gpt)), done);
        goto done;
    }
    struct device_dropout dropout = gpt_dropout(gpt, batch, 0, GPT_SITE_EMBEDDING);
    TRY(st, check_ids(gpt, batch->tokens, "token"), done);
    TRY(st, ops->copy_in(gpt->device, slot->tokens, batch->tokens, (size_t)n->R * sizeof(int32_t)),
        done);
    TRY(st, copy_starts(gpt, slot->position_starts, batch->position_starts), done);
    TRY(st,
        ops->embed_forward(gpt->device, gpt->branch, slot->tokens, gpt_param_of(gpt, GPT_WORD, 0),
                           gpt->stage.tp_rank == 0 ? gpt_param_of(gpt, GPT_POSITION, 0) : NULL,
                           batch->position_starts != NULL ? slot->position_starts : NULL, n->R,
                           n->T, n->C, n->vocab_begin, n->vocab_begin + n->valid),
        done);
    TRY(st, gpt_sum_rows(gpt, gpt->branch), done);
    TRY(st, ops->dropout(gpt->device, slot->input, gpt->branch, n->S, n->C, &dropout), done);
done:
    return st;
}

/* The norm of the stream that enters `layer`, where no branch's end makes it on the way. */
static enum status begin_layers(struct gpt *gpt, const struct gpt_slot *slot, int chunk, int layer)
{
    const struct gpt_sizes *n = &gpt->sizes;
    struct norm first = norm_before(gpt, slot, chunk, layer);

    if (first.out == NULL) {
        return STATUS_OK;
    }
    return gpt->device->ops->layernorm_forward(
        gpt->device, first.out, first.mean, first.rstd,
        n->layers == 0 ? slot->input : gpt_layer_input(gpt, slot, layer), first.weight, first.bias,
        n->S, n->C, gpt->config.layernorm_epsilon);
}

/* The last layer's output was kept, so nothing behind its GELU is needed; and the norm that follows
 * would overwrite the first one of this group. */
enum status gpt_make_again(struct gpt *gpt, const struct gpt_slot *slot,
                           const struct gpt_batch *batch, int layer_begin, int layer_end)
{
    enum status st = STATUS_OK;

    TRY(st, begin_layers(gpt, slot, layer_begin / gpt->sizes.layers, layer_begin), done);
    for (int layer = layer_begin; layer < layer_end; layer++) {
        TRY(st, attention(gpt, slot, batch, layer), done);
        if (layer + 1 < layer_end) {
            TRY(st, mlp(gpt, slot, batch, layer), done);
        } else {
            TRY(st, mlp_inside(gpt, slot, layer), done);
        }
    }
done:
    return st;
}

enum status gpt_forward(struct gpt *gpt, int chunk, int slot_index, const struct gpt_batch *batch,
                        const float *input, float *out_activation, double *out_loss_sum)
{
    int begin = chunk * gpt->sizes.layers;
    const struct device_ops *ops = gpt->device->ops;
    struct gpt_slot *slot = &gpt->slots[slot_index];
    enum status st = STATUS_OK;

    CHECK(slot_index >= 0 && slot_index < gpt->slot_count);
    CHECK(chunk >= 0 && chunk < gpt->sizes.chunks);
    CHECK(gpt_begins(gpt, chunk) || input != NULL);
    CHECK(gpt_ends(gpt, chunk) || out_activation != NULL);
    *out_loss_sum = 0.0;
    TRY(st, begin_slot(gpt, chunk, slot, batch, input), done);
    TRY(st, begin_layers(gpt, slot, chunk, begin), done);
    for (int layer = begin; layer < begin + gpt->sizes.layers; layer++) {
        TRY(st, attention(gpt, slot, batch, layer), done);
        TRY(st, mlp(gpt, slot, batch, layer), done);
    }
    if (gpt_ends(gpt, chunk)) {
        TRY(st, gpt_head_run(gpt, slot, batch, out_loss_sum), done);
    } else {
        TRY(st,
            ops->copy(gpt->device, out_activation, gpt_chunk_output(gpt, slot, chunk),
                      gpt_activation_bytes(gpt)),
            done);
    }
    TRY(st, ops->synchronize(gpt->device), done);
done:
    return st;
}
