/* Claims about the loader: samples through data_source, ids that are checked, mock data. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/mem.h"
#include "tests/support/npy.h"
#include "tests/unit/data/data_support.h"
#include "train/data/data_part.h"

#define LENGTH 64

static struct data_config make_config(void)
{
    return (struct data_config){
        .path = support_ref("megatron_data/text_eod"),
        .split = "99,1,0",
        .sequence_length = LENGTH,
        .seed = 1234,
        .vocab_size = 50257,
        .samples = {400, 8, 0},
    };
}

static void check_refused(const struct data_config *config, enum data_split split,
                          enum status wanted, const char *part)
{
    struct data_source source;

    cr_assert_eq(data_loader_open(config, split, &source), wanted, "%s", status_last()->message);
    cr_assert(support_message_has(part));
    cr_assert_null(source.get);
    cr_assert_eq(mem_used_bytes(), 0);
}

Test(data_loader, samples_are_megatrons)
{
    struct data_config config = make_config();
    const char *names[] = {"train", "valid"};

    for (int split = DATA_TRAIN; split <= DATA_VALID; split++) {
        struct data_source source;
        struct npy tokens;

        cr_assert_eq(
            npy_read_ref(support_path("megatron_data/samples_text_eod/%s_tokens.npy", names[split]),
                         &tokens),
            STATUS_OK);
        cr_assert_eq(data_loader_open(&config, split, &source), STATUS_OK);
        for (uint64_t sample = 0; sample < tokens.shape[0]; sample++) {
            int32_t got[LENGTH + 1];

            cr_assert_eq(source.get(source.context, sample, got), STATUS_OK);
            cr_assert_arr_eq(got, (int32_t *)tokens.elements + sample * (LENGTH + 1), sizeof got);
        }
        data_loader_close(&source);
        npy_deinit(&tokens);
    }
    cr_assert_eq(mem_used_bytes(), 0);
}

static void check_blend(const struct data_config *config, const char *reference)
{
    const char *names[] = {"train", "valid"};

    for (int split = DATA_TRAIN; split <= DATA_VALID; split++) {
        struct data_source source;
        struct npy tokens;

        cr_assert_eq(
            npy_read_ref(support_path("megatron_data/%s/%s_tokens.npy", reference, names[split]),
                         &tokens),
            STATUS_OK);
        cr_assert_eq(data_loader_open(config, split, &source), STATUS_OK, "%s",
                     status_last()->message);
        for (uint64_t sample = 0; sample < tokens.shape[0]; sample++) {
            int32_t got[LENGTH + 1];

            cr_assert_eq(source.get(source.context, sample, got), STATUS_OK);
            cr_assert_arr_eq(got, (int32_t *)tokens.elements + sample * (LENGTH + 1), sizeof got,
                             "%s sample %zu", names[split], (size_t)sample);
        }
        data_loader_close(&source);
        npy_deinit(&tokens);
    }
    cr_assert_eq(mem_used_bytes(), 0);
}

Test(data_loader, weighted_blends_are_megatrons)
{
    struct data_config config = make_config();

    config.path = support_path("0.7 %s 0.3 %s", support_word(config.path),
                               support_word(support_ref("megatron_data/u16_multi")));
    config.vocab_size = 65536;
    config.samples[DATA_TRAIN] = 300;
    check_blend(&config, "samples_blend_73");
}

static int compare_samples(const void *a, const void *b)
{
    return memcmp(a, b, (LENGTH + 1) * sizeof(int32_t));
}

/* One epoch of each data set: the samples are all of the first's and all of the second's. */
Test(data_loader, blend_without_weights_gives_each_sample_once)
{
    struct data_config config = make_config();
    const char *prefixes[] = {config.path, support_ref("megatron_data/u16_multi")};
    static int32_t wanted[400][LENGTH + 1], got[400][LENGTH + 1];
    struct data_source source;
    uint64_t count = 0;

    config.vocab_size = 65536;
    for (int i = 0; i < 2; i++) {
        struct data_part part;

        cr_assert_eq(data_part_open(&config, DATA_TRAIN, prefixes[i], 0, &part), STATUS_OK);
        cr_assert_eq(part.index.epoch_count, 1);
        for (uint64_t n = 0; n < part.index.sample_count; n++) {
            cr_assert_eq(sample_index_read(&part.index, &part.file, LENGTH, n, wanted[count++]),
                         STATUS_OK);
        }
        data_part_close(&part);
    }
    config.path = support_path("%s %s", support_word(prefixes[0]), support_word(prefixes[1]));
    config.samples[DATA_TRAIN] = count + 1;
    check_refused(&config, DATA_TRAIN, STATUS_BAD_DATA,
                  support_path("has %d samples, but %d are asked", (int)count, (int)count + 1));

    config.samples[DATA_TRAIN] = count;
    cr_assert_eq(data_loader_open(&config, DATA_TRAIN, &source), STATUS_OK);
    for (uint64_t n = 0; n < count; n++) {
        cr_assert_eq(source.get(source.context, n, got[n]), STATUS_OK);
    }
    cr_assert_eq(source.get(source.context, count, got[0]), STATUS_BAD_DATA);
    data_loader_close(&source);
    qsort(got, count, sizeof got[0], compare_samples);
    qsort(wanted, count, sizeof wanted[0], compare_samples);
    cr_assert_arr_eq(got, wanted, count * sizeof got[0]);
}

Test(data_loader, extreme_weights_over_one_set_never_run_out)
{
    struct data_config config = make_config();
    struct data_source source;
    int32_t got[LENGTH + 1];

    config.path =
        support_path("0.001 %s 0.999 %s", support_word(config.path), support_word(config.path));
    config.samples[DATA_TRAIN] = 10000;
    cr_assert_eq(data_loader_open(&config, DATA_TRAIN, &source), STATUS_OK);
    for (uint64_t sample = 0; sample < 10000; sample++) {
        cr_assert_eq(source.get(source.context, sample, got), STATUS_OK);
    }
    data_loader_close(&source);
}

Test(data_loader, path_of_a_split_alone_is_used_whole)
{
    struct data_config config = make_config();
    struct data_source weighted, plain, cut;
    int32_t a[LENGTH + 1], b[LENGTH + 1];
    int different = 0;

    config.samples[DATA_VALID] = 300; /* more than one epoch of the 99,1,0 split's */
    cr_assert_eq(data_loader_open(&config, DATA_VALID, &cut), STATUS_OK);
    config.split = NULL;
    cr_assert_eq(data_loader_open(&config, DATA_VALID, &plain), STATUS_OK);
    config.path = support_path("3 %s", support_word(config.path)); /* a weight of one is as none */
    cr_assert_eq(data_loader_open(&config, DATA_VALID, &weighted), STATUS_OK);
    for (uint64_t sample = 0; sample < 100; sample++) {
        cr_assert_eq(plain.get(plain.context, sample, a), STATUS_OK);
        cr_assert_eq(weighted.get(weighted.context, sample, b), STATUS_OK);
        cr_assert_arr_eq(a, b, sizeof a);
        cr_assert_eq(cut.get(cut.context, sample, b), STATUS_OK);
        different += memcmp(a, b, sizeof a) != 0;
    }
    cr_assert_gt(different, 90);
    data_loader_close(&weighted);
    data_loader_close(&plain);
    data_loader_close(&cut);
}

Test(data_loader, path_with_spaces_that_names_files_is_one_data_set)
{
    char folder[SUPPORT_PATH_MAX];
    struct data_config config = make_config();
    struct data_source source;

    support_make_folder(folder);
    support_copy_pair(config.path, support_path("%s/my own text", folder), 0, 0);
    config.path = support_path("%s/my own text", folder);
    cr_assert_eq(data_loader_open(&config, DATA_TRAIN, &source), STATUS_OK);
    data_loader_close(&source);
    support_remove_folder(folder);
}

Test(data_loader, missing_part_of_a_blend_is_named)
{
    struct data_config config = make_config();

    config.path = support_path("1 %s 1 no/such/part", support_word(config.path));
    check_refused(&config, DATA_TRAIN, STATUS_NOT_FOUND, "'no/such/part.bin'");
    config.path = "1 a b c";
    check_refused(&config, DATA_TRAIN, STATUS_USAGE, "unusable weight 'b'");
}

Test(data_loader, loss_is_masked_where_the_input_ends_a_document)
{
    const int32_t tokens[] = {5, 9, 0, 9, 9, 1};
    const float wanted[] = {1, 0, 1, 0, 0, 1};
    float mask[6];

    cr_assert_eq(data_loader_mask_loss(tokens, 6, 9, mask), 3);
    cr_assert_arr_eq(mask, wanted, sizeof mask);
    cr_assert_eq(data_loader_mask_loss(tokens, 6, 7, mask), 6);
}

Test(data_loader, documents_begin_after_the_end_of_the_one_before)
{
    const int32_t tokens[] = {5, 9, 0, 9, 9, 1};
    const int32_t wanted[] = {0, 0, 2, 2, 4, 5};
    int32_t starts[6];

    data_loader_find_starts(tokens, 6, 9, starts);
    cr_assert_arr_eq(starts, wanted, sizeof starts);
}

Test(data_loader, split_asked_for_nothing_is_not_opened)
{
    struct data_config config = make_config();
    struct data_source source;

    cr_assert_eq(data_loader_open(&config, DATA_TEST, &source), STATUS_OK);
    cr_assert_null(source.get);
    data_loader_close(&source);
}

Test(data_loader, sample_beyond_the_index_is_an_error)
{
    struct data_config config = make_config();
    struct data_source source;
    int32_t got[LENGTH + 1];

    cr_assert_eq(data_loader_open(&config, DATA_TRAIN, &source), STATUS_OK);
    cr_assert_eq(source.get(source.context, 531, got), STATUS_OK);
    cr_assert_eq(source.get(source.context, 532, got), STATUS_BAD_DATA);
    cr_assert(support_message_has("532"));
    data_loader_close(&source);
}

Test(data_loader, ids_beyond_the_vocabulary_are_refused)
{
    struct data_config config = make_config();

    config.vocab_size = 50256;
    check_refused(&config, DATA_TRAIN, STATUS_BAD_DATA, "token id 50256 in ");
    check_refused(&config, DATA_TRAIN, STATUS_BAD_DATA, "vocabulary of 50256");
}

Test(data_loader, missing_files_are_refused)
{
    struct data_config config = make_config();

    config.path = "no/such/data";
    check_refused(&config, DATA_TRAIN, STATUS_NOT_FOUND, "'no/such/data.bin'");
}

Test(data_loader, empty_split_that_is_asked_for_samples_is_refused)
{
    struct data_config config = make_config();

    config.split = "949,50,1";
    config.samples[DATA_TEST] = 8;
    check_refused(&config, DATA_TEST, STATUS_BAD_DATA, "split 'test'");
}

Test(data_loader, pair_without_tokens_is_refused)
{
    char folder[SUPPORT_PATH_MAX];
    struct data_config config = make_config();
    struct token_writer *writer = NULL;

    support_make_folder(folder);
    config.path = support_path("%s/empty", folder);
    cr_assert_eq(token_writer_create(fs_posix(), config.path, TOKEN_UINT16, &writer), STATUS_OK);
    cr_assert_eq(token_writer_end_document(writer), STATUS_OK);
    cr_assert_eq(token_writer_finish(writer), STATUS_OK);
    cr_assert_eq(token_writer_publish(writer), STATUS_OK);
    token_writer_destroy(writer);
    check_refused(&config, DATA_TRAIN, STATUS_BAD_DATA, "no tokens in ");
    support_remove_folder(folder);
}

Test(data_loader, mock_data_counts_and_depends_on_seed_split_and_sample_only)
{
    struct data_config config = make_config();
    struct data_source sources[3];
    int32_t first[LENGTH + 1], again[LENGTH + 1];
    int same[3] = {0};

    config.path = NULL;
    cr_assert_eq(data_loader_open(&config, DATA_TRAIN, &sources[0]), STATUS_OK);
    cr_assert_eq(data_loader_open(&config, DATA_VALID, &sources[1]), STATUS_OK);
    config.seed++;
    cr_assert_eq(data_loader_open(&config, DATA_TRAIN, &sources[2]), STATUS_OK);
    for (uint64_t sample = 0; sample < 100; sample++) {
        cr_assert_eq(sources[0].get(sources[0].context, sample, first), STATUS_OK);
        int32_t stride = (first[1] - first[0] + 256) % 256;
        cr_assert(stride >= 1 && stride <= 3);
        for (int i = 1; i <= LENGTH; i++) {
            cr_assert_eq(first[i], (first[i - 1] + stride) % 256);
        }
        for (int i = 0; i < 3; i++) {
            cr_assert_eq(sources[i].get(sources[i].context, sample, again), STATUS_OK);
            same[i] += memcmp(first, again, sizeof first) == 0;
        }
    }
    cr_assert_eq(same[0], 100);
    cr_assert_lt(same[1], 10);
    cr_assert_lt(same[2], 10);
    for (int i = 0; i < 3; i++) {
        data_loader_close(&sources[i]);
    }
}

Test(data_loader, mock_ids_stay_below_a_small_vocabulary)
{
    struct data_config config = make_config();
    struct data_source source;
    int32_t got[LENGTH + 1];

    config.path = NULL;
    config.vocab_size = 7;
    cr_assert_eq(data_loader_open(&config, DATA_TRAIN, &source), STATUS_OK);
    for (uint64_t sample = 0; sample < 20; sample++) {
        cr_assert_eq(source.get(source.context, sample, got), STATUS_OK);
        for (int i = 0; i <= LENGTH; i++) {
            cr_assert(got[i] >= 0 && got[i] < 7);
        }
    }
    data_loader_close(&source);
}
