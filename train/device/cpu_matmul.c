/* Matrix products: oneDNN's sgemm, which picks the vector unit itself. */
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <string.h>

#include "train/device/device_cpu.h"

#define SUM_COLUMNS 64 /* columns summed at once, in registers */
#define SUM_ROWS 64    /* rows added up before they join the total: less rounding */

enum status cpu_gemm(char op_a, char op_b, int M, int N, int K, float alpha, const float *a,
                     int a_stride, const float *b, int b_stride, float beta, float *c, int c_stride)
{
    dnnl_status_t code =
        dnnl_sgemm(op_a, op_b, M, N, K, alpha, a, a_stride, b, b_stride, beta, c, c_stride);

    if (code == dnnl_out_of_memory) {
        return FAIL(STATUS_NO_MEMORY, "no memory for a matrix product of %d x %d x %d", M, N, K);
    }
    if (code != dnnl_success) {
        return FAIL(STATUS_FAILED, "oneDNN's sgemm of %d x %d x %d failed with status %d", M, N, K,
                    (int)code);
    }
    return STATUS_OK;
}

enum status cpu_linear_forward(struct device *device, float *out, int out_stride, const float *x,
                               int x_stride, const float *weight, const float *bias, int R, int K,
                               int N)
{
    int threads = cpu_threads(device, (size_t)R * (size_t)N);

    if (bias != NULL) {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int r = 0; r < R; r++) {
            memcpy(out + (size_t)r * (size_t)out_stride, bias, (size_t)N * sizeof(float));
        }
    }
    return cpu_gemm('N', 'T', R, N, K, 1.0f, x, x_stride, weight, K, bias != NULL ? 1.0f : 0.0f,
                    out, out_stride);
}

CPU_KERNEL static void sum_columns(float *sums, const float *x, int stride, int R, size_t begin,
                                   size_t end)
{
    for (size_t n = begin; n < end; n += SUM_COLUMNS) {
        int width = end - n < SUM_COLUMNS ? (int)(end - n) : SUM_COLUMNS;
        float total[SUM_COLUMNS] = {0};

        for (int r = 0; r < R; r += SUM_ROWS) {
            int last = R - r < SUM_ROWS ? R : r + SUM_ROWS;
            float part[SUM_COLUMNS] = {0};

            for (int i = r; i < last; i++) {
                const float *row = x + (size_t)i * (size_t)stride + n;
#pragma omp simd
                for (int c = 0; c < width; c++) {
                    part[c] += row[c];
                }
            }
            for (int c = 0; c < width; c++) {
                total[c] += part[c];
            }
        }
        for (int c = 0; c < width; c++) {
            sums[n + (size_t)c] += total[c];
        }
    }
}

enum status cpu_linear_backward(struct device *device, float *dx, int dx_stride, float *dweight,
                                float *dbias, const float *dout, int dout_stride, const float *x,
                                int x_stride, const float *weight, int R, int K, int N)
{
    int threads = cpu_threads(device, (size_t)R * (size_t)N);
    enum status st = STATUS_OK;

    if (dx != NULL) {
        TRY(st,
            cpu_gemm('N', 'N', R, K, N, 1.0f, dout, dout_stride, weight, K, 0.0f, dx, dx_stride),
            done);
    }
    TRY(st, cpu_gemm('T', 'N', N, K, R, 1.0f, dout, dout_stride, x, x_stride, 1.0f, dweight, K),
        done);
    if (dbias != NULL) {
#pragma omp parallel num_threads(threads)
        {
            struct cpu_range part =
                cpu_share((size_t)N, SUM_COLUMNS, omp_get_thread_num(), omp_get_num_threads());
            sum_columns(dbias, dout, dout_stride, R, part.begin, part.end);
        }
    }
done:
    return st;
}
