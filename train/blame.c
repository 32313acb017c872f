/* The search for what was not finite first; see blame.h. Sums of squares in double stay finite over
 * any finite float32, so they find every NaN and infinity.
 */
#include "train/blame.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/mem.h"

/* What one rank finds; the smallest (kind, place, rank) is the cause. */
struct finding {
    int64_t kind;
    int64_t place;
    char tensor[GPT_PARAM_NAME_MAX];
};

/* Small for what is late in the model. */
static int64_t place_of(const struct gpt_param *param, size_t index)
{
    static const char layers[] = "decoder.layers.";
    int64_t layer = strncmp(param->name, "embedding.", strlen("embedding.")) == 0 ? 0 : INT32_MAX;

    if (strncmp(param->name, layers, strlen(layers)) == 0) {
        layer = 1 + strtol(param->name + strlen(layers), NULL, 10);
    }
    return -((layer << 32) + (int64_t)index);
}

/* Takes tensor `index` down when `count` elements of it are not all finite. */
static enum status look(const struct grads *grads, size_t index, const float *elements,
                        size_t count, enum blame_kind kind, struct finding *finding)
{
    enum status st = STATUS_OK;
    const struct gpt_param *param = &gpt_params(grads->gpt)[index];
    int64_t place = place_of(param, index);
    double sum = 0;

    TRY(st, grads->device->ops->sum_of_squares(grads->device, elements, count, &sum), done);
    if (!isfinite(sum) && (finding->kind > (int64_t)kind || place < finding->place)) {
        finding->kind = kind;
        finding->place = place;
        memcpy(finding->tensor, param->name, sizeof(finding->tensor));
    }
done:
    return st;
}

/* All of this rank's weights, or gradients before they are summed. */
static enum status look_at_all(const struct grads *grads, const float *flat, enum blame_kind kind,
                               struct finding *finding)
{
    enum status st = STATUS_OK;

    for (size_t i = 0; i < gpt_param_count(grads->gpt); i++) {
        const struct gpt_param *param = &gpt_params(grads->gpt)[i];
        TRY(st, look(grads, i, flat + param->begin, param->rows * param->columns, kind, finding),
            done);
    }
done:
    return st;
}

/* The slices whose sums this rank holds. */
static enum status look_at_slices(const struct grads *grads, struct finding *finding)
{
    enum status st = STATUS_OK;

    for (size_t i = 0; i < grads->plan.segment_count; i++) {
        const struct grads_segment *segment = &grads->plan.segments[i];
        TRY(st,
            look(grads, segment->param, gpt_grad_data(grads->gpt) + segment->begin, segment->count,
                 BLAME_GRADIENT, finding),
            done);
    }
done:
    return st;
}

static bool is_before(const struct finding *a, const struct finding *b)
{
    return a->kind != b->kind ? a->kind < b->kind : a->place < b->place;
}

/* The first of all ranks' findings. */
static enum status agree(struct comm *world, const struct finding *mine, struct blame *out_blame)
{
    enum status st = STATUS_OK;
    size_t size = (size_t)comm_size(world);
    size_t *byte_counts = NULL;
    struct finding *all = NULL;
    size_t first = 0;

    TRY(st, mem_alloc(&byte_counts, size, sizeof(*byte_counts)), done);
    TRY(st, mem_alloc(&all, size, sizeof(*all)), done);
    for (size_t rank = 0; rank < size; rank++) {
        byte_counts[rank] = sizeof(*all);
    }
    all[comm_rank(world)] = *mine;
    TRY(st, comm_all_gather(world, all, byte_counts), done);
    for (size_t rank = 1; rank < size; rank++) {
        first = is_before(&all[rank], &all[first]) ? rank : first;
    }
    out_blame->kind = (enum blame_kind)all[first].kind;
    out_blame->rank = (int)first;
    memcpy(out_blame->tensor, all[first].tensor, sizeof(out_blame->tensor));
done:
    mem_free(&byte_counts);
    mem_free(&all);
    return st;
}

/* The weights are finite everywhere. */
static enum status compute_again(const struct blame_case *in, struct blame *out_blame)
{
    enum status st = STATUS_OK;
    struct finding mine = {.kind = BLAME_NOTHING};
    double loss_sum = 0;

    TRY(st, grads_zero(in->grads), done);
    TRY(st, pipeline_train(in->pipeline, in->batches, &loss_sum), done);
    if (!isfinite(loss_sum)) {
        mine.kind = BLAME_LOSS;
    } else {
        TRY(st, look_at_all(in->grads, gpt_grad_data(in->grads->gpt), BLAME_GRADIENT, &mine), done);
    }
    TRY(st, agree(in->world, &mine, out_blame), done);
done:
    return st;
}

enum status blame_find(const struct blame_case *in, struct blame *out_blame)
{
    enum status st = STATUS_OK;
    struct finding mine = {.kind = BLAME_NOTHING};
    struct blame again = {.kind = BLAME_NOTHING};

    *out_blame = (struct blame){.kind = BLAME_NOTHING};
    TRY(st, look_at_all(in->grads, gpt_param_data(in->grads->gpt), BLAME_WEIGHT, &mine), done);
    if (mine.kind == BLAME_NOTHING && !isfinite(in->loss_sum)) {
        mine.kind = BLAME_LOSS;
    } else if (mine.kind == BLAME_NOTHING) {
        TRY(st, look_at_slices(in->grads, &mine), done);
    }
    TRY(st, agree(in->world, &mine, out_blame), done);
    if (out_blame->kind == BLAME_WEIGHT) {
        goto done;
    }
    TRY(st, compute_again(in, &again), done);
    if (again.kind != BLAME_NOTHING) {
        *out_blame = again;
        out_blame->again = true;
    }
done:
    return st;
}

void blame_format(const struct blame *blame, char *out_text, size_t bytes)
{
    const char *again = blame->again ? ""
                                     : "; computed again it is finite, so a processor or "
                                       "memory is faulty";

    switch (blame->kind) {
    case BLAME_WEIGHT:
        snprintf(out_text, bytes,
                 "the weight '%s', by the update before or a fault of memory; resume from an "
                 "earlier step, with a lower --lr if it comes again",
                 blame->tensor);
        break;
    case BLAME_LOSS:
        snprintf(out_text, bytes,
                 "the loss, of finite weights%s; lower --lr, or pass the samples over by "
                 "--iterations-to-skip",
                 again);
        break;
    case BLAME_GRADIENT:
        snprintf(out_text, bytes,
                 "the gradient of '%s', of a finite loss%s; lower --lr, or pass the samples over "
                 "by --iterations-to-skip",
                 blame->tensor, again);
        break;
    case BLAME_NOTHING:
        snprintf(out_text, bytes, "nothing that is there now: a processor or memory is faulty");
        break;
    }
}
