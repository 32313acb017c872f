/* Claims of hash.h: known values, the definition in 128 bits, freedom from layout. */
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/hash.h"
#include "tests/unit/base/base_support.h"

#define PRIME ((UINT64_C(1) << 61) - 1)

Test(hash, bytes_have_xxh3s_published_values)
{
    char text[HASH_TEXT_MAX];

    cr_assert(hash_bytes64("", 0) == UINT64_C(0x2d06800538d394c2));
    hash128_format(hash_bytes128("", 0), text);
    cr_assert_str_eq(text, "99aa06d3014798d86001c324468d497f");
}

Test(hash, pieces_hash_as_the_whole)
{
    enum { COUNT = 100000 };
    unsigned char *bytes = malloc(COUNT);
    uint64_t state = support_seed();

    cr_assert(bytes != NULL);
    for (size_t i = 0; i < COUNT; i++) {
        bytes[i] = (unsigned char)support_random(&state);
    }
    struct hash128 whole = hash_bytes128(bytes, COUNT);
    struct hash_stream *stream = hash_stream_create();
    cr_assert(stream != NULL);
    for (size_t at = 0; at < COUNT;) {
        size_t now = support_random(&state) % 3000;
        now = now < COUNT - at ? now : COUNT - at;
        hash_stream_add(stream, bytes + at, now);
        at += now;
    }
    struct hash128 got = hash_stream_get(stream);
    cr_assert(got.high == whole.high && got.low == whole.low);
    hash_stream_destroy(stream);
    free(bytes);
}

Test(hash, text_goes_there_and_back)
{
    struct hash128 hash = {UINT64_C(0x0123456789abcdef), 42}, back;
    char text[HASH_TEXT_MAX];

    hash128_format(hash, text);
    cr_assert_str_eq(text, "0123456789abcdef000000000000002a");
    cr_assert(hash128_parse(text, &back) == 0 && back.high == hash.high && back.low == hash.low);
    cr_assert(hash128_parse("", &back) == -1);
    cr_assert(hash128_parse("0123456789abcdef000000000000002", &back) == -1);
    cr_assert(hash128_parse("0123456789abcdef000000000000002a0", &back) == -1);
    cr_assert(hash128_parse("0123456789abcdef000000000000002g", &back) == -1);
}

/* The definition in hash.h, word for word. */
static uint64_t naive(const char *name, int dims, const uint64_t *shape, const uint32_t *words)
{
    unsigned __int128 sum = 0;
    uint64_t id = hash_bytes64(name, strlen(name)), count = 1;

    for (int d = 0; d < dims; d++) {
        count *= shape[d];
    }
    for (uint64_t i = 0; i < count; i++) {
        uint64_t z = id + (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
        z ^= z >> 30;
        z *= UINT64_C(0xbf58476d1ce4e5b9);
        z ^= z >> 27;
        z *= UINT64_C(0x94d049bb133111eb);
        z ^= z >> 31;
        sum = (sum + (unsigned __int128)words[i] * (z % PRIME)) % PRIME;
    }
    return (uint64_t)sum;
}

struct tensor {
    int dims;
    uint64_t shape[HASH_DIMS_MAX];
    uint32_t *words;
};

static struct tensor make_tensor(uint64_t *state)
{
    struct tensor tensor = {.dims = 1 + (int)(support_random(state) % HASH_DIMS_MAX)};
    uint64_t count = 1;

    for (int d = 0; d < tensor.dims; d++) {
        tensor.shape[d] = 1 + support_random(state) % (tensor.dims < 3 ? 90 : 9);
        count *= tensor.shape[d];
    }
    tensor.words = malloc(count * sizeof *tensor.words);
    cr_assert(tensor.words != NULL);
    bool extreme = support_random(state) % 4 == 0; /* all ones: the largest products */
    for (uint64_t i = 0; i < count; i++) {
        tensor.words[i] = extreme ? UINT32_MAX : (uint32_t)support_random(state);
    }
    return tensor;
}

static uint64_t hash_box(const struct tensor *tensor, const uint64_t *offset,
                         const uint64_t *extent)
{
    uint64_t count = 1, at[HASH_DIMS_MAX] = {0};

    for (int d = 0; d < tensor->dims; d++) {
        count *= extent[d];
    }
    uint32_t *box = malloc((count > 0 ? count : 1) * sizeof *box);
    cr_assert(box != NULL);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t from = 0;
        for (int d = 0; d < tensor->dims; d++) {
            from = from * tensor->shape[d] + offset[d] + at[d];
        }
        box[i] = tensor->words[from];
        for (int d = tensor->dims - 1; d >= 0 && ++at[d] == extent[d]; d--) {
            at[d] = 0;
        }
    }
    uint64_t hash = hash_state_box("w", tensor->dims, tensor->shape, offset, extent, box);
    free(box);
    return hash;
}

/* Cuts a box in two at a random place, `depth` times; empty halves belong to it. */
static uint64_t hash_cut(const struct tensor *tensor, const uint64_t *offset,
                         const uint64_t *extent, int depth, uint64_t *state)
{
    uint64_t offsets[2][HASH_DIMS_MAX], extents[2][HASH_DIMS_MAX], sum = 0;

    if (depth == 0) {
        return hash_box(tensor, offset, extent);
    }
    size_t axis = support_random(state) % (uint64_t)tensor->dims;
    uint64_t first = support_random(state) % (extent[axis] + 1);
    for (int half = 1; half >= 0; half--) { /* the order is free too */
        memcpy(offsets[half], offset, sizeof offsets[half]);
        memcpy(extents[half], extent, sizeof extents[half]);
        offsets[half][axis] += half == 0 ? 0 : first;
        extents[half][axis] = half == 0 ? first : extent[axis] - first;
        sum = hash_state_add(sum, hash_cut(tensor, offsets[half], extents[half], depth - 1, state));
    }
    return sum;
}

Test(state, the_hash_is_the_definition_whatever_the_cut)
{
    uint64_t state = support_seed();

    for (int round = 0; round < 300; round++) {
        uint64_t origin[HASH_DIMS_MAX] = {0};
        struct tensor tensor = make_tensor(&state);
        uint64_t wanted = naive("w", tensor.dims, tensor.shape, tensor.words);
        cr_assert(hash_box(&tensor, origin, tensor.shape) == wanted, "whole, round %d", round);
        cr_assert(hash_cut(&tensor, origin, tensor.shape, round % 5, &state) == wanted,
                  "cut, round %d", round);
        free(tensor.words);
    }
}

Test(state, long_rows_of_the_largest_words_do_not_overflow)
{
    uint64_t shape[1] = {1 << 20}, origin[1] = {0};
    uint32_t *words = malloc(shape[0] * sizeof *words);

    cr_assert(words != NULL);
    memset(words, 0xff, shape[0] * sizeof *words);
    cr_assert(hash_state_box("w", 1, shape, origin, shape, words) == naive("w", 1, shape, words));
    free(words);
}

Test(state, a_bit_a_place_a_name_and_a_step_change_it)
{
    enum { COUNT = 64 };
    uint64_t shape[1] = {COUNT}, origin[1] = {0};
    uint32_t words[COUNT];

    for (uint32_t i = 0; i < COUNT; i++) {
        words[i] = i * 2654435761U;
    }
    uint64_t whole = hash_state_box("w", 1, shape, origin, shape, words);
    for (int bit = 0; bit < COUNT * 32; bit++) {
        words[bit / 32] ^= UINT32_C(1) << bit % 32;
        cr_assert(hash_state_box("w", 1, shape, origin, shape, words) != whole);
        words[bit / 32] ^= UINT32_C(1) << bit % 32;
    }
    uint32_t kept = words[3];
    words[3] = words[4];
    words[4] = kept;
    cr_assert(hash_state_box("w", 1, shape, origin, shape, words) != whole, "swapped");
    words[4] = words[3];
    words[3] = kept;
    cr_assert(hash_state_box("v", 1, shape, origin, shape, words) != whole, "renamed");
    cr_assert(hash_state_finish(whole, 1) != hash_state_finish(whole, 2));
    cr_assert(hash_state_finish(whole, 1) == hash_state_finish(whole, 1));
}

Test(state, sums_stay_below_the_prime)
{
    cr_assert(hash_state_add(PRIME - 1, 1) == 0);
    cr_assert(hash_state_add(PRIME - 1, PRIME - 1) == PRIME - 2);
    cr_assert(hash_state_add(PRIME, 5) == 5);
    cr_assert(hash_state_add(0, 0) == 0);
}
