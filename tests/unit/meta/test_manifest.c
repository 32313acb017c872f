/* Claims of manifest.h: round trip, and refusal of what was changed by chance or on purpose. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/mem.h"
#include "ckpt/meta/manifest.h"
#include "tests/unit/meta/meta_support.h"

#define TAIL_BYTES (strlen("  \"manifest_hash\": \"\"\n}\n") + 32)

/* A valid manifest's text. */
static char *print_valid(size_t *out_bytes)
{
    struct manifest manifest;
    char *text = NULL;

    support_fill_manifest(&manifest, 500);
    support_add_file(&manifest, 1);
    support_add_file(&manifest, 0);
    assert_ok(manifest_print(&manifest, &text, out_bytes));
    manifest_deinit(&manifest);
    return text;
}

/* Parses the valid text after replacing `from` by `to`, under a right hash, as a forger would. */
static enum status parse_forged(const char *from, const char *to)
{
    struct manifest manifest;
    char *forged, hash[HASH_TEXT_MAX];
    size_t bytes;
    char *text = print_valid(&bytes);
    char *at = strstr(text, from);

    cr_assert(at != NULL, "'%s' is not in %s", from, text);
    size_t body = bytes - TAIL_BYTES;
    forged = calloc(1, bytes + strlen(to) + 1);
    memcpy(forged, text, (size_t)(at - text));
    strcpy(forged + (at - text), to);
    strncat(forged, at + strlen(from), body - (size_t)(at - text) - strlen(from));
    body = strlen(forged);
    hash128_format(hash_bytes128(forged, body), hash);
    forged = realloc(forged, body + TAIL_BYTES + 1);
    sprintf(forged + body, "  \"manifest_hash\": \"%s\"\n}\n", hash);
    enum status st = manifest_parse(forged, strlen(forged), "forged", &manifest);
    manifest_deinit(&manifest);
    free(forged);
    mem_free(&text);
    return st;
}

Test(manifest, what_is_printed_is_read_back)
{
    struct manifest manifest;
    size_t bytes;
    char *text = print_valid(&bytes);

    cr_assert(strlen(text) == bytes);
    assert_ok(manifest_parse(text, bytes, "text", &manifest));
    cr_assert(manifest.step == 500 && manifest.epoch == 1 && manifest.parent_step == 0);
    cr_assert_str_eq(manifest.run_id, "run-a");
    cr_assert_str_eq(manifest.compression, "none");
    cr_assert(manifest.created_wall_ns == 1764560659123456789);
    cr_assert(manifest.state_hash == 0xfedcba9876543210);
    cr_assert(manifest.layout.tp == 2 && manifest.layout.pp == 1 && manifest.layout.dp == 1);
    cr_assert(cJSON_GetObjectItem(manifest.options, "lr")->valuedouble == 0.1);
    cr_assert(cJSON_GetObjectItem(manifest.state, "consumed_samples")->valuedouble == 4096);
    cr_assert(manifest.tensor_count == 2 && manifest.file_count == 2);
    const struct manifest_tensor *a = manifest_find(&manifest, "param/a");
    cr_assert(a != NULL && a->type == MANIFEST_BF16 && a->dims == 3 && a->shape[2] == 8);
    cr_assert(manifest_find(&manifest, "param/c") == NULL);
    cr_assert(manifest.files[1].coords.tp == 1 && manifest.files[1].index_bytes == 40);
    cr_assert(manifest_total_bytes(&manifest) == 2 * SUPPORT_SHARD_BYTES);

    char *again = NULL;
    size_t again_bytes;
    assert_ok(manifest_print(&manifest, &again, &again_bytes));
    cr_assert(again_bytes == bytes && memcmp(again, text, bytes) == 0);
    mem_free(&again);
    mem_free(&text);
    manifest_deinit(&manifest);
}

Test(manifest, a_flipped_bit_in_any_byte_is_refused)
{
    struct manifest manifest;
    size_t bytes;
    char *text = print_valid(&bytes);

    for (size_t i = 0; i < bytes; i++) {
        char kept = text[i];
        text[i] = (char)(text[i] ^ (1 << i % 8));
        assert_status(manifest_parse(text, bytes, "text", &manifest), STATUS_CORRUPT);
        text[i] = kept;
    }
    assert_ok(manifest_parse(text, bytes, "text", &manifest));
    manifest_deinit(&manifest);
    mem_free(&text);
}

Test(manifest, a_text_cut_or_lengthened_anywhere_is_refused)
{
    struct manifest manifest;
    size_t bytes;
    char *text = print_valid(&bytes);

    for (size_t i = 0; i < bytes; i++) {
        assert_status(manifest_parse(text, i, "text", &manifest), STATUS_CORRUPT);
    }
    assert_status(manifest_parse(text, bytes + 1, "text", &manifest), STATUS_CORRUPT);
    mem_free(&text);
}

Test(manifest, a_forged_value_out_of_range_is_refused_in_spite_of_its_right_hash)
{
    static const char *const forgeries[][2] = {
        {"\"tp00_pp00_dp00.h5\"", "\"../../etc/passwd\""},
        {"\"tp00_pp00_dp00.h5\"", "\"/tp00_pp00_dp00.h5\""},
        {"\"tp00_pp00_dp00.h5\"", "\"a/tp00_pp00_dp00.h5\""},
        {"\"tp00_pp00_dp00.h5\"", "\"tp01_pp00_dp00.h5\""},
        {"\"tp00_pp00_dp00.h5\"", "\"\""},
        {"\"tp00_pp00_dp00.h5\"", "7"},
        {"param/a", "param/b"},
        {"param/a", "param/../b"},
        {"param/a", "/param"},
        {"param/a", "param//a"},
        {"param/a", "param/."},
        {"param/a", ""},
        {"param/a", "param a"},
        {"param/a", "par\\u0001am"},
        {"\"bf16\"", "\"f64\""},
        {"[4, 2, 8]", "[]"},
        {"[4, 2, 8]", "[4, 0, 8]"},
        {"[4, 2, 8]", "[4, 2, 8, 1, 1]"},
        {"[4, 2, 8]", "[4, -2, 8]"},
        {"[4, 2, 8]", "[4, 2.5, 8]"},
        {"[4, 2, 8]", "[4294967296, 4294967296, 8]"},
        {"[4, 2, 8]", "[1e300]"},
        {"[4, 2, 8]", "{\"x\": 4}"},
        {"\"bytes\":", "\"bites\":"},
        {"\"state\":", "\"status\":"},
        {"\"step\":", "\"step\": 400, \"step\":"},
        {"\"index_bytes\":", "\"index_bytes\": 9007199254740992, \"x\":"},
        {"\"index_offset\":", "\"index_offset\": 301, \"x\":"},
        {"\"bytes\":", "\"bytes\": -1, \"x\":"},
        {"\"bytes\":", "\"bytes\": 1e18, \"x\":"},
        {"\"hash\":", "\"hash\": \"00\", \"x\":"},
        {"\"parent_step\":", "\"parent_step\": 501, \"x\":"},
        {"\"run_id\":", "\"run_id\": \"\", \"x\":"},
        {"holdfast checkpoint", "another checkpoint"},
        {"\"layout\":", "\"layout\": {\"tp\": 65536, \"pp\": 65536, \"dp\": 65536}, \"x\":"},
        {"\"layout\":", "\"layout\": {\"tp\": 2, \"pp\": 0, \"dp\": 1}, \"x\":"},
        {"\"layout\":", "\"layout\": {\"tp\": 1, \"pp\": 2, \"dp\": 1}, \"x\":"},
        {"\"layout\":", "\"layout\": {\"tp\": 3, \"pp\": 1, \"dp\": 1}, \"x\":"},
        {"\"tensors\":", "\"tensors\": [1, 2], \"x\":"},
        {"\"tensors\":", "\"tensors\": [[1]], \"x\":"},
        {"\"files\":", "\"files\": [], \"x\":"},
        {"\"files\":", "\"files\": {}, \"x\":"},
    };

    assert_ok(parse_forged("run-a", "run-b"));
    for (size_t i = 0; i < sizeof forgeries / sizeof *forgeries; i++) {
        enum status st = parse_forged(forgeries[i][0], forgeries[i][1]);
        cr_assert(st == STATUS_CORRUPT, "'%s' for '%s' gives %s", forgeries[i][1], forgeries[i][0],
                  status_name(st));
    }
}

Test(manifest, two_files_of_one_rank_are_refused)
{
    struct manifest manifest;
    struct manifest_file file;

    support_fill_manifest(&manifest, 1);
    support_add_file(&manifest, 0);
    file = manifest.files[0];
    assert_status(manifest_add_file(&manifest, &file), STATUS_EXISTS);
    manifest_deinit(&manifest);
}

Test(manifest, a_newer_format_version_is_unsupported_not_corrupt)
{
    assert_status(parse_forged("\"format_version\":", "\"format_version\": 2, \"x\":"),
                  STATUS_UNSUPPORTED);
    cr_assert(strstr(status_last()->message, "version 2") != NULL);
}

Test(manifest, unknown_members_are_passed_over)
{
    assert_ok(parse_forged("\"state\":", "\"later\": {\"a\": [1]}, \"state\":"));
}

Test(manifest, a_manifest_that_breaks_a_rule_is_not_printed)
{
    struct manifest manifest;
    char *text = NULL;
    size_t bytes;

    support_fill_manifest(&manifest, 1);
    support_add_file(&manifest, 0);
    assert_status(manifest_print(&manifest, &text, &bytes), STATUS_CORRUPT);
    support_add_file(&manifest, 1);
    manifest.parent_step = 2;
    assert_status(manifest_print(&manifest, &text, &bytes), STATUS_CORRUPT);
    cr_assert(text == NULL);
    manifest_deinit(&manifest);
}

Test(manifest, a_tensor_is_added_once_and_found_whatever_the_order)
{
    struct manifest manifest;
    char name[32];

    assert_ok(manifest_init(&manifest));
    for (int i = 0; i < 500; i++) {
        (void)snprintf(name, sizeof name, "t/%d", i * 7919 % 500);
        assert_ok(manifest_add_tensor(&manifest, name, MANIFEST_F32, 1, (uint64_t[]){1}));
        assert_status(manifest_add_tensor(&manifest, name, MANIFEST_F32, 1, (uint64_t[]){1}),
                      STATUS_EXISTS);
    }
    for (size_t i = 1; i < manifest.tensor_count; i++) {
        cr_assert(strcmp(manifest.tensors[i - 1].name, manifest.tensors[i].name) < 0);
    }
    cr_assert(manifest_find(&manifest, "t/499") != NULL);
    cr_assert(manifest_find(&manifest, "t/500") == NULL);
    manifest_deinit(&manifest);
}

Test(manifest, each_failed_allocation_is_an_error_and_no_leak)
{
    size_t bytes;
    char *text = print_valid(&bytes);
    size_t held = mem_used_bytes();
    enum status st = STATUS_NO_MEMORY;

    for (uint64_t n = 1; st != STATUS_OK; n++) {
        struct manifest manifest;

        cr_assert(n < 1000);
        mem_fail_at(n);
        st = manifest_parse(text, bytes, "text", &manifest);
        mem_fail_at(0);
        cr_assert(st == STATUS_OK || st == STATUS_NO_MEMORY, "%s", status_name(st));
        manifest_deinit(&manifest);
        cr_assert(mem_used_bytes() == held);
    }
    mem_free(&text);
}

Test(manifest, files_are_checked_by_size_and_by_hash)
{
    char folder[FS_PATH_MAX], step[FS_PATH_MAX];
    struct fs *fs = fs_posix();
    struct manifest manifest;
    struct fs_file *file = NULL;

    support_make_folder(folder);
    support_plant(fs, folder, 7);
    assert_ok(fs_join(step, folder, "step_0000007"));
    assert_ok(manifest_read(fs, step, &manifest));
    assert_ok(manifest_check_files(&manifest, fs, step));
    assert_ok(manifest_check_file_hash(&manifest.files[1], fs, step));

    assert_ok(fs_open(fs, support_path(step, "tp01_pp00_dp00.h5"), FS_UPDATE, &file));
    char byte;
    assert_ok(fs_pread(file, &byte, 1, 123));
    byte ^= 4;
    assert_ok(fs_pwrite(file, &byte, 1, 123));
    assert_ok(manifest_check_files(&manifest, fs, step));
    assert_status(manifest_check_file_hash(&manifest.files[1], fs, step), STATUS_CORRUPT);
    assert_ok(fs_truncate(file, SUPPORT_SHARD_BYTES - 1));
    fs_close(&file);
    assert_status(manifest_check_files(&manifest, fs, step), STATUS_CORRUPT);
    assert_status(manifest_check_file_hash(&manifest.files[1], fs, step), STATUS_CORRUPT);
    assert_ok(fs_unlink(fs, support_path(step, "tp01_pp00_dp00.h5")));
    assert_status(manifest_check_files(&manifest, fs, step), STATUS_CORRUPT);
    cr_assert(strstr(status_last()->message, "missing") != NULL);
    manifest_deinit(&manifest);
    assert_ok(fs_unlink(fs, support_path(step, MANIFEST_FILE)));
    assert_status(manifest_read(fs, step, &manifest), STATUS_NOT_FOUND);
    support_write_text(fs, step, MANIFEST_FILE, "");
    assert_status(manifest_read(fs, step, &manifest), STATUS_CORRUPT);
    support_remove_folder(folder);
}
