/* Operations on one element at a time. */
#include <omp.h>
#include <string.h>

#include "train/device/cpu_math.h"
#include "train/device/device_cpu.h"

CPU_KERNEL static void gelu_row(float *out, const float *x, const float *bias, int N)
{
#pragma omp simd
    for (int n = 0; n < N; n++) {
        out[n] = cpu_gelu(x[n] + bias[n]);
    }
}

enum status cpu_gelu_forward(struct device *device, float *out, const float *x, int stride,
                             const float *bias, int R, int N)
{
    int threads = cpu_threads(device, (size_t)R * (size_t)N);

#pragma omp parallel for num_threads(threads) schedule(static)
    for (int r = 0; r < R; r++) {
        gelu_row(out + (size_t)r * (size_t)stride, x + (size_t)r * (size_t)stride, bias, N);
    }
    return STATUS_OK;
}

CPU_KERNEL static void gelu_backward_row(float *dx, float *dbias, const float *dout, const float *x,
                                         const float *bias, int N)
{
#pragma omp simd
    for (int n = 0; n < N; n++) {
        float d = dout[n] * cpu_gelu_slope(x[n] + bias[n]);

        dx[n] = d;
        dbias[n] += d;
    }
}

CPU_KERNEL static void add_part(float *y, const float *x, size_t count)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++) {
        y[i] += x[i];
    }
}

enum status cpu_gelu_backward(struct device *device, float *dx, float *dbias, const float *dout,
                              const float *x, int stride, const float *bias, int R, int N)
{
    int threads = cpu_threads(device, (size_t)R * (size_t)N);
    size_t width = (size_t)N;
    float *sums = NULL; /* [CPU_SUM_BLOCKS, N] */
    enum status st = STATUS_OK;

    TRY(st, cpu_workspace(device, CPU_SUM_BLOCKS * width * sizeof(float), &sums), done);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int block = 0; block < CPU_SUM_BLOCKS; block++) {
        struct cpu_range rows = cpu_share((size_t)R, 1, block, CPU_SUM_BLOCKS);
        float *block_sums = sums + (size_t)block * width;

        memset(block_sums, 0, width * sizeof(float));
        for (size_t r = rows.begin; r < rows.end; r++) {
            size_t at = r * (size_t)stride;
            gelu_backward_row(dx + at, block_sums, dout + at, x + at, bias, N);
        }
    }
    for (int block = 0; block < CPU_SUM_BLOCKS; block++) {
        add_part(dbias, sums + (size_t)block * width, width);
    }
done:
    return st;
}

enum status cpu_add(struct device *device, float *y, const float *x, size_t count)
{
    int threads = cpu_threads(device, count);

#pragma omp parallel num_threads(threads)
    {
        struct cpu_range part = cpu_share(count, 16, omp_get_thread_num(), omp_get_num_threads());
        add_part(y + part.begin, x + part.begin, part.end - part.begin);
    }
    return STATUS_OK;
}

CPU_KERNEL static void scale_part(float *y, float a, size_t count)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++) {
        y[i] *= a;
    }
}

enum status cpu_scale(struct device *device, float *y, float a, size_t count)
{
    int threads = cpu_threads(device, count);

#pragma omp parallel num_threads(threads)
    {
        struct cpu_range part = cpu_share(count, 16, omp_get_thread_num(), omp_get_num_threads());
        scale_part(y + part.begin, a, part.end - part.begin);
    }
    return STATUS_OK;
}
