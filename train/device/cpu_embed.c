/* The embedding: rows of a table by token, and the sum back into it. */
#include <omp.h>
#include <string.h>

#include "train/device/device_cpu.h"

/* Which row of the position table row r of the batch takes. */
static size_t position_of(const int32_t *starts, int r, int T)
{
    return (size_t)(r % T - (starts != NULL ? starts[r] : 0));
}

CPU_KERNEL static void add_row(float *to, const float *from, size_t count)
{
#pragma omp simd
    for (size_t c = 0; c < count; c++) {
        to[c] += from[c];
    }
}

enum status cpu_embed_forward(struct device *device, float *out, const int32_t *tokens,
                              const float *word, const float *position, const int32_t *starts,
                              int R, int T, int C, int64_t vocab_begin, int64_t vocab_end)
{
    int threads = cpu_threads(device, (size_t)R * (size_t)C);
    size_t width = (size_t)C;

#pragma omp parallel for num_threads(threads) schedule(static)
    for (int r = 0; r < R; r++) {
        float *row = out + (size_t)r * width;
        int64_t token = tokens[r];

        if (token >= vocab_begin && token < vocab_end) {
            memcpy(row, word + (size_t)(token - vocab_begin) * width, width * sizeof(float));
        } else {
            memset(row, 0, width * sizeof(float));
        }
        if (position != NULL) {
            add_row(row, position + position_of(starts, r, T) * width, width);
        }
    }
    return STATUS_OK;
}

/* The threads share the columns, so that each sum is taken in row order. */
enum status cpu_embed_backward(struct device *device, float *dword, float *dposition,
                               const float *dout, const int32_t *tokens, const int32_t *starts,
                               int R, int T, int C, int64_t vocab_begin, int64_t vocab_end)
{
    int threads = cpu_threads(device, (size_t)R * (size_t)C);
    size_t width = (size_t)C;

#pragma omp parallel num_threads(threads)
    {
        struct cpu_range part = cpu_share(width, 16, omp_get_thread_num(), omp_get_num_threads());
        size_t count = part.end - part.begin;

        for (int r = 0; r < R; r++) {
            const float *row = dout + (size_t)r * width + part.begin;
            int64_t token = tokens[r];

            if (token >= vocab_begin && token < vocab_end) {
                add_row(dword + (size_t)(token - vocab_begin) * width + part.begin, row, count);
            }
            if (dposition != NULL) {
                add_row(dposition + position_of(starts, r, T) * width + part.begin, row, count);
            }
        }
    }
    return STATUS_OK;
}
