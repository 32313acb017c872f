/* Folds the members' values in rank order. See fold.h.
 *
 * Block by block, so that the running sum stays in the nearest cache while one source after the
 * other is added; the inner loops are plain, for the compiler to make vectors of.
 */
#include "train/comm/fold.h"

#include <string.h>

#define BLOCK_BYTES 4096

#define SUM_OF(a, b) ((a) + (b))
/* b != b: a NaN wins; for integers never true. */
#define MAX_OF(a, b) ((b) > (a) || (b) != (b) ? (b) : (a))
#define MIN_OF(a, b) ((b) < (a) || (b) != (b) ? (b) : (a))

#define DEFINE_STEP(name, type, OP)                                                                \
    static void name(void *restrict sum, const void *restrict source, size_t count)                \
    {                                                                                              \
        type *restrict a = sum;                                                                    \
        const type *restrict b = source;                                                           \
                                                                                                   \
        for (size_t i = 0; i < count; i++) {                                                       \
            a[i] = OP(a[i], b[i]);                                                                 \
        }                                                                                          \
    }

/* A signed sum wraps round, like the unsigned one of the same bits. */
DEFINE_STEP(sum_f32, float, SUM_OF)
DEFINE_STEP(sum_f64, double, SUM_OF)
DEFINE_STEP(sum_u64, uint64_t, SUM_OF)
DEFINE_STEP(sum_i32, uint32_t, SUM_OF)
DEFINE_STEP(max_f32, float, MAX_OF)
DEFINE_STEP(max_f64, double, MAX_OF)
DEFINE_STEP(max_u64, uint64_t, MAX_OF)
DEFINE_STEP(max_i32, int32_t, MAX_OF)
DEFINE_STEP(min_f32, float, MIN_OF)
DEFINE_STEP(min_f64, double, MIN_OF)
DEFINE_STEP(min_u64, uint64_t, MIN_OF)
DEFINE_STEP(min_i32, int32_t, MIN_OF)

typedef void (*step_fn)(void *restrict sum, const void *restrict source, size_t count);

static const struct {
    size_t bytes;
    step_fn steps[3]; /* by enum comm_op */
} types[] = {
    [COMM_F32] = {sizeof(float), {sum_f32, max_f32, min_f32}},
    [COMM_F64] = {sizeof(double), {sum_f64, max_f64, min_f64}},
    [COMM_U64] = {sizeof(uint64_t), {sum_u64, max_u64, min_u64}},
    [COMM_I32] = {sizeof(int32_t), {sum_i32, max_i32, min_i32}},
};

void fold_members(const void *const *sources, int source_count, size_t count, enum comm_type type,
                  enum comm_op op, void *out, void *out_copy)
{
    _Alignas(64) unsigned char sum[BLOCK_BYTES];
    step_fn step = types[type].steps[op];
    size_t bytes = count * types[type].bytes;

    for (size_t at = 0; at < bytes; at += BLOCK_BYTES) {
        size_t part = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;

        memcpy(sum, (const unsigned char *)sources[0] + at, part);
        for (int i = 1; i < source_count; i++) {
            step(sum, (const unsigned char *)sources[i] + at, part / types[type].bytes);
        }
        memcpy((unsigned char *)out + at, sum, part);
        if (out_copy != NULL) {
            memcpy((unsigned char *)out_copy + at, sum, part);
        }
    }
}
