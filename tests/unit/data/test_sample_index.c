/* Claims about the sample index: Megatron's three indices, and what is refused at once. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "ckpt/base/mem.h"
#include "tests/support/npy.h"
#include "tests/unit/data/data_support.h"
#include "train/data/sample_index.h"

#define SEED 1234
#define LENGTH 64

/* Plans and fills. */
static enum status build(const struct token_file *file, struct sample_range range, int64_t length,
                         uint64_t samples, uint64_t seed, const char *name,
                         struct sample_index *out_index)
{
    enum status st = STATUS_OK;

    TRY(st, sample_index_plan(file, range, length, samples, name, out_index), done);
    TRY(st, sample_index_fill(out_index, file, length, seed), done);
done:
    if (st != STATUS_OK) {
        sample_index_deinit(out_index);
    }
    return st;
}

static void check_array(const char *folder, const char *split, const char *name,
                        const void *elements, uint64_t count)
{
    const char *path = support_path("megatron_data/%s/%s_%s.npy", folder, split, name);
    const uint32_t *got = elements;
    struct npy npy;

    cr_assert_eq(npy_read_ref(path, &npy), STATUS_OK, "%s", status_last()->message);
    cr_assert(npy.type == NPY_INT32 || npy.type == NPY_UINT32);
    cr_assert_eq(npy.count, count, "%s: %zu wanted, %zu made", path, npy.count, (size_t)count);
    for (uint64_t i = 0; i < count; i++) {
        uint32_t wanted = ((uint32_t *)npy.elements)[i];

        cr_assert_eq(got[i], wanted, "%s: element %zu is %u, wanted %u", path, (size_t)i, got[i],
                     wanted);
    }
    npy_deinit(&npy);
}

static void check_splits(const char *folder, const char *text,
                         const uint64_t samples[DATA_SPLIT_COUNT],
                         const struct sample_range wanted[DATA_SPLIT_COUNT])
{
    struct token_file file;
    struct sample_range ranges[DATA_SPLIT_COUNT];

    cr_assert_eq(token_file_open(support_ref("megatron_data/text_eod"), &file), STATUS_OK);
    cr_assert_eq(sample_index_split(text, file.sequence_count, ranges), STATUS_OK);
    for (int i = 0; i < DATA_SPLIT_COUNT; i++) {
        const char *split = sample_split_name(i);
        struct sample_index index;

        cr_assert_eq(ranges[i].begin, wanted[i].begin);
        cr_assert_eq(ranges[i].end, wanted[i].end);
        if (samples[i] == 0) {
            continue;
        }
        cr_assert_eq(build(&file, ranges[i], LENGTH, samples[i], SEED, split, &index), STATUS_OK);
        check_array(folder, split, "document_index", index.documents, index.document_count);
        check_array(folder, split, "sample_index", index.samples, 2 * (index.sample_count + 1));
        check_array(folder, split, "shuffle_index", index.shuffle, index.sample_count);

        struct npy tokens;
        cr_assert_eq(
            npy_read_ref(support_path("megatron_data/%s/%s_tokens.npy", folder, split), &tokens),
            STATUS_OK);
        cr_assert_eq(tokens.shape[1], LENGTH + 1);
        for (uint64_t sample = 0; sample < tokens.shape[0]; sample++) {
            int32_t got[LENGTH + 1];

            cr_assert_eq(sample_index_read(&index, &file, LENGTH, sample, got), STATUS_OK);
            cr_assert_arr_eq(got, (int32_t *)tokens.elements + sample * (LENGTH + 1), sizeof got,
                             "%s sample %zu", split, (size_t)sample);
        }
        npy_deinit(&tokens);
        sample_index_deinit(&index);
    }
    token_file_close(&file);
}

Test(sample_index, indices_and_tokens_are_megatrons_for_99_1_0)
{
    check_splits("samples_text_eod", "99,1,0", (const uint64_t[]){400, 8, 0},
                 (const struct sample_range[]){{0, 255}, {255, 258}, {258, 258}});
}

Test(sample_index, indices_and_tokens_are_megatrons_for_90_8_2)
{
    check_splits("samples_text_eod_90_8_2", "90,8,2", (const uint64_t[]){400, 20, 5},
                 (const struct sample_range[]){{0, 232}, {232, 253}, {253, 258}});
}

Test(sample_index, splits_round_half_to_even_and_take_any_scale)
{
    struct sample_range ranges[DATA_SPLIT_COUNT];

    cr_assert_eq(sample_index_split("0.5, .5", 5, ranges), STATUS_OK);
    cr_assert_eq(ranges[DATA_TRAIN].end, 2);
    cr_assert_eq(ranges[DATA_VALID].end, 5);
    cr_assert_eq(ranges[DATA_TEST].begin, 5);
    cr_assert_eq(sample_index_split("1,0,0", 7, ranges), STATUS_OK);
    cr_assert_eq(ranges[DATA_TRAIN].end, 7);
    cr_assert_eq(sample_index_split("969,30,1", 1000, ranges), STATUS_OK);
    cr_assert_eq(ranges[DATA_TEST].begin, 999);
}

Test(sample_index, text_that_is_no_split_is_refused)
{
    const char *texts[] = {"",      "a",     "1,,1",  "1,1,1,1", "-1,2",
                           "0,0,0", "1;2;3", "nan,1", "1e999",   "99,1,0x"};
    struct sample_range ranges[DATA_SPLIT_COUNT];

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        cr_assert_eq(sample_index_split(texts[i], 10, ranges), STATUS_USAGE, "%s", texts[i]);
    }
}

Test(sample_index, split_that_rounds_to_no_sequence_is_refused_with_the_sizes)
{
    struct token_file file;
    struct sample_range ranges[DATA_SPLIT_COUNT];
    struct sample_index index;

    cr_assert_eq(token_file_open(support_ref("megatron_data/text_eod"), &file), STATUS_OK);
    cr_assert_eq(sample_index_split("949,50,1", file.sequence_count, ranges), STATUS_OK);
    cr_assert_eq(ranges[DATA_TEST].begin, ranges[DATA_TEST].end);
    cr_assert_eq(build(&file, ranges[DATA_TEST], LENGTH, 3, SEED, "test", &index), STATUS_BAD_DATA);
    cr_assert(support_message_has("'test'"));
    cr_assert(support_message_has("none of the 258 sequences"));
    cr_assert(support_message_has("3 samples"));
    token_file_close(&file);
}

/* A pair of `count` sequences of one token each. */
static void write_single_tokens(const char *prefix, size_t count)
{
    struct token_writer *writer = NULL;

    cr_assert_eq(token_writer_create(fs_posix(), prefix, TOKEN_UINT8, &writer), STATUS_OK);
    for (size_t i = 0; i < count; i++) {
        int32_t id = (int32_t)(i % 251);

        cr_assert_eq(token_writer_add_sequence(writer, &id, 1), STATUS_OK);
        cr_assert_eq(token_writer_end_document(writer), STATUS_OK);
    }
    cr_assert_eq(token_writer_finish(writer), STATUS_OK);
    cr_assert_eq(token_writer_publish(writer), STATUS_OK);
    token_writer_destroy(writer);
}

Test(sample_index, indices_beyond_32_bits_are_refused_with_the_numbers)
{
    char folder[SUPPORT_PATH_MAX];
    struct token_file file;
    struct sample_index index;
    const uint64_t sequences = 3000000, wanted = ((uint64_t)1 << 31) / LENGTH + 1;
    const uint64_t wild[] = {wanted, UINT64_MAX / LENGTH, UINT64_MAX};

    support_make_folder(folder);
    write_single_tokens(support_path("%s/ones", folder), sequences);
    cr_assert_eq(token_file_open(support_path("%s/ones", folder), &file), STATUS_OK);
    struct sample_range all = {0, sequences};
    size_t peak = mem_peak_bytes();
    for (size_t i = 0; i < sizeof wild / sizeof wild[0]; i++) {
        cr_assert_eq(build(&file, all, LENGTH, wild[i], SEED, "train", &index), STATUS_BAD_DATA);
    }
    cr_assert_eq(build(&file, all, LENGTH, wanted, SEED, "train", &index), STATUS_BAD_DATA);
    cr_assert(support_message_has("3000000 sequences"));
    cr_assert(support_message_has("716 epochs"));
    cr_assert_eq(mem_peak_bytes(), peak, "refused before anything is allocated");

    /* Many epochs that do fit. */
    cr_assert_eq(build(&file, all, LENGTH, 200000, SEED, "train", &index), STATUS_OK);
    cr_assert_eq(index.epoch_count, 5);
    cr_assert_geq(index.sample_count, 200000);
    sample_index_deinit(&index);
    token_file_close(&file);
    support_remove_folder(folder);
}

/* samples x length tokens are one too few: the last label needs another. */
Test(sample_index, samples_that_use_up_an_epoch_need_one_more)
{
    char folder[SUPPORT_PATH_MAX];
    struct token_file file;

    support_make_folder(folder);
    write_single_tokens(support_path("%s/ones", folder), 8);
    cr_assert_eq(token_file_open(support_path("%s/ones", folder), &file), STATUS_OK);
    for (uint64_t samples = 1; samples <= 5; samples++) {
        const uint64_t epochs[] = {0, 1, 2, 2, 3, 3};
        struct sample_index index;

        cr_assert_eq(build(&file, (struct sample_range){0, 8}, 4, samples, SEED, "train", &index),
                     STATUS_OK);
        cr_assert_eq(index.epoch_count, epochs[samples], "%zu samples", (size_t)samples);
        sample_index_deinit(&index);
    }
    token_file_close(&file);
    support_remove_folder(folder);
}

Test(sample_index, seeds_beyond_numpys_are_refused)
{
    struct token_file file;
    struct sample_index index;

    cr_assert_eq(token_file_open(support_ref("megatron_data/text_eod"), &file), STATUS_OK);
    cr_assert_eq(
        build(&file, (struct sample_range){0, 258}, LENGTH, 1, (uint64_t)1 << 32, "train", &index),
        STATUS_USAGE);
    cr_assert(support_message_has("4294967296"));
    token_file_close(&file);
}

Test(sample_index, failed_allocations_are_reported_and_leak_nothing)
{
    struct token_file file;
    struct sample_index index;

    cr_assert_eq(token_file_open(support_ref("megatron_data/text_eod"), &file), STATUS_OK);
    size_t before = mem_used_bytes();
    for (uint64_t n = 1; n <= 3; n++) {
        mem_fail_at(n);
        cr_assert_eq(
            build(&file, (struct sample_range){0, 258}, LENGTH, 400, SEED, "train", &index),
            STATUS_NO_MEMORY);
        cr_assert_eq(mem_used_bytes(), before);
    }
    mem_fail_at(0);
    token_file_close(&file);
}
