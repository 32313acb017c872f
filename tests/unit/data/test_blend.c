/* Claims about blends: how a data path is read, and Megatron's order of the parts. */
#include <criterion/criterion.h>
#include <string.h>

#include "ckpt/base/mem.h"
#include "tests/support/npy.h"
#include "tests/unit/data/data_support.h"
#include "train/data/blend.h"

static void check_list(const char *text, size_t count, const char *const prefixes[],
                       const double weights[])
{
    struct blend blend;

    cr_assert_eq(blend_parse(text, &blend), STATUS_OK, "%s", status_last()->message);
    cr_assert_eq(blend.part_count, count, "'%s' has %zu parts", text, blend.part_count);
    cr_assert_eq(blend.weights == NULL, weights == NULL);
    for (size_t i = 0; i < count; i++) {
        cr_assert_str_eq(blend.prefixes[i], prefixes[i]);
        if (weights != NULL) {
            cr_assert_eq(blend.weights[i], weights[i], "weight %zu is %.17g", i, blend.weights[i]);
        }
    }
    blend_deinit(&blend);
    cr_assert_eq(mem_used_bytes(), 0);
}

Test(blend, data_paths_are_read_as_megatron_reads_them)
{
    check_list("a", 1, (const char *[]){"a"}, NULL);
    check_list(" a\tb  ", 2, (const char *[]){"a", "b"}, NULL);
    check_list("0.3 a 0.7 b", 2, (const char *[]){"a", "b"}, (const double[]){0.3, 0.7});
    check_list("30 a 10 b", 2, (const char *[]){"a", "b"}, (const double[]){0.75, 0.25});
    check_list("2 a", 1, (const char *[]){"a"}, (const double[]){1});
    check_list("0 a 1e1 b", 2, (const char *[]){"a", "b"}, (const double[]){0, 1});
    /* An odd count of words has no weights, so a data set may be called 7. */
    check_list("7 a b", 3, (const char *[]){"7", "a", "b"}, NULL);
    check_list("a 7", 2, (const char *[]){"a", "7"}, NULL);
}

Test(blend, data_paths_that_are_none_are_refused)
{
    const char *texts[] = {"",          " ",          "0.3 a b c", "-1 a 2 b",
                           "nan a 1 b", "1 a inf b ", "0 a 0 b",   "1e308 a 1e308 b"};

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct blend blend;

        cr_assert_eq(blend_parse(texts[i], &blend), STATUS_USAGE, "'%s'", texts[i]);
        cr_assert_null(blend.prefixes);
        cr_assert_eq(mem_used_bytes(), 0);
    }
    struct blend blend;
    cr_assert_eq(blend_parse("0.3 a b c", &blend), STATUS_USAGE);
    cr_assert(support_message_has("unusable weight 'b'"));
}

Test(blend, failed_allocations_are_reported_and_leak_nothing)
{
    enum status st = STATUS_NO_MEMORY;
    struct blend blend;
    uint64_t n = 0;

    while (st == STATUS_NO_MEMORY) {
        mem_fail_at(++n);
        st = blend_parse("0.3 a 0.7 b", &blend);
        cr_assert(st == STATUS_OK || mem_used_bytes() == 0);
    }
    mem_fail_at(0);
    cr_assert_eq(st, STATUS_OK);
    cr_assert_gt(n, 6);
    blend_deinit(&blend);
}

/* sum(numpy.array([0.1] * n)) by NumPy, whose order of adding shows in the last digits. */
Test(blend, weights_are_summed_as_numpy_sums)
{
    static const struct {
        size_t count;
        double sum;
    } cases[] = {{7, 0.7},
                 {10, 1.0},
                 {100, 9.999999999999998},
                 {130, 12.999999999999998},
                 {300, 29.999999999999996}};
    double weights[300];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t j = 0; j < cases[i].count; j++) {
            weights[j] = 0.1;
        }
        cr_assert(blend_normalize(weights, cases[i].count));
        cr_assert_eq(weights[0], 0.1 / cases[i].sum, "%zu weights", cases[i].count);
    }
}

Test(blend, parts_are_asked_for_half_a_percent_more_than_their_share)
{
    cr_assert_eq(blend_part_share(0.7, 300), 210);
    cr_assert_eq(blend_part_request(0.7, 300), 212);
    cr_assert_eq(blend_part_share(0.3, 8), 3);
    cr_assert_eq(blend_part_request(0.3, 8), 4);
    cr_assert_eq(blend_part_request(0, 8), 0);
    cr_assert_eq(blend_part_request(1, 1000), 1005);
}

static void check_order(const char *split, uint64_t samples)
{
    const double weights[] = {0.7, 0.3};
    struct blend_index index;
    struct npy parts, part_samples;

    cr_assert_eq(
        npy_read_ref(support_path("megatron_data/samples_blend_73/%s_dataset_index.npy", split),
                     &parts),
        STATUS_OK);
    cr_assert_eq(
        npy_read_ref(
            support_path("megatron_data/samples_blend_73/%s_dataset_sample_index.npy", split),
            &part_samples),
        STATUS_OK);
    cr_assert_eq(parts.count, samples);
    blend_index_plan(samples, &index);
    cr_assert_eq(blend_index_fill(&index, weights, 2), STATUS_OK);
    cr_assert_arr_eq(index.parts, (int16_t *)parts.elements, samples * sizeof(int16_t));
    cr_assert_arr_eq(index.part_samples, (int64_t *)part_samples.elements,
                     samples * sizeof(int64_t));
    blend_index_deinit(&index);
    npy_deinit(&parts);
    npy_deinit(&part_samples);
    cr_assert_eq(mem_used_bytes(), 0);
}

Test(blend, order_of_the_parts_is_megatrons)
{
    check_order("train", 300);
    check_order("valid", 9);
}

/* Nobody runs past what a part was asked for, whatever the weights. */
Test(blend, extreme_weights_stay_within_the_shares)
{
    const double sets[][4] = {{0.001, 0.999},
                              {0.999, 0.001},
                              {1e-9, 1},
                              {0.25, 0.25, 0.25, 0.25},
                              {0.97, 0.01, 0.01, 0.01}};
    const uint64_t samples = 10000;

    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        size_t count = sets[i][2] > 0 ? 4 : 2;
        double weights[4];
        struct blend_index index;

        memcpy(weights, sets[i], sizeof weights);
        cr_assert(blend_normalize(weights, count));
        blend_index_plan(samples, &index);
        cr_assert_eq(blend_index_fill(&index, weights, count), STATUS_OK);
        for (uint64_t n = 0; n < samples; n++) {
            cr_assert_lt(index.part_samples[n],
                         (int64_t)blend_part_share(weights[index.parts[n]], samples) + 1);
        }
        blend_index_deinit(&index);
    }
}
