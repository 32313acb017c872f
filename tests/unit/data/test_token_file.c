/* Claims about token files: Megatron's bytes, and what is refused. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/mem.h"
#include "tests/support/fs_sim.h"
#include "tests/unit/data/data_support.h"
#include "train/data/token_format.h"

static char folder[SUPPORT_PATH_MAX];

static void set_up(void)
{
    support_make_folder(folder);
}

static void tear_down(void)
{
    support_remove_folder(folder);
}

TestSuite(token_file, .init = set_up, .fini = tear_down);

static void check_refused(const char *prefix, enum status wanted, const char *part)
{
    struct token_file file = {0};

    cr_assert_eq(token_file_open(prefix, &file), wanted, "%s", status_last()->message);
    cr_assert(support_message_has(part));
    cr_assert(support_message_has(prefix));
}

/* A copy of text_eod to damage; returns its prefix. */
static const char *make_copy(size_t index_cut, size_t tokens_cut)
{
    const char *prefix = support_path("%s/copy", folder);

    support_copy_pair(support_ref("megatron_data/text_eod"), prefix, index_cut, tokens_cut);
    return prefix;
}

Test(token_file, writer_gives_megatrons_bytes)
{
    const char *names[] = {"i32_big", "u16_multi"};

    for (int i = 0; i < 2; i++) {
        const char *json = support_ref(support_path("megatron_data/%s.json", names[i]));
        const char *ref = support_ref(support_path("megatron_data/%s", names[i]));

        support_write_documents(json, support_path("%s/%s", folder, names[i]));
        support_check_same(support_path("%s/%s.idx", folder, names[i]),
                           support_path("%s.idx", ref));
        support_check_same(support_path("%s/%s.bin", folder, names[i]),
                           support_path("%s.bin", ref));
    }
    cr_assert_eq(support_count_files(folder), 4);
}

Test(token_file, reader_gives_back_every_document)
{
    size_t bytes = 0;
    char *text = support_read(support_ref("megatron_data/u16_multi.json"), &bytes);
    const char *at = strstr(text, "[[") + 1;
    struct token_file file;
    uint64_t documents = 0, sequences = 0, tokens = 0;

    cr_assert_eq(token_file_open(support_ref("megatron_data/u16_multi"), &file), STATUS_OK);
    cr_assert_eq(file.document_count, 80);
    cr_assert_eq(file.sequence_count, 267);
    cr_assert_eq(file.token_count, 5222);
    /* Depth 1 is a document, depth 2 a sequence. */
    for (int depth = 0; *at != '}'; at++) {
        if (*at == '[' && ++depth == 1) {
            cr_assert_eq(token_file_document(&file, documents++), sequences);
        } else if (*at == '[' && depth == 2) {
            cr_assert_eq(token_file_start(&file, sequences), tokens);
            sequences++;
        } else if (*at == ']') {
            depth--;
            if (depth == 1) {
                cr_assert_eq(token_file_start(&file, sequences - 1) +
                                 (uint64_t)token_file_length(&file, sequences - 1),
                             tokens);
            }
        } else if (*at >= '0' && *at <= '9') {
            char *end = NULL;
            int32_t id = -1;

            token_file_copy(&file, tokens++, 1, &id);
            cr_assert_eq(id, strtol(at, &end, 10));
            at = end - 1;
        }
    }
    cr_assert_eq(documents, 80);
    cr_assert_eq(sequences, 267);
    cr_assert_eq(tokens, 5222);
    cr_assert_eq(token_file_document(&file, 80), 267);
    token_file_close(&file);
    free(text);
}

Test(token_file, missing_pair_names_both_files)
{
    const char *prefix = support_path("%s/nothing", folder);

    check_refused(prefix, STATUS_NOT_FOUND, "nothing.idx");
    check_refused(prefix, STATUS_NOT_FOUND, "nothing.bin");
    check_refused(support_path("%s/no/such/folder", folder), STATUS_NOT_FOUND, "folder.bin");
}

Test(token_file, half_a_pair_is_told_which)
{
    const char *prefix = make_copy(0, 0);

    cr_assert_eq(remove(support_path("%s.bin", prefix)), 0);
    check_refused(prefix, STATUS_NOT_FOUND, "copy.bin' is not");
    prefix = make_copy(0, 0);
    cr_assert_eq(remove(support_path("%s.idx", prefix)), 0);
    check_refused(prefix, STATUS_NOT_FOUND, "copy.idx' is not");
}

Test(token_file, wrong_prefixes_get_a_hint)
{
    support_copy_pair(support_ref("megatron_data/text_eod"),
                      support_path("%s/my_text_document", folder), 0, 0);
    check_refused(folder, STATUS_NOT_FOUND, "/my_text_document'");
    check_refused(support_path("%s/my", folder), STATUS_NOT_FOUND, "/my_text_document'?");
    check_refused(support_path("%s/my_text_document.bin", folder), STATUS_NOT_FOUND,
                  "without '.bin'");
    check_refused(support_path("%s/my_text_document.idx", folder), STATUS_NOT_FOUND,
                  "without '.idx'");
}

Test(token_file, index_that_is_a_folder_is_refused)
{
    const char *prefix = support_path("%s/copy", folder);

    support_write_text(support_path("%s.bin", prefix), "");
    cr_assert_eq(mkdir(support_path("%s.idx", prefix), 0777), 0);
    check_refused(prefix, STATUS_BAD_DATA, "folder");
}

Test(token_file, other_formats_are_told_what_was_found)
{
    const char *prefix = make_copy(0, 0);
    uint64_t version = 2;
    unsigned char codes[] = {0, 6, 7, 9};

    support_patch(support_path("%s.idx", prefix), 0, "TNTIDX", 6);
    check_refused(prefix, STATUS_BAD_DATA, "54 4e 54 49");
    prefix = make_copy(0, 0);
    support_patch(support_path("%s.idx", prefix), TOKEN_VERSION_AT, &version, sizeof version);
    check_refused(prefix, STATUS_BAD_DATA, "version 2");
    for (size_t i = 0; i < sizeof codes; i++) {
        prefix = make_copy(0, 0);
        support_patch(support_path("%s.idx", prefix), TOKEN_TYPE_AT, &codes[i], 1);
        check_refused(prefix, STATUS_BAD_DATA, support_path("type code %d", codes[i]));
    }
    prefix = make_copy(5218, 0);
    check_refused(prefix, STATUS_BAD_DATA, "0 bytes");
}

Test(token_file, cut_files_are_told_both_numbers)
{
    check_refused(make_copy(8, 0), STATUS_BAD_DATA, "5210 bytes");
    check_refused(make_copy(5218 - 34, 0), STATUS_BAD_DATA, "34 bytes");
    check_refused(make_copy(0, 2), STATUS_BAD_DATA, "34442 bytes");
    check_refused(make_copy(0, 2), STATUS_BAD_DATA, "34444 bytes");
}

Test(token_file, wild_counts_are_refused)
{
    /* 12 * 2^62 and 8 * 2^61 are 0 in 64 bits. */
    uint64_t counts[] = {
        UINT64_MAX, ((uint64_t)1 << 62) + 258, ((uint64_t)1 << 61) + 261, INT64_MAX, 259, 257, 0};

    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        for (size_t at = 0; at < 16; at += 8) {
            const char *prefix = make_copy(0, 0);

            support_patch(support_path("%s.idx", prefix), TOKEN_COUNTS_AT + at, &counts[i], 8);
            check_refused(prefix, STATUS_BAD_DATA, "do not fit");
        }
    }
}

Test(token_file, damaged_sequences_are_refused)
{
    const char *prefix = make_copy(0, 0);
    int32_t length = -1;
    int64_t offset = 7;

    support_patch(support_path("%s.idx", prefix), TOKEN_HEADER_BYTES + 4 * 10, &length, 4);
    check_refused(prefix, STATUS_BAD_DATA, "sequence 10 has length -1");
    prefix = make_copy(0, 0);
    support_patch(support_path("%s.idx", prefix), TOKEN_HEADER_BYTES + 4 * 258 + 8 * 3, &offset, 8);
    check_refused(prefix, STATUS_BAD_DATA, "sequence 3 starts at byte 7");
}

Test(token_file, damaged_document_entries_are_refused)
{
    const size_t entries = TOKEN_HEADER_BYTES + 12 * 258;
    int64_t values[] = {257, -1, 1, 0};

    const char *prefix = make_copy(0, 0);
    support_patch(support_path("%s.idx", prefix), entries + 8 * 260, &values[0], 8);
    check_refused(prefix, STATUS_BAD_DATA, "is 257, wanted 258");
    prefix = make_copy(0, 0);
    support_patch(support_path("%s.idx", prefix), entries + 8 * 100, &values[1], 8);
    check_refused(prefix, STATUS_BAD_DATA, "entry 100 is -1");
    prefix = make_copy(0, 0);
    support_patch(support_path("%s.idx", prefix), entries, &values[2], 8);
    check_refused(prefix, STATUS_BAD_DATA, "starts at sequence 1");
    prefix = make_copy(0, 0);
    support_patch(support_path("%s.idx", prefix), entries + 8 * 50, &values[3], 8);
    check_refused(prefix, STATUS_BAD_DATA, "entry 50 is 0");
}

Test(token_file, every_integer_type_is_read_back)
{
    enum token_type types[] = {TOKEN_UINT8, TOKEN_INT8,  TOKEN_INT16,
                               TOKEN_INT32, TOKEN_INT64, TOKEN_UINT16};
    const int32_t ids[] = {0, 1, 100, 127};

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        const char *prefix = support_path("%s/type%zu", folder, i);
        struct token_writer *writer = NULL;
        struct token_file file;
        int32_t back[4] = {0};
        int64_t min = 0, max = 0;

        cr_assert_eq(token_writer_create(fs_posix(), prefix, types[i], &writer), STATUS_OK);
        cr_assert_eq(token_writer_add_sequence(writer, ids, 4), STATUS_OK);
        cr_assert_eq(token_writer_end_document(writer), STATUS_OK);
        cr_assert_eq(token_writer_finish(writer), STATUS_OK);
        cr_assert_eq(token_writer_publish(writer), STATUS_OK);
        token_writer_destroy(writer);
        cr_assert_eq(token_file_open(prefix, &file), STATUS_OK);
        token_file_copy(&file, 0, 4, back);
        cr_assert_arr_eq(back, ids, sizeof ids);
        token_file_range(&file, 0, 4, &min, &max);
        cr_assert(min == 0 && max == 127);
        token_file_close(&file);
    }
}

Test(token_file, ids_that_do_not_fit_are_refused_and_nothing_is_left)
{
    struct token_writer *writer = NULL;
    int32_t id = 65536;

    cr_assert_eq(
        token_writer_create(fs_posix(), support_path("%s/wide", folder), TOKEN_UINT16, &writer),
        STATUS_OK);
    cr_assert_eq(token_writer_add_sequence(writer, &id, 1), STATUS_BAD_DATA);
    cr_assert(support_message_has("65536"));
    token_writer_destroy(writer);
    cr_assert_eq(support_count_files(folder), 0);
}

Test(token_file, unpublished_writer_leaves_the_old_pair)
{
    const char *prefix = make_copy(0, 0);
    struct token_writer *writer = NULL;
    int32_t id = 1;

    cr_assert_eq(token_writer_create(fs_posix(), prefix, TOKEN_UINT16, &writer), STATUS_OK);
    cr_assert_eq(token_writer_add_sequence(writer, &id, 1), STATUS_OK);
    cr_assert_eq(token_writer_finish(writer), STATUS_OK);
    token_writer_destroy(writer);
    cr_assert_eq(support_count_files(folder), 2);
    support_check_same(support_path("%s.idx", prefix), support_ref("megatron_data/text_eod.idx"));
    support_check_same(support_path("%s.bin", prefix), support_ref("megatron_data/text_eod.bin"));
}

Test(token_file, vocabularies_choose_the_type_as_megatron_does)
{
    cr_assert_eq(token_type_for_vocab(65499), TOKEN_UINT16);
    cr_assert_eq(token_type_for_vocab(65500), TOKEN_INT32);
}

/* A pair of `count` sequences of `id`, written as "/d/pair". */
static enum status write_simulated(struct fs *fs, int32_t id, size_t count)
{
    struct token_writer *writer = NULL;
    enum status st = STATUS_OK;

    TRY(st, token_writer_create(fs, "/d/pair", TOKEN_UINT16, &writer), done);
    for (size_t i = 0; i < count; i++) {
        TRY(st, token_writer_add_sequence(writer, &id, 1), done);
        TRY(st, token_writer_end_document(writer), done);
    }
    TRY(st, token_writer_finish(writer), done);
    TRY(st, token_writer_publish(writer), done);
done:
    token_writer_destroy(writer);
    return st;
}

static struct fs_sim *make_simulated(void)
{
    struct fs_sim *sim = fs_sim_create();

    cr_assert_eq(fs_mkdir(fs_sim_fs(sim), "/d"), STATUS_OK);
    cr_assert_eq(fs_sync_dir(fs_sim_fs(sim), "/"), STATUS_OK);
    return sim;
}

struct pair_bytes {
    char *bytes[2]; /* .idx, .bin; NULL: not there */
    size_t counts[2];
};

static struct pair_bytes read_simulated(struct fs *fs)
{
    static const char *const paths[2] = {"/d/pair.idx", "/d/pair.bin"};
    struct pair_bytes pair = {0};

    for (int i = 0; i < 2; i++) {
        if (fs_exists(fs, paths[i])) {
            cr_assert_eq(fs_read_file(fs, paths[i], 1 << 20, &pair.bytes[i], &pair.counts[i]),
                         STATUS_OK);
        }
    }
    return pair;
}

static void free_pair(struct pair_bytes *pair)
{
    mem_free(&pair->bytes[0]);
    mem_free(&pair->bytes[1]);
}

static bool same_pair(const struct pair_bytes *a, const struct pair_bytes *b)
{
    for (int i = 0; i < 2; i++) {
        if (a->bytes[i] == NULL || a->counts[i] != b->counts[i] ||
            memcmp(a->bytes[i], b->bytes[i], a->counts[i]) != 0) {
            return false;
        }
    }
    return true;
}

/* Writes the old pair, then the new one with call `n` failing or the power cut before it, and
 * checks that an index, if there is one, stands beside its own tokens. True: n was too late. */
static bool check_interrupted(uint64_t n, bool cut, uint64_t seed, const struct pair_bytes *old,
                              const struct pair_bytes *new)
{
    struct fs_sim *sim = make_simulated();
    struct fs *fs = fs_sim_fs(sim);

    cr_assert_eq(write_simulated(fs, 1, 5), STATUS_OK);
    if (cut) {
        fs_sim_cut_at(sim, n);
    } else {
        fs_sim_fail_at(sim, n, STATUS_NO_SPACE);
    }
    enum status st = write_simulated(fs, 2, 7);
    if (cut) {
        fs_sim_crash(sim, seed);
    } else {
        fs_sim_fail_at(sim, 0, STATUS_OK);
    }
    struct pair_bytes found = read_simulated(fs);
    bool is_new = same_pair(&found, new);

    cr_assert(found.bytes[0] == NULL || is_new || same_pair(&found, old), "call %zu, seed %zu",
              (size_t)n, (size_t)seed);
    cr_assert(st != STATUS_OK || is_new, "call %zu, seed %zu: success is durable", (size_t)n,
              (size_t)seed);
    free_pair(&found);
    fs_sim_destroy(sim);
    return st == STATUS_OK;
}

Test(token_file, interrupted_writer_leaves_the_old_pair_the_new_one_or_no_index)
{
    struct pair_bytes pairs[2];

    for (int i = 0; i < 2; i++) {
        struct fs_sim *sim = make_simulated();

        cr_assert_eq(write_simulated(fs_sim_fs(sim), i + 1, i == 0 ? 5 : 7), STATUS_OK);
        pairs[i] = read_simulated(fs_sim_fs(sim));
        fs_sim_destroy(sim);
    }
    bool done = false;
    for (uint64_t n = 1; !done; n++) {
        done = check_interrupted(n, false, 0, &pairs[0], &pairs[1]);
        for (uint64_t seed = 1; seed <= 50; seed++) {
            done = check_interrupted(n, true, seed, &pairs[0], &pairs[1]) && done;
        }
        cr_assert_lt(n, 100);
    }
    free_pair(&pairs[0]);
    free_pair(&pairs[1]);
}
