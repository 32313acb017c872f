/* Claims about kept indices: NumPy's bytes, one making for all, and what damage leads to. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/base/mem.h"
#include "tests/support/npy.h"
#include "tests/unit/data/data_support.h"
#include "train/data/data_part.h"

#define LENGTH 64
#define FILES 5 /* of an entry: the description, three arrays, the contents */

static char folder[SUPPORT_PATH_MAX];

static struct data_config make_config(const char *cache)
{
    return (struct data_config){
        .path = support_ref("megatron_data/text_eod"),
        .split = "99,1,0",
        .sequence_length = LENGTH,
        .seed = 1234,
        .vocab_size = 65536,
        .cache_folder = cache,
        .samples = {400, 8, 0},
    };
}

static struct data_source open_train(const struct data_config *config)
{
    struct data_source source;

    cr_assert_eq(data_loader_open(config, DATA_TRAIN, &source), STATUS_OK, "%s",
                 status_last()->message);
    return source;
}

/* The samples are the reference's. */
static void check_samples(const struct data_config *config)
{
    struct data_source source = open_train(config);
    struct npy tokens;

    cr_assert_eq(npy_read_ref("megatron_data/samples_text_eod/train_tokens.npy", &tokens),
                 STATUS_OK);
    for (uint64_t sample = 0; sample < tokens.shape[0]; sample++) {
        int32_t got[LENGTH + 1];

        cr_assert_eq(source.get(source.context, sample, got), STATUS_OK);
        cr_assert_arr_eq(got, (int32_t *)tokens.elements + sample * (LENGTH + 1), sizeof got);
    }
    npy_deinit(&tokens);
    data_loader_close(&source);
}

/* The file of the cache whose name ends so. */
static const char *find_file(const char *cache, const char *end)
{
    struct fs_names names = {0};
    const char *found = NULL;

    cr_assert_eq(fs_list(fs_posix(), cache, &names), STATUS_OK);
    for (size_t i = 0; i < names.count; i++) {
        size_t length = strlen(names.names[i]);

        if (length > strlen(end) && strcmp(names.names[i] + length - strlen(end), end) == 0) {
            cr_assert_null(found, "two files end with %s", end);
            found = support_path("%s/%s", cache, names.names[i]);
        }
    }
    cr_assert_not_null(found, "no file ends with %s", end);
    fs_names_deinit(&names);
    return found;
}

static uint64_t inode(const char *path)
{
    struct fs_stat info;

    cr_assert_eq(fs_stat(fs_posix(), path, &info), STATUS_OK);
    return info.inode;
}

static void set_up(void)
{
    support_make_folder(folder);
}

static void tear_down(void)
{
    support_remove_folder(folder);
    cr_assert_eq(mem_used_bytes(), 0);
}

TestSuite(index_cache, .init = set_up, .fini = tear_down);

Test(index_cache, kept_arrays_are_numpys_files)
{
    const char *names[] = {"document_index", "sample_index", "shuffle_index"};
    struct data_config config = make_config(support_path("%s/a/b", folder));

    check_samples(&config);
    cr_assert_eq(support_count_files(config.cache_folder), FILES);
    for (int i = 0; i < 3; i++) {
        support_check_same(
            find_file(config.cache_folder, support_path("-GPTDataset-train-%s.npy", names[i])),
            support_ref(support_path("megatron_data/samples_text_eod/train_%s.npy", names[i])));
    }
}

Test(index_cache, kept_blend_orders_are_numpys_files)
{
    struct data_config config = make_config(folder);
    struct data_source source;

    config.path = support_path("0.7 %s 0.3 %s", support_word(config.path),
                               support_word(support_ref("megatron_data/u16_multi")));
    config.samples[DATA_TRAIN] = 300;
    for (int round = 0; round < 2; round++) {
        source = open_train(&config);
        data_loader_close(&source);
        cr_assert_eq(support_count_files(folder), 2 * FILES + 4);
    }
    support_check_same(find_file(folder, "-BlendedDataset-train-dataset_index.npy"),
                       support_ref("megatron_data/samples_blend_73/train_dataset_index.npy"));
    support_check_same(
        find_file(folder, "-BlendedDataset-train-dataset_sample_index.npy"),
        support_ref("megatron_data/samples_blend_73/train_dataset_sample_index.npy"));
}

Test(index_cache, second_opening_maps_what_the_first_made)
{
    struct data_config config = make_config(folder);
    struct data_part part;

    check_samples(&config);
    uint64_t before = inode(find_file(folder, "sample_index.npy"));
    cr_assert_eq(data_part_open(&config, DATA_TRAIN, config.path, 400, &part), STATUS_OK);
    for (int i = 0; i < SAMPLE_ARRAY_COUNT; i++) {
        cr_assert_null(part.index.arrays[i].memory);
        cr_assert_not_null(part.index.arrays[i].map.bytes);
    }
    data_part_close(&part);
    check_samples(&config);
    cr_assert_eq(inode(find_file(folder, "sample_index.npy")), before);
    cr_assert_eq(support_count_files(folder), FILES);
}

Test(index_cache, ids_are_remembered_and_checked_against_any_vocabulary)
{
    struct data_config config = make_config(folder);
    struct data_source source;

    check_samples(&config);
    config.vocab_size = 50256;
    cr_assert_eq(data_loader_open(&config, DATA_TRAIN, &source), STATUS_BAD_DATA);
    cr_assert(support_message_has("token id 50256 in "));
    /* It is what was remembered that counts, not another look. */
    const char *contents = find_file(folder, "contents.json");
    size_t count = 0;
    char *text = support_read(contents, &count);
    char *id = strstr(text, "50256");
    cr_assert_not_null(id);
    id[4] = '7';
    support_write(contents, text, count);
    free(text);
    cr_assert_eq(data_loader_open(&config, DATA_TRAIN, &source), STATUS_BAD_DATA);
    cr_assert(support_message_has("token id 50257 in "));
}

Test(index_cache, anything_that_changes_the_index_is_another_entry)
{
    struct data_config config = make_config(folder);
    const char *prefix = support_path("%s/copy", folder);
    struct data_source source;
    size_t entries = 0;

    support_copy_pair(config.path, prefix, 0, 0);
    config.path = prefix;
    config.cache_folder = support_path("%s/cache", folder);
    for (int change = 0; change < 6; change++) {
        config.seed += change == 1;
        config.sequence_length -= change == 2;
        config.samples[DATA_TRAIN] += change == 3;
        config.split = change == 4 ? "98,2,0" : config.split;
        if (change == 5) { /* other tokens of the same lengths */
            support_patch(support_path("%s.bin", prefix), 0, "\x01\x00", 2);
        }
        for (int round = 0; round < 2; round++) {
            source = open_train(&config);
            data_loader_close(&source);
        }
        entries++;
        cr_assert_eq(support_count_files(config.cache_folder), entries * FILES, "change %d",
                     change);
    }
}

static void cut(const char *path, size_t count)
{
    size_t bytes = 0;
    char *text = support_read(path, &bytes);

    support_write(path, text, count < bytes ? count : bytes / 2);
    free(text);
}

Test(index_cache, half_and_changed_files_are_made_anew)
{
    const char *ends[] = {"document_index.npy", "sample_index.npy", "shuffle_index.npy",
                          "contents.json"};
    struct data_config config = make_config(folder);

    check_samples(&config);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        const char *path = find_file(folder, ends[i]);
        size_t count = 0;
        char *whole = support_read(path, &count);

        for (int damage = 0; damage < 4; damage++) {
            if (damage == 0) {
                cut(path, SIZE_MAX);
            } else if (damage == 1) {
                cut(path, 0);
            } else if (damage == 2) {
                support_patch(path, count - 3, "\x55", 1);
            } else {
                cr_assert_eq(unlink(path), 0);
            }
            check_samples(&config);
            size_t now = 0;
            char *mended = support_read(path, &now);
            cr_assert_eq(now, count, "%s after damage %d", ends[i], damage);
            cr_assert_arr_eq(mended, whole, count);
            free(mended);
        }
        free(whole);
    }
    cr_assert_eq(support_count_files(folder), FILES);
}

/* A process whose samples are right exits with 0. */
static pid_t start_reader(const struct data_config *config, int delay_us)
{
    pid_t child = fork();

    if (child == 0) {
        struct data_source source;
        int32_t got[LENGTH + 1];
        bool is_fine = true;

        (void)usleep((useconds_t)delay_us);
        is_fine = data_loader_open(config, DATA_TRAIN, &source) == STATUS_OK &&
                  source.get(source.context, 399, got) == STATUS_OK;
        _exit(is_fine ? 0 : 1);
    }
    return child;
}

Test(index_cache, processes_that_begin_together_do_not_disturb_each_other)
{
    struct data_config config = make_config(support_path("%s/cache", folder));

    for (int round = 0; round < 10; round++) {
        pid_t children[4];

        for (int i = 0; i < 4; i++) {
            children[i] = start_reader(&config, i * round * 100);
        }
        for (int i = 0; i < 4; i++) {
            int code = 0;

            cr_assert_eq(waitpid(children[i], &code, 0), children[i]);
            cr_assert_eq(code, 0, "round %d, process %d", round, i);
        }
        cr_assert_eq(support_count_files(config.cache_folder), FILES);
        check_samples(&config);
        support_remove_folder(config.cache_folder);
    }
}

Test(index_cache, folder_that_cannot_be_used_is_no_failure)
{
    struct data_config config = make_config(support_path("%s/file/cache", folder));

    support_write_text(support_path("%s/file", folder), "in the way");
    check_samples(&config);
    check_samples(&config);
}

Test(index_cache, changed_array_is_found_while_it_is_mapped)
{
    struct data_config config = make_config(folder);
    struct data_source source = open_train(&config);
    int32_t got[LENGTH + 1], wild[2] = {1 << 30, 1 << 30};

    data_loader_close(&source);
    source = open_train(&config);
    const char *path = find_file(folder, "document_index.npy");
    for (size_t i = 0; i < 510; i++) {
        support_patch(path, 128 + 4 * i, wild, 4);
    }
    cr_assert_eq(source.get(source.context, 0, got), STATUS_CORRUPT);
    cr_assert(support_message_has("--data-cache-path"));
    data_loader_close(&source);
}
