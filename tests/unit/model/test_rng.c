/* Random numbers: Philox is Random123's, logarithm and cosine are exact enough, initial weights
 * are a function of the element alone and never change. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "train/device/philox.h"
#include "train/model/rng.h"

Test(rng, philox_gives_the_published_vectors)
{
    static const struct {
        uint32_t counter[4], key[2], words[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        uint32_t words[4];

        philox_4x32(known[i].counter, known[i].key, words);
        cr_expect_arr_eq(words, known[i].words, sizeof(words), "vector %zu", i);
    }
}

Test(rng, logarithm_and_cosine_agree_with_libm)
{
    double worst_log = 0.0, worst_cos = 0.0;

    for (int i = 1; i < 200000; i++) {
        double x = (double)i / 200000.0, c, s;

        worst_log = fmax(worst_log, fabs(rng_log(x) - log(x)) / fmax(1e-3, fabs(log(x))));
        rng_cos_sin_turns(x, &c, &s);
        worst_cos = fmax(worst_cos, fabs(c - cos(2.0 * acos(-1.0) * x)));
        worst_cos = fmax(worst_cos, fabs(s - sin(2.0 * acos(-1.0) * x)));
    }
    cr_expect_leq(worst_log, 1e-14, "logarithm off by %g", worst_log);
    cr_expect_leq(worst_cos, 2e-15, "cosine off by %g", worst_cos);
    cr_expect_float_eq(rng_log(0x1p-33), -33.0 * log(2.0), 1e-13);
}

Test(rng, normals_have_the_moments_of_normals)
{
    enum { COUNT = 400000 };
    static float x[COUNT];
    double sum = 0.0, squares = 0.0, fourth = 0.0;
    int beyond_2 = 0;

    rng_fill_normal(1234, "some.weight", 0, COUNT, 0.5f, x);
    for (int i = 0; i < COUNT; i++) {
        double z = (double)x[i] / 0.5;

        sum += z;
        squares += z * z;
        fourth += z * z * z * z;
        beyond_2 += fabs(z) > 2.0;
    }
    cr_expect_float_eq(sum / COUNT, 0.0, 0.006);
    cr_expect_float_eq(squares / COUNT, 1.0, 0.01);
    cr_expect_float_eq(fourth / COUNT, 3.0, 0.08);
    cr_expect_float_eq(beyond_2 / (double)COUNT, 0.0455, 0.0015);
}

Test(rng, an_element_does_not_depend_on_where_the_fill_begins)
{
    static float whole[1000], part[1000];

    rng_fill_normal(1, "w", 0, 1000, 1.0f, whole);
    for (size_t first = 0; first < 9; first++) {
        for (size_t count = 0; count < 20; count++) {
            rng_fill_normal(1, "w", first, count, 1.0f, part);
            cr_expect_arr_eq(part, whole + first, count * sizeof(float));
        }
    }
    rng_fill_normal(1, "v", 0, 1000, 1.0f, part);
    cr_expect_neq(memcmp(part, whole, sizeof(whole)), 0, "another name has the same numbers");
    rng_fill_normal(2, "w", 0, 1000, 1.0f, part);
    cr_expect_neq(memcmp(part, whole, sizeof(whole)), 0, "another seed has the same numbers");
}

/* A change here changes every run that starts from scratch: it must be on purpose. */
Test(rng, initial_weights_are_these_bits)
{
    static const uint32_t golden[] = {0x3caabac2, 0x3d942e45, 0xba74b914,
                                      0xb8c9b48b, 0xba7771ac, 0x3abea9a0};
    float x[6];
    uint32_t bits[6];

    rng_fill_normal(1234, "embedding.word_embeddings.weight", 0x100000000u, 6, 0.02f, x);
    memcpy(bits, x, sizeof(bits));
    cr_expect_arr_eq(bits, golden, sizeof(bits), "%08x %08x %08x %08x %08x %08x", bits[0], bits[1],
                     bits[2], bits[3], bits[4], bits[5]);
}
