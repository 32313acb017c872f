/* LayerNorm, alone and behind a residual with dropout, one row at a time in cache. */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "train/device/device_cpu.h"

/* Mean and 1 / sqrt(variance + epsilon) in two passes: no cancellation. */
CPU_INLINE void normalize_row(float *out, float *out_mean, float *out_rstd, const float *x,
                              const float *weight, const float *bias, int C, float epsilon)
{
    float sum = 0.0f, squares = 0.0f;

#pragma omp simd reduction(+ : sum)
    for (int c = 0; c < C; c++) {
        sum += x[c];
    }
    float mean = sum / (float)C;
#pragma omp simd reduction(+ : squares)
    for (int c = 0; c < C; c++) {
        float d = x[c] - mean;
        squares += d * d;
    }
    float rstd = 1.0f / sqrtf(squares / (float)C + epsilon);
#pragma omp simd
    for (int c = 0; c < C; c++) {
        out[c] = (x[c] - mean) * rstd * weight[c] + bias[c];
    }
    *out_mean = mean;
    *out_rstd = rstd;
}

CPU_KERNEL static void norm_row(float *out, float *mean, float *rstd, const float *x,
                                const float *weight, const float *bias, int C, float epsilon)
{
    normalize_row(out, mean, rstd, x, weight, bias, C, epsilon);
}

/* `factors` and `x_bias` may be NULL. */
CPU_KERNEL static void residual_row(float *out, const float *residual, const float *x,
                                    const float *x_bias, const float *factors, int C)
{
    if (x_bias != NULL && factors == NULL) {
#pragma omp simd
        for (int c = 0; c < C; c++) {
            out[c] = residual[c] + (x[c] + x_bias[c]);
        }
        return;
    }
#pragma omp simd
    for (int c = 0; c < C; c++) {
        float y = x[c] + (x_bias != NULL ? x_bias[c] : 0.0f);
        out[c] = residual[c] + y * (factors != NULL ? factors[c] : 1.0f);
    }
}

enum status cpu_layernorm_forward(struct device *device, float *out, float *mean, float *rstd,
                                  const float *x, const float *weight, const float *bias, int R,
                                  int C, float epsilon)
{
    int threads = cpu_threads(device, (size_t)R * (size_t)C);

#pragma omp parallel for num_threads(threads) schedule(static)
    for (int r = 0; r < R; r++) {
        size_t at = (size_t)r * (size_t)C;
        norm_row(out + at, &mean[r], &rstd[r], x + at, weight, bias, C, epsilon);
    }
    return STATUS_OK;
}

enum status cpu_residual_layernorm_forward(struct device *device, float *residual_out, float *out,
                                           float *mean, float *rstd, const float *residual,
                                           const float *x, const float *x_bias, const float *weight,
                                           const float *bias, int R, int C, float epsilon,
                                           const struct device_dropout *dropout)
{
    int threads = cpu_threads(device, (size_t)R * (size_t)C);
    bool drops = dropout->probability > 0.0f;
    float *factors = NULL;
    enum status st = STATUS_OK;

    TRY(st, cpu_workspace(device, (size_t)threads * (size_t)C * sizeof(float), &factors), done);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int r = 0; r < R; r++) {
        size_t at = (size_t)r * (size_t)C;
        float *row = factors + (size_t)omp_get_thread_num() * (size_t)C;

        if (drops) {
            cpu_dropout_row(row, dropout, dropout->first_sample + (uint64_t)(r / dropout->T), 0,
                            dropout->position + (uint32_t)(r % dropout->T), C);
        }
        residual_row(residual_out + at, residual + at, x + at, x_bias, drops ? row : NULL, C);
        if (out != NULL) {
            norm_row(out + at, &mean[r], &rstd[r], residual_out + at, weight, bias, C, epsilon);
        }
    }
done:
    return st;
}

/* One row: dx += ..., and the row's part of the sums for weight and bias.
 * With g = dout * weight and h = (x - mean) * rstd:  dx = rstd * (g - mean(g) - h * mean(g h)). */
CPU_KERNEL static void norm_backward_row(float *dx, float *dweight, float *dbias, const float *dout,
                                         const float *x, const float *weight, float mean,
                                         float rstd, int C)
{
    float sum = 0.0f, product = 0.0f;

#pragma omp simd reduction(+ : sum, product)
    for (int c = 0; c < C; c++) {
        float h = (x[c] - mean) * rstd;
        float g = dout[c] * weight[c];

        sum += g;
        product += g * h;
        dweight[c] += dout[c] * h;
        dbias[c] += dout[c];
    }
    sum /= (float)C;
    product /= (float)C;
#pragma omp simd
    for (int c = 0; c < C; c++) {
        float h = (x[c] - mean) * rstd;
        dx[c] += rstd * (dout[c] * weight[c] - sum - h * product);
    }
}

CPU_KERNEL static void add_block(float *to, const float *from, int count)
{
#pragma omp simd
    for (int c = 0; c < count; c++) {
        to[c] += from[c];
    }
}

enum status cpu_layernorm_backward(struct device *device, float *dx, float *dweight, float *dbias,
                                   const float *dout, const float *x, const float *weight,
                                   const float *mean, const float *rstd, int R, int C)
{
    int threads = cpu_threads(device, (size_t)R * (size_t)C);
    size_t width = (size_t)C;
    float *sums = NULL; /* [CPU_SUM_BLOCKS, 2, C] */
    enum status st = STATUS_OK;

    TRY(st, cpu_workspace(device, CPU_SUM_BLOCKS * 2 * width * sizeof(float), &sums), done);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int block = 0; block < CPU_SUM_BLOCKS; block++) {
        struct cpu_range rows = cpu_share((size_t)R, 1, block, CPU_SUM_BLOCKS);
        float *block_dweight = sums + (size_t)block * 2 * width;

        memset(block_dweight, 0, 2 * width * sizeof(float));
        for (size_t r = rows.begin; r < rows.end; r++) {
            norm_backward_row(dx + r * width, block_dweight, block_dweight + width,
                              dout + r * width, x + r * width, weight, mean[r], rstd[r], C);
        }
    }
    for (int block = 0; block < CPU_SUM_BLOCKS; block++) {
        add_block(dweight, sums + (size_t)block * 2 * width, C);
        add_block(dbias, sums + ((size_t)block * 2 + 1) * width, C);
    }
done:
    return st;
}
