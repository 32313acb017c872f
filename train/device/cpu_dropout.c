/* Dropout masks, and dropout of hidden states. The draw itself is fixed by philox.h. */
#include <omp.h>
#include <string.h>

#include "train/device/device_cpu.h"
#include "train/device/philox.h"

/* Sixteen counters side by side: words[4][16] of the counters first .. first + 15. */
CPU_INLINE void draw_group(uint32_t words[4][PHILOX_LANES], uint32_t first, uint32_t position,
                           uint64_t sample, const uint32_t key[2])
{
    uint32_t k0 = key[0], k1 = key[1];

    for (int j = 0; j < PHILOX_LANES; j++) {
        words[0][j] = first + (uint32_t)j;
        words[1][j] = position;
        words[2][j] = (uint32_t)sample;
        words[3][j] = (uint32_t)(sample >> 32);
    }
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
#pragma omp simd
        for (int j = 0; j < PHILOX_LANES; j++) {
            uint64_t p0 = (uint64_t)PHILOX_M0 * words[0][j];
            uint64_t p1 = (uint64_t)PHILOX_M1 * words[2][j];

            words[0][j] = (uint32_t)(p1 >> 32) ^ words[1][j] ^ k0;
            words[1][j] = (uint32_t)p1;
            words[2][j] = (uint32_t)(p0 >> 32) ^ words[3][j] ^ k1;
            words[3][j] = (uint32_t)p0;
        }
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
}

CPU_KERNEL static void fill_factors(float *factors, const uint32_t key[2], uint32_t threshold,
                                    float kept, uint32_t position, uint64_t sample, int count)
{
    uint32_t words[4][PHILOX_LANES];
    float group[PHILOX_ROW_GROUP];

    for (int c = 0; c < count; c += PHILOX_ROW_GROUP) {
        draw_group(words, (uint32_t)(c / 4), position, sample, key);
        float *to = count - c < PHILOX_ROW_GROUP ? group : factors + c;
        for (int k = 0; k < 4; k++) {
#pragma omp simd
            for (int j = 0; j < PHILOX_LANES; j++) {
                to[k * PHILOX_LANES + j] = words[k][j] < threshold ? 0.0f : kept;
            }
        }
        if (to == group) {
            memcpy(factors + c, group, (size_t)(count - c) * sizeof(float));
        }
    }
}

void cpu_dropout_row(float *factors, const struct device_dropout *dropout, uint64_t sample,
                     uint32_t head, uint32_t position, int count)
{
    uint32_t key[2];

    philox_key(dropout->seed, dropout->step, (uint64_t)dropout->layer << 32 | dropout->site, head,
               key);
    fill_factors(factors, key, (uint32_t)((double)dropout->probability * 4294967296.0),
                 1.0f / (1.0f - dropout->probability), position, sample, count);
}

CPU_KERNEL static void multiply(float *out, const float *x, const float *factors, int count)
{
#pragma omp simd
    for (int c = 0; c < count; c++) {
        out[c] = x[c] * factors[c];
    }
}

enum status cpu_dropout(struct device *device, float *out, const float *x, int R, int C,
                        const struct device_dropout *dropout)
{
    int threads = cpu_threads(device, (size_t)R * (size_t)C);
    float *factors = NULL;
    enum status st = STATUS_OK;

    if (dropout->probability == 0.0f) {
        return out == x ? STATUS_OK
                        : device->ops->copy(device, out, x, (size_t)R * (size_t)C * sizeof(*x));
    }
    TRY(st, cpu_workspace(device, (size_t)threads * (size_t)C * sizeof(float), &factors), done);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int r = 0; r < R; r++) {
        float *row = factors + (size_t)omp_get_thread_num() * (size_t)C;
        size_t at = (size_t)r * (size_t)C;

        cpu_dropout_row(row, dropout, dropout->first_sample + (uint64_t)(r / dropout->T), 0,
                        dropout->position + (uint32_t)(r % dropout->T), C);
        multiply(out + at, x + at, row, C);
    }
done:
    return st;
}
