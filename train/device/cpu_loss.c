/* Softmax cross-entropy, row by row. A row of logits is read from cache after the product that
 * wrote it; sums go by tiles in float and over tiles in double. */
#include <math.h>

#include "train/device/cpu_math.h"
#include "train/device/device_cpu.h"

#define TILE 512

CPU_KERNEL static float max_of_row(const float *x, int count)
{
    float max = x[0];

#pragma omp simd reduction(max : max)
    for (int i = 0; i < count; i++) {
        max = x[i] > max ? x[i] : max;
    }
    return max;
}

/* The sum of exp(x - max); with `keep` x becomes exp(x - max). */
CPU_KERNEL static double exponentials_of_row(float *x, float max, int count, bool keep)
{
    double total = 0.0;

    for (int at = 0; at < count; at += TILE) {
        int width = count - at < TILE ? count - at : TILE;
        float *tile = x + at;
        float sum = 0.0f;

        if (keep) {
#pragma omp simd reduction(+ : sum)
            for (int i = 0; i < width; i++) {
                float e = cpu_exp(tile[i] - max);
                tile[i] = e;
                sum += e;
            }
        } else {
#pragma omp simd reduction(+ : sum)
            for (int i = 0; i < width; i++) {
                sum += cpu_exp(tile[i] - max);
            }
        }
        total += (double)sum;
    }
    return total;
}

CPU_KERNEL static void scale_row(float *x, float a, int count)
{
#pragma omp simd
    for (int i = 0; i < count; i++) {
        x[i] *= a;
    }
}

/* exp(logit - max) to (softmax - onehot) * factor; `label` outside 0 .. valid: another part's. */
static void finish_row(float *row, float sum, float factor, int64_t label, int V_part, int valid)
{
    scale_row(row, factor / sum, valid);
    if (label >= 0 && label < valid) {
        row[label] -= factor;
    }
    for (int v = valid; v < V_part; v++) {
        row[v] = 0.0f;
    }
}

enum status cpu_loss_max(struct device *device, float *row_max, const float *logits, int R,
                         int V_part, int valid)
{
    int threads = cpu_threads(device, (size_t)R * (size_t)V_part);

#pragma omp parallel for num_threads(threads) schedule(static)
    for (int r = 0; r < R; r++) {
        /* A part of nothing but padding must not win the maximum. */
        row_max[r] = valid > 0 ? max_of_row(logits + (size_t)r * (size_t)V_part, valid) : -INFINITY;
    }
    return STATUS_OK;
}

enum status cpu_loss_sums(struct device *device, float *sums, float *logits, const float *row_max,
                          const int32_t *labels, int R, int V_part, int valid, int64_t vocab_begin)
{
    int threads = cpu_threads(device, (size_t)R * (size_t)V_part);

#pragma omp parallel for num_threads(threads) schedule(static)
    for (int r = 0; r < R; r++) {
        float *row = logits + (size_t)r * (size_t)V_part;
        int64_t label = labels[r] - vocab_begin;

        sums[R + r] = label >= 0 && label < valid ? row[label] - row_max[r] : 0.0f;
        sums[r] = (float)exponentials_of_row(row, row_max[r], valid, true);
    }
    return STATUS_OK;
}

enum status cpu_loss_finish(struct device *device, float *losses, float *logits, const float *sums,
                            const int32_t *labels, const float *mask, float scale,
                            bool want_gradient, int R, int V_part, int valid, int64_t vocab_begin)
{
    int threads = cpu_threads(device, (size_t)R * (size_t)V_part);

#pragma omp parallel for num_threads(threads) schedule(static)
    for (int r = 0; r < R; r++) {
        float weight = mask != NULL ? mask[r] : 1.0f;

        losses[r] = weight * (float)(log((double)sums[r]) - (double)sums[R + r]);
        if (want_gradient) {
            finish_row(logits + (size_t)r * (size_t)V_part, sums[r], weight * scale,
                       labels[r] - vocab_begin, V_part, valid);
        }
    }
    return STATUS_OK;
}

enum status cpu_loss_whole(struct device *device, float *losses, float *logits,
                           const int32_t *labels, const float *mask, float scale,
                           bool want_gradient, int R, int V_part, int valid)
{
    int threads = cpu_threads(device, (size_t)R * (size_t)V_part);

#pragma omp parallel for num_threads(threads) schedule(static)
    for (int r = 0; r < R; r++) {
        float *row = logits + (size_t)r * (size_t)V_part;
        float weight = mask != NULL ? mask[r] : 1.0f;
        float max = max_of_row(row, valid);
        double label_logit = (double)row[labels[r]] - (double)max;
        double sum = exponentials_of_row(row, max, valid, want_gradient);

        losses[r] = weight * (float)(log(sum) - label_logit);
        if (want_gradient) {
            finish_row(row, (float)sum, weight * scale, labels[r], V_part, valid);
        }
    }
    return STATUS_OK;
}
