/* The cut of the flat gradients over DP, their sums and their norm. Before it: pipeline; after it:
 * optimizer. Sums go in rank order and segments in the order of the flat arrays, so the same layout
 * gives the same bits.
 */
#include "train/optim/grads.h"

#include <string.h>

#include "ckpt/base/mem.h"

/* --- the cut ------------------------------------------------------------------------------ */

/* The first place at or after `target` where a slice may end: a row boundary of the tensor that
 * `target` falls into, or the next tensor's begin (alignment gaps go with the tensor before). */
static size_t cut_at(const struct gpt_param *params, size_t first, size_t last, size_t end,
                     size_t target)
{
    for (size_t i = first; i < last; i++) {
        size_t next = i + 1 < last ? params[i + 1].begin : end;
        if (target < next) {
            size_t row = (target - params[i].begin + params[i].columns - 1) / params[i].columns;
            return row < params[i].rows ? params[i].begin + row * params[i].columns : next;
        }
    }
    return end;
}

/* A bucket of the tensors first .. last - 1, which end at element `end`. */
static enum status add_bucket(struct grads_plan *plan, const struct gpt_param *params, size_t first,
                              size_t last, size_t end, int dp_size, int dp_rank)
{
    enum status st = STATUS_OK;
    struct grads_bucket *bucket = &plan->buckets[plan->bucket_count];

    CHECK(plan->bucket_count < GRADS_BUCKETS_MAX);
    plan->bucket_count++;
    bucket->begin = params[first].begin;
    bucket->count = end - bucket->begin;
    bucket->is_embedding = strcmp(params[first].name, GRADS_EMBEDDING) == 0;
    TRY(st, mem_alloc(&bucket->counts, (size_t)dp_size, sizeof(*bucket->counts)), done);

    size_t from = bucket->begin;
    for (int rank = 0; rank < dp_size; rank++) {
        /* In 128 bits, since elements x ranks may not fit 64. */
        size_t share =
            (size_t)((unsigned __int128)bucket->count * ((unsigned)rank + 1) / (unsigned)dp_size);
        size_t to =
            rank + 1 == dp_size ? end : cut_at(params, first, last, end, bucket->begin + share);
        if (rank == dp_rank) {
            bucket->own_begin = from;
        }
        bucket->counts[rank] = to - from;
        from = to;
    }
done:
    return st;
}

/* The rows of tensor `index` inside `bucket`'s own slice, if any. */
static void add_segment(struct grads_plan *plan, const struct grads_bucket *bucket, int dp_rank,
                        const struct gpt_param *params, size_t index)
{
    const struct gpt_param *param = &params[index];
    size_t own_end = bucket->own_begin + bucket->counts[dp_rank];
    size_t end = param->begin + param->rows * param->columns;
    size_t from = param->begin > bucket->own_begin ? param->begin : bucket->own_begin;
    size_t to = end < own_end ? end : own_end;

    if (from >= to) {
        return;
    }
    struct grads_segment *segment = &plan->segments[plan->segment_count++];
    segment->param = index;
    segment->row_begin = (from - param->begin) / param->columns;
    segment->row_end = (to - param->begin) / param->columns;
    segment->begin = from;
    segment->count = to - from;
    segment->moment_begin = plan->moment_count;
    plan->moment_count +=
        (segment->count + GPT_PARAM_ALIGN - 1) / GPT_PARAM_ALIGN * GPT_PARAM_ALIGN;
    CHECK(segment->begin == param->begin + segment->row_begin * param->columns);
    CHECK(segment->count == (segment->row_end - segment->row_begin) * param->columns);
}

enum status grads_plan_init(struct grads_plan *plan, const struct gpt_param *params,
                            size_t param_count, size_t flat_count, int dp_size, int dp_rank)
{
    enum status st = STATUS_OK;

    memset(plan, 0, sizeof(*plan));
    TRY(st, mem_alloc(&plan->segments, param_count, sizeof(*plan->segments)), done);
    for (size_t first = 0, last; first < param_count; first = last) {
        bool is_embedding = strcmp(params[first].name, GRADS_EMBEDDING) == 0;
        last = first + 1;
        while (!is_embedding && last < param_count &&
               strcmp(params[last].name, GRADS_EMBEDDING) != 0) {
            last++;
        }
        size_t end = last < param_count ? params[last].begin : flat_count;
        TRY(st, add_bucket(plan, params, first, last, end, dp_size, dp_rank), done);
        for (size_t i = first; i < last; i++) {
            add_segment(plan, &plan->buckets[plan->bucket_count - 1], dp_rank, params, i);
        }
    }
done:
    if (st != STATUS_OK) {
        grads_plan_deinit(plan);
    }
    return st;
}

void grads_plan_deinit(struct grads_plan *plan)
{
    for (size_t i = 0; i < GRADS_BUCKETS_MAX; i++) {
        mem_free(&plan->buckets[i].counts);
    }
    mem_free(&plan->segments);
}

/* --- the sums ----------------------------------------------------------------------------- */

enum status grads_init(struct grads *grads, struct gpt *gpt, struct device *device,
                       const struct topology *topology)
{
    *grads = (struct grads){.gpt = gpt, .device = device, .topology = topology};
    return grads_plan_init(&grads->plan, gpt_params(gpt), gpt_param_count(gpt), gpt_flat_count(gpt),
                           topology->layout.dp, topology->coords.dp);
}

void grads_deinit(struct grads *grads)
{
    grads_plan_deinit(&grads->plan);
}

enum status grads_zero(struct grads *grads)
{
    return grads->device->ops->fill_zero(grads->device, gpt_grad_data(grads->gpt),
                                         gpt_flat_count(grads->gpt) * sizeof(float));
}

enum status grads_reduce(struct grads *grads)
{
    enum status st = STATUS_OK;
    const struct topology *topology = grads->topology;
    float *grad = gpt_grad_data(grads->gpt);

    TRY(st, gpt_sum_gradients(grads->gpt), done);
    for (size_t i = 0; i < grads->plan.bucket_count; i++) {
        const struct grads_bucket *bucket = &grads->plan.buckets[i];
        TRY(st, comm_reduce_scatter(topology->dp, grad + bucket->begin, bucket->counts, COMM_F32),
            done);
        if (bucket->is_embedding && topology->embedding != NULL) {
            TRY(st,
                comm_all_reduce(topology->embedding, grad + bucket->own_begin,
                                bucket->counts[topology->coords.dp], COMM_F32, COMM_SUM),
                done);
        }
    }
done:
    return st;
}

/* Whether another rank's slices hold the same elements and count them. */
static bool is_counted_elsewhere(const struct grads *grads, const struct gpt_param *param)
{
    return param->tied_copy || (param->tp_replicated && grads->topology->coords.tp > 0);
}

/* Of this rank's slices of a flat array. */
static enum status sum_squares(struct grads *grads, const float *flat, double *out_sum)
{
    enum status st = STATUS_OK;
    double total = 0;

    for (size_t i = 0; i < grads->plan.segment_count; i++) {
        const struct grads_segment *segment = &grads->plan.segments[i];
        double sum = 0;
        if (is_counted_elsewhere(grads, &gpt_params(grads->gpt)[segment->param])) {
            continue;
        }
        TRY(st,
            grads->device->ops->sum_of_squares(grads->device, flat + segment->begin, segment->count,
                                               &sum),
            done);
        total += sum;
    }
    *out_sum = total;
done:
    return st;
}

enum status grads_sum_of_squares(struct grads *grads, double *out_sum)
{
    return sum_squares(grads, gpt_grad_data(grads->gpt), out_sum);
}

enum status grads_sum_of_param_squares(struct grads *grads, double *out_sum)
{
    return sum_squares(grads, gpt_param_data(grads->gpt), out_sum);
}

enum status grads_count_zeros(struct grads *grads, uint64_t *out_count)
{
    enum status st = STATUS_OK;
    const float *grad = gpt_grad_data(grads->gpt);
    float part[1024];
    uint64_t count = 0;

    for (size_t i = 0; i < grads->plan.segment_count; i++) {
        const struct grads_segment *segment = &grads->plan.segments[i];
        const struct gpt_param *param = &gpt_params(grads->gpt)[segment->param];
        size_t rows = param->box.extent[0]; /* without padding */
        size_t end = segment->row_end < rows ? segment->row_end : rows;
        if (is_counted_elsewhere(grads, param) || end <= segment->row_begin) {
            continue;
        }
        size_t left = (end - segment->row_begin) * param->columns;
        for (const float *at = grad + segment->begin; left > 0;) {
            size_t some = left < 1024 ? left : 1024;
            TRY(st, grads->device->ops->copy_out(grads->device, part, at, some * sizeof(float)),
                done);
            for (size_t j = 0; j < some; j++) {
                count += part[j] == 0 ? 1 : 0;
            }
            at += some;
            left -= some;
        }
    }
    *out_count = count;
done:
    return st;
}

float grads_clip_scale(double norm, double limit)
{
    double scale = limit / (norm + 1e-6);

    return limit > 0 && scale < 1 ? (float)scale : 1.0F;
}
