/* XXH3, and the layout-free state hash; see hash.h. */
#include "ckpt/base/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "ckpt/base/status.h"

#define STATE_PRIME ((UINT64_C(1) << 61) - 1)
/* Elements whose products' 32-bit halves add up in 64 bits without overflow. */
#define STATE_BLOCK ((uint64_t)1 << 30)

/* One copy per instruction set, chosen when the program starts. Sanitizers run before the choice
 * can be made, so there only the plain one is built. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define STATE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define STATE_CLONES
#endif

uint64_t hash_bytes64(const void *bytes, size_t count)
{
    return XXH3_64bits(bytes, count);
}

struct hash128 hash_bytes128(const void *bytes, size_t count)
{
    XXH128_hash_t hash = XXH3_128bits(bytes, count);

    return (struct hash128){hash.high64, hash.low64};
}

struct hash_stream *hash_stream_create(void)
{
    XXH3_state_t *state = XXH3_createState(); /* aligned as XXH3 wants it */

    if (state != NULL) {
        (void)XXH3_128bits_reset(state);
    }
    return (struct hash_stream *)state;
}

void hash_stream_add(struct hash_stream *stream, const void *bytes, size_t count)
{
    (void)XXH3_128bits_update((XXH3_state_t *)stream, bytes, count);
}

struct hash128 hash_stream_get(const struct hash_stream *stream)
{
    XXH128_hash_t hash = XXH3_128bits_digest((const XXH3_state_t *)stream);

    return (struct hash128){hash.high64, hash.low64};
}

void hash_stream_destroy(struct hash_stream *stream)
{
    (void)XXH3_freeState((XXH3_state_t *)stream);
}

void hash128_format(struct hash128 hash, char out_text[HASH_TEXT_MAX])
{
    (void)snprintf(out_text, HASH_TEXT_MAX, "%016" PRIx64 "%016" PRIx64, hash.high, hash.low);
}

int hash128_parse(const char *text, struct hash128 *out_hash)
{
    uint64_t words[2] = {0, 0};

    if (strlen(text) != 32) {
        return -1;
    }
    for (int i = 0; i < 32; i++) {
        const char *digits = "0123456789abcdef";
        const char *at = strchr(digits, text[i]);
        if (at == NULL) {
            return -1;
        }
        words[i / 16] = words[i / 16] << 4 | (uint64_t)(at - digits);
    }
    *out_hash = (struct hash128){words[0], words[1]};
    return 0;
}

/* 61-bit numbers modulo 2^61 - 1. */
static uint64_t reduce(uint64_t value)
{
    value = (value & STATE_PRIME) + (value >> 61);
    return value >= STATE_PRIME ? value - STATE_PRIME : value;
}

/* value * 2^32 mod p. */
static uint64_t shift32(uint64_t value)
{
    value = reduce(value);
    return reduce((value >> 29) + ((value & ((UINT64_C(1) << 29) - 1)) << 32));
}

uint64_t hash_state_add(uint64_t a, uint64_t b)
{
    return reduce(reduce(a) + reduce(b));
}

/* The weighted sum of `count` <= STATE_BLOCK words whose first has global index `first`. A product
 * of 32 and 61 bits is two of 32 x 32, and each is added up by halves, so that the loop has only
 * 64-bit additions and multiplications and becomes vector code. */
STATE_CLONES
static uint64_t sum_row(uint64_t id, uint64_t first, const uint32_t *words, uint64_t count)
{
    uint64_t low0 = 0, low1 = 0, high0 = 0, high1 = 0;

    for (uint64_t i = 0; i < count; i++) {
        uint64_t z = id + (first + i + 1) * UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        z ^= z >> 31;
        z = (z & STATE_PRIME) + (z >> 61);
        z = z >= STATE_PRIME ? z - STATE_PRIME : z;
        uint64_t low = (uint64_t)words[i] * (z & UINT32_MAX);
        uint64_t high = (uint64_t)words[i] * (z >> 32);
        low0 += low & UINT32_MAX;
        low1 += low >> 32;
        high0 += high & UINT32_MAX;
        high1 += high >> 32;
    }
    /* low0 + (low1 + high0) 2^32 + high1 2^64 */
    uint64_t sum = hash_state_add(low0, shift32(low1));
    sum = hash_state_add(sum, shift32(high0));
    return hash_state_add(sum, shift32(shift32(high1)));
}

uint64_t hash_state_box(const char *tensor_name, int dims, const uint64_t *shape,
                        const uint64_t *offset, const uint64_t *extent, const uint32_t *words)
{
    uint64_t id = hash_bytes64(tensor_name, strlen(tensor_name));
    uint64_t at[HASH_DIMS_MAX] = {0}; /* position in the box, without the last dimension */
    uint64_t rows = 1, sum = 0;

    CHECK(dims >= 1 && dims <= HASH_DIMS_MAX);
    for (int d = 0; d < dims; d++) {
        CHECK(offset[d] <= shape[d] && extent[d] <= shape[d] - offset[d]);
        rows *= d < dims - 1 ? extent[d] : 1;
    }
    uint64_t columns = extent[dims - 1];
    for (uint64_t row = 0; row < rows; row++) {
        uint64_t first = 0;
        for (int d = 0; d < dims; d++) {
            first = first * shape[d] + offset[d] + at[d];
        }
        for (uint64_t begin = 0; begin < columns; begin += STATE_BLOCK) {
            uint64_t count = columns - begin < STATE_BLOCK ? columns - begin : STATE_BLOCK;
            sum = hash_state_add(sum,
                                 sum_row(id, first + begin, words + row * columns + begin, count));
        }
        for (int d = dims - 2; d >= 0 && ++at[d] == extent[d]; d--) {
            at[d] = 0;
        }
    }
    return sum;
}

uint64_t hash_state_finish(uint64_t sum, uint64_t step)
{
    uint64_t bound[2] = {reduce(sum), step};

    return hash_bytes64(bound, sizeof bound);
}
