/* Gradients after backward: how they are cut over DP (ZeRO-1), summed, measured and clipped.
 *
 * Before it: pipeline (each DP rank has added its micro-batches into the model's flat gradients).
 * After it: optimizer, which updates this rank's slice.
 *
 * The flat arrays are cut into buckets: the word embedding is one by itself, what stands before and
 * after it the others. Each bucket is cut over DP into contiguous slices of near-equal size that
 * end at row boundaries of tensors (a slice may be empty), so that what a rank owns of a tensor is
 * a box. The embedding's bucket is cut alike on the first and last stage, so their slices of a tied
 * embedding can be summed rank by rank.
 */
#ifndef TRAIN_OPTIM_GRADS_H
#define TRAIN_OPTIM_GRADS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"
#include "train/device/device.h"
#include "train/model/gpt.h"
#include "train/parallel/topology.h"

#define GRADS_EMBEDDING "embedding.word_embeddings.weight"
#define GRADS_BUCKETS_MAX 3

struct grads_bucket {
    size_t begin, count; /* elements of the flat arrays */
    size_t *counts;      /* [dp] elements of each rank's slice */
    size_t own_begin;    /* of this rank's slice; counts[dp_rank] long */
    bool is_embedding;
};

/* Rows of one tensor inside this rank's slices. */
struct grads_segment {
    size_t param;              /* index into gpt_params */
    size_t row_begin, row_end; /* local rows, padding included */
    size_t begin, count;       /* elements of the flat arrays */
    size_t moment_begin;       /* in the optimizer's arrays */
};

struct grads_plan {
    struct grads_bucket buckets[GRADS_BUCKETS_MAX];
    size_t bucket_count;
    struct grads_segment *segments; /* in the order of the flat arrays */
    size_t segment_count;
    size_t moment_count; /* elements of each of the optimizer's arrays */
};

/* The cut for one of `dp_size` ranks. Pure but for memory. */
enum status grads_plan_init(struct grads_plan *plan, const struct gpt_param *params,
                            size_t param_count, size_t flat_count, int dp_size, int dp_rank)
    STATUS_MUST_CHECK;
void grads_plan_deinit(struct grads_plan *plan);

struct grads {
    struct gpt *gpt;
    struct device *device;
    const struct topology *topology;
    struct grads_plan plan;
};

enum status grads_init(struct grads *grads, struct gpt *gpt, struct device *device,
                       const struct topology *topology) STATUS_MUST_CHECK;
void grads_deinit(struct grads *grads); /* takes zeroed storage */

/* Before the first micro-batch of a step. */
enum status grads_zero(struct grads *grads) STATUS_MUST_CHECK;
/* Sums over DP, then the tied embedding over first and last stage. Afterwards only this rank's
 * slices hold gradients. Collective. */
enum status grads_reduce(struct grads *grads) STATUS_MUST_CHECK;
/* This rank's part of the squared norm: summed over all ranks, each parameter counts once. */
enum status grads_sum_of_squares(struct grads *grads, double *out_sum) STATUS_MUST_CHECK;
/* The same of the parameters. */
enum status grads_sum_of_param_squares(struct grads *grads, double *out_sum) STATUS_MUST_CHECK;
/* How many gradient elements of this rank are 0; padding and copies do not count. */
enum status grads_count_zeros(struct grads *grads, uint64_t *out_count) STATUS_MUST_CHECK;
/* What the gradients are to be multiplied by, as torch's clip_grad_norm_; `limit` 0: 1. */
float grads_clip_scale(double norm, double limit);

#endif
