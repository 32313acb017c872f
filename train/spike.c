/* Leaps of the loss; see spike.h. */
#include "train/spike.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/mem.h"

#define APART 2.0 /* one rank's loss over the others' mean that makes it the cause */

double spike_add(struct spike_window *window, double loss)
{
    size_t count = window->count < SPIKE_WINDOW ? (size_t)window->count : SPIKE_WINDOW;
    double sum = 0, squares = 0, deviations = 0;

    for (size_t i = 0; i < count; i++) {
        sum += window->losses[i];
    }
    double mean = count > 0 ? sum / (double)count : 0;
    for (size_t i = 0; i < count; i++) {
        squares += (window->losses[i] - mean) * (window->losses[i] - mean);
    }
    if (count >= SPIKE_WINDOW_MIN && squares > 0) {
        deviations = (loss - mean) / sqrt(squares / (double)count);
    }
    window->losses[window->count % SPIKE_WINDOW] = loss;
    window->count++;
    return deviations;
}

/* What one rank tells the others. */
struct share {
    double loss;
    uint64_t first_sample;
    double norm; /* of the largest gradient among its slices */
    char tensor[GPT_PARAM_NAME_MAX];
};

static enum status find_largest(struct grads *grads, struct share *share)
{
    enum status st = STATUS_OK;
    const float *grad = gpt_grad_data(grads->gpt);

    for (size_t i = 0; i < grads->plan.segment_count; i++) {
        const struct grads_segment *segment = &grads->plan.segments[i];
        double sum = 0;
        TRY(st,
            grads->device->ops->sum_of_squares(grads->device, grad + segment->begin, segment->count,
                                               &sum),
            done);
        if (sqrt(sum) > share->norm) {
            share->norm = sqrt(sum);
            memcpy(share->tensor, gpt_params(grads->gpt)[segment->param].name,
                   sizeof(share->tensor));
        }
    }
done:
    return st;
}

static void explain(const struct share *all, size_t size, char out_text[SPIKE_TEXT_MAX])
{
    double sum = 0, count = 0;
    size_t loudest = 0, steepest = 0;

    for (size_t rank = 0; rank < size; rank++) {
        sum += all[rank].loss >= 0 ? all[rank].loss : 0;
        count += all[rank].loss >= 0 ? 1 : 0;
        loudest = all[rank].loss > all[loudest].loss ? rank : loudest;
        steepest = all[rank].norm > all[steepest].norm ? rank : steepest;
    }
    double others = count > 1 ? (sum - all[loudest].loss) / (count - 1) : 0;
    if (count > 1 && all[loudest].loss > APART * others) {
        snprintf(out_text, SPIKE_TEXT_MAX,
                 "its data: rank %zu has %.4g from sample %" PRIu64 " on, the others have %.4g",
                 loudest, all[loudest].loss, all[loudest].first_sample, others);
    } else {
        snprintf(out_text, SPIKE_TEXT_MAX,
                 "%s; the largest gradient is that of '%s' on rank %zu, norm %.4g",
                 count > 1 ? "its weights, since no rank's samples stand out"
                           : "its weights or its data",
                 all[steepest].tensor, steepest, all[steepest].norm);
    }
}

enum status spike_explain(const struct spike_case *in, char out_text[SPIKE_TEXT_MAX])
{
    enum status st = STATUS_OK;
    size_t size = (size_t)comm_size(in->world);
    struct share *all = NULL;
    size_t *byte_counts = NULL;

    TRY(st, mem_alloc(&all, size, sizeof(*all)), done);
    TRY(st, mem_alloc(&byte_counts, size, sizeof(*byte_counts)), done);
    for (size_t rank = 0; rank < size; rank++) {
        byte_counts[rank] = sizeof(*all);
    }
    struct share *mine = &all[comm_rank(in->world)];
    mine->loss = in->loss;
    mine->first_sample = in->first_sample;
    TRY(st, find_largest(in->grads, mine), done);
    TRY(st, comm_all_gather(in->world, all, byte_counts), done);
    explain(all, size, out_text);
done:
    mem_free(&all);
    mem_free(&byte_counts);
    return st;
}
