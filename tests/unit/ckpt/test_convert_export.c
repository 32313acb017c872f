/* Claims of convert.h's export: what was imported comes out bit for bit, in a file as the format
 * has it; all of the folder is there or none of it; what is no GPT-2 is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/json.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/ckpt.h"
#include "ckpt/convert.h"
#include "ckpt/gpt2_map.h"
#include "ckpt/safetensors_reader.h"
#include "ckpt/safetensors_writer.h"
#include "tests/support/fs_sim.h"
#include "tests/support/safetensors.h"
#include "tests/unit/meta/meta_support.h"

#define FILE_BYTES_MAX ((size_t)1 << 30)

static void quiet(void)
{
    log_init(LOG_LEVEL_ERROR, "");
}

TestSuite(convert_export, .init = quiet, .timeout = 100);

static enum status export_step_0(struct fs *fs, const char *save, const char *folder)
{
    char checkpoint[FS_PATH_MAX];
    struct manifest manifest;
    struct convert_result result;

    assert_ok(fs_join(checkpoint, save, "step_0000000"));
    assert_ok(manifest_read(fs, checkpoint, &manifest));
    enum status st = convert_export_gpt2(fs, checkpoint, &manifest, folder, 1, &result);
    manifest_deinit(&manifest);
    return st;
}

static void import(struct fs *fs, const char *folder, const char *save)
{
    struct convert_result result;

    assert_ok(convert_import_gpt2(fs, folder, save, 1, &result));
}

static const char *ref_folder(const char *name)
{
    static char path[FS_PATH_MAX];

    (void)snprintf(path, sizeof path, "%s/hf_gpt2/%s", getenv("HOLDFAST_TEST_REFS"), name);
    return path;
}

/* ---- round trips ---- */

static void check_same_tensors(const char *folder, const char *name)
{
    struct safetensors_reader reader;
    struct safetensors *reference = NULL;
    char file[64];
    size_t count = 0;

    (void)snprintf(file, sizeof file, "hf_gpt2/%s/model.safetensors", name);
    assert_ok(safetensors_open_ref(file, &reference));
    assert_ok(
        safetensors_reader_open(fs_posix(), support_path(folder, "model.safetensors"), &reader));
    for (const cJSON *row = reader.header->child; row != NULL; row = row->next) {
        struct safetensor tensor;
        float *values = NULL;

        if (strcmp(row->string, "__metadata__") == 0) {
            continue;
        }
        assert_ok(safetensors_find(reference, row->string, &tensor));
        assert_ok(
            safetensors_reader_read_f32(&reader, row->string, tensor.dims, tensor.shape, &values));
        cr_assert(memcmp(values, tensor.values, tensor.count * sizeof *values) == 0, "'%s'",
                  row->string);
        mem_free(&values);
        count++;
    }
    cr_assert_eq(count, GPT2_OUTER_COUNT + 2 * GPT2_INNER_COUNT);
    safetensors_reader_close(&reader);
    safetensors_close(&reference);
}

static void check_round_trip(const char *name, uint64_t vocab)
{
    char root[FS_PATH_MAX], save[FS_PATH_MAX], out[FS_PATH_MAX];
    cJSON *config = NULL;
    uint64_t value = 0;
    bool flag = false;

    support_make_folder(root);
    assert_ok(fs_join(save, root, "save"));
    assert_ok(fs_join(out, root, "out"));
    import(fs_posix(), ref_folder(name), save);
    assert_ok(export_step_0(fs_posix(), save, out));
    check_same_tensors(out, name);
    assert_ok(json_read_file(fs_posix(), support_path(out, "config.json"), &config));
    assert_ok(json_get_u64(config, "config", "vocab_size", &value));
    cr_assert_eq(value, vocab);
    assert_ok(json_get_u64(config, "config", "n_head", &value));
    cr_assert_eq(value, 4);
    assert_ok(json_get_bool(config, "config", "tie_word_embeddings", &flag));
    cr_assert(flag);
    cJSON_Delete(config);
    assert_status(export_step_0(fs_posix(), save, out), STATUS_EXISTS);
    check_same_tensors(out, name);
    support_remove_folder(root);
    cr_assert_eq(mem_used_bytes(), 0);
}

Test(convert_export, what_was_imported_comes_out_bit_for_bit)
{
    check_round_trip("a", 512);
    check_round_trip("a500", 500);
}

/* A model of its own: no two values alike, lm_head apart, a kernel that is no square. */
static void write_untied(const char *folder)
{
    const struct gpt2_config config = {.layers = 2,
                                       .hidden = 6,
                                       .heads = 3,
                                       .ffn = 10,
                                       .vocab = 11,
                                       .positions = 5,
                                       .untied = true};
    struct safetensors_entry entries[GPT2_OUTER_COUNT + 2 * GPT2_INNER_COUNT + 1];
    const size_t count = sizeof entries / sizeof *entries;
    struct safetensors_writer *writer = NULL;
    float values[256], next = 1;

    support_write_text(fs_posix(), folder, "config.json",
                       "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 6, \"n_head\": 3, "
                       "\"n_inner\": 10, \"vocab_size\": 11, \"n_positions\": 5, "
                       "\"layer_norm_epsilon\": 0.001, \"tie_word_embeddings\": false}");
    for (size_t i = 0; i < count; i++) {
        bool outer = i < GPT2_OUTER_COUNT, last = i == count - 1;
        size_t at = outer || last ? i : (i - GPT2_OUTER_COUNT) % GPT2_INNER_COUNT;
        int layer = outer || last ? 0 : (int)((i - GPT2_OUTER_COUNT) / GPT2_INNER_COUNT);
        const struct gpt2_mapping *mapping = last    ? &gpt2_lm_head
                                             : outer ? &gpt2_outer[at]
                                                     : &gpt2_inner[at];
        char name[GPT2_NAME_MAX];

        gpt2_name(name, mapping->theirs, layer);
        entries[i].dims = gpt2_their_shape(&config, mapping, entries[i].shape);
        assert_ok(mem_format(&entries[i].name, "%s%s", last ? "" : GPT2_PREFIX, name));
    }
    assert_ok(safetensors_writer_create(fs_posix(), support_path(folder, "model.safetensors"),
                                        entries, count, &writer));
    for (size_t i = 0; i < count; i++) {
        size_t elements = entries[i].shape[0] * (entries[i].dims > 1 ? entries[i].shape[1] : 1);

        cr_assert_leq(elements, 256);
        for (size_t e = 0; e < elements; e++) {
            values[e] = next++;
        }
        assert_ok(safetensors_writer_add(writer, values));
        mem_free(&entries[i].name);
    }
    assert_ok(safetensors_writer_finish(writer));
    safetensors_writer_destroy(&writer);
}

Test(convert_export, an_untied_head_and_odd_sizes_come_out_byte_for_byte)
{
    char root[FS_PATH_MAX], in[FS_PATH_MAX], save[FS_PATH_MAX], out[FS_PATH_MAX];
    char *wanted = NULL, *got = NULL;
    size_t wanted_count = 0, got_count = 0;
    cJSON *config = NULL;
    double epsilon = 0;
    bool tied = true;

    support_make_folder(root);
    assert_ok(fs_join(in, root, "in"));
    assert_ok(fs_join(save, root, "save"));
    assert_ok(fs_join(out, root, "out/")); /* as a shell completes it */
    assert_ok(fs_mkdir(fs_posix(), in));
    write_untied(in);
    import(fs_posix(), in, save);
    assert_ok(export_step_0(fs_posix(), save, out));
    assert_ok(fs_read_file(fs_posix(), support_path(in, "model.safetensors"), FILE_BYTES_MAX,
                           &wanted, &wanted_count));
    assert_ok(fs_read_file(fs_posix(), support_path(out, "model.safetensors"), FILE_BYTES_MAX, &got,
                           &got_count));
    cr_assert(wanted_count == got_count && memcmp(wanted, got, got_count) == 0);
    assert_ok(json_read_file(fs_posix(), support_path(out, "config.json"), &config));
    assert_ok(json_get_bool(config, "config", "tie_word_embeddings", &tied));
    assert_ok(json_get_double(config, "config", "layer_norm_epsilon", &epsilon));
    cr_assert(!tied && epsilon == 0.001);
    cJSON_Delete(config);
    mem_free(&wanted);
    mem_free(&got);
    support_remove_folder(root);
}

Test(convert_export, a_file_is_as_the_format_has_it)
{
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
        "\"b.c\":{\"dtype\":\"F32\",\"shape\":[1,3],\"data_offsets\":[8,20]}}";
    struct safetensors_entry entries[] = {{(char *)"a", 1, {2, 0}}, {(char *)"b.c", 2, {1, 3}}};
    const float a[] = {1, 2}, b[] = {3, 4, 5};
    struct safetensors_writer *writer = NULL;
    char root[FS_PATH_MAX], *bytes = NULL;
    size_t count = 0, padded = (sizeof header - 1 + 7) / 8 * 8;

    support_make_folder(root);
    const char *path = support_path(root, "file");
    assert_ok(safetensors_writer_create(fs_posix(), path, entries, 2, &writer));
    assert_ok(safetensors_writer_add(writer, a));
    assert_ok(safetensors_writer_add(writer, b));
    assert_ok(safetensors_writer_finish(writer));
    safetensors_writer_destroy(&writer);
    assert_ok(fs_read_file(fs_posix(), path, FILE_BYTES_MAX, &bytes, &count));
    cr_assert_eq(count, 8 + padded + 20);
    cr_assert(bytes[0] == (char)padded && memcmp(bytes + 1, "\0\0\0\0\0\0\0", 7) == 0);
    cr_assert(memcmp(bytes + 8, header, sizeof header - 1) == 0, "%.*s", (int)padded, bytes + 8);
    for (size_t i = sizeof header - 1; i < padded; i++) {
        cr_assert_eq(bytes[8 + i], ' ');
    }
    cr_assert(memcmp(bytes + 8 + padded, a, 8) == 0 && memcmp(bytes + 16 + padded, b, 12) == 0);
    mem_free(&bytes);
    support_remove_folder(root);
}

/* ---- refusals ---- */

static void check_refused(const char *checkpoint, const struct manifest *manifest, const char *part)
{
    struct convert_result result;
    char parent[FS_PATH_MAX], out[FS_PATH_MAX];

    fs_parent(parent, checkpoint);
    assert_ok(fs_join(out, parent, "out"));
    assert_status(convert_export_gpt2(fs_posix(), checkpoint, manifest, out, 1, &result),
                  STATUS_UNSUPPORTED);
    cr_assert(strstr(status_last()->message, part) != NULL, "%s", status_last()->message);
    cr_assert(!fs_exists(fs_posix(), out));
}

Test(convert_export, what_is_no_gpt2_is_refused_by_what_is_wrong)
{
    static const struct {
        const char *option;
        double value; /* 0: the option is not there */
        const char *part;
    } cases[] = {
        {"num-layers", 0, "num-layers"},
        {"num-layers", 3, "no tensor 'param/decoder.layers.2.input_layernorm.weight'"},
        {"num-layers", 1, "has a tensor 'param/decoder.layers.1."},
        {"num-layers", 1e9, "num-layers of 1 to 10000"},
        {"ffn-hidden-size", 64, "mlp.linear_fc1.weight' is f32 of 2 dimensions, the first of 256"},
        {"num-attention-heads", 7, "hidden-size 64 is no multiple of 7 heads"},
        {"vocab-size", 500, "'param/embedding.word_embeddings.weight'"},
    };
    char save[FS_PATH_MAX], checkpoint[FS_PATH_MAX];
    struct manifest manifest;
    const uint64_t shape[] = {4};

    support_make_folder(save);
    assert_ok(fs_join(checkpoint, save, "step_0000000"));
    import(fs_posix(), ref_folder("a"), save);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ok(manifest_read(fs_posix(), checkpoint, &manifest));
        if (cases[i].value == 0) {
            cJSON_DeleteItemFromObject(manifest.options, cases[i].option);
        } else {
            cJSON *row = cJSON_GetObjectItem(manifest.options, cases[i].option);

            (void)cJSON_SetNumberValue(cJSON_GetObjectItem(row, "value"), cases[i].value);
        }
        check_refused(checkpoint, &manifest, cases[i].part);
        manifest_deinit(&manifest);
    }
    assert_ok(manifest_read(fs_posix(), checkpoint, &manifest));
    assert_ok(manifest_add_tensor(&manifest, "param/extra.weight", MANIFEST_F32, 1, shape));
    check_refused(checkpoint, &manifest, "has a tensor 'param/extra.weight'");
    manifest_deinit(&manifest);
    support_remove_folder(save);
}

Test(convert_export, a_damaged_checkpoint_leaves_nothing)
{
    char root[FS_PATH_MAX], save[FS_PATH_MAX], out[FS_PATH_MAX], shard[FS_PATH_MAX];
    struct fs_file *file = NULL;
    struct fs_names names;

    support_make_folder(root);
    assert_ok(fs_join(save, root, "save"));
    assert_ok(fs_join(out, root, "out"));
    assert_ok(fs_join(shard, save, "step_0000000/tp00_pp00_dp00.h5"));
    import(fs_posix(), ref_folder("a"), save);
    assert_ok(fs_open(fs_posix(), shard, FS_UPDATE, &file));
    assert_ok(fs_pwrite(file, "damage", 6, 5000)); /* within the first tensor, a weight */
    fs_close(&file);
    assert_status(export_step_0(fs_posix(), save, out), STATUS_CORRUPT);
    assert_ok(fs_list(fs_posix(), root, &names));
    cr_assert(names.count == 1, "'%s' is left", names.names[0]);
    fs_names_deinit(&names);
    support_remove_folder(root);
}

/* ---- failing calls and power cuts ---- */

/* A simulated disk with the checkpoint of model "a" in /save. */
static struct fs_sim *make_disk(void)
{
    struct fs_sim *sim = fs_sim_create();
    struct fs *fs = fs_sim_fs(sim);
    static const char *const files[] = {"config.json", "model.safetensors"};

    assert_ok(fs_mkdir(fs, "/in"));
    for (size_t i = 0; i < 2; i++) {
        char *bytes = NULL;
        size_t count = 0;

        assert_ok(fs_read_file(fs_posix(), support_path(ref_folder("a"), files[i]), FILE_BYTES_MAX,
                               &bytes, &count));
        assert_ok(fs_replace_file(fs, support_path("/in", files[i]), bytes, count));
        mem_free(&bytes);
    }
    import(fs, "/in", "/save");
    assert_ok(fs_sync_dir(fs, "/"));
    return sim;
}

/* Whether nothing but /in, /save and, with `out`, a whole /out is there. */
static void check_disk(struct fs *fs, bool out)
{
    struct safetensors_reader reader;
    struct fs_names names;

    assert_ok(fs_list(fs, "/", &names));
    cr_assert_eq(names.count, out ? 3 : 2, "%zu names, '%s' ...", names.count, names.names[0]);
    fs_names_deinit(&names);
    if (out) {
        assert_ok(safetensors_reader_open(fs, "/out/model.safetensors", &reader));
        cr_assert_eq(reader.data_bytes, 141056 * sizeof(float));
        safetensors_reader_close(&reader);
        cr_assert(fs_exists(fs, "/out/config.json"));
        import(fs, "/out", "/again");
        assert_ok(fs_remove_tree(fs, "/again"));
    }
}

Test(convert_export, each_failing_call_leaves_nothing)
{
    struct fs_sim *sim = make_disk();
    struct fs *fs = fs_sim_fs(sim);
    struct manifest manifest;
    struct convert_result result;
    uint64_t calls = 1;

    assert_ok(manifest_read(fs, "/save/step_0000000", &manifest));
    for (uint64_t n = 0; n <= calls; n++) { /* 0: none fails, and they are counted */
        uint64_t before = fs_sim_calls(sim);

        fs_sim_fail_at(sim, n, STATUS_NO_SPACE);
        enum status st =
            convert_export_gpt2(fs, "/save/step_0000000", &manifest, "/out", 1, &result);
        fs_sim_fail_at(sim, 0, STATUS_OK);
        calls = n == 0 ? fs_sim_calls(sim) - before : calls;
        cr_assert_eq(st, n == 0 ? STATUS_OK : STATUS_NO_SPACE, "call %llu: %s",
                     (unsigned long long)n, status_last()->message);
        check_disk(fs, st == STATUS_OK);
        assert_ok(fs_remove_tree(fs, "/out"));
    }
    cr_assert_gt(calls, 50);
    manifest_deinit(&manifest);
    fs_sim_destroy(sim);
}

Test(convert_export, a_power_cut_leaves_the_whole_folder_or_no_folder)
{
    int whole = 0, none = 0;
    uint64_t calls = 0;

    for (uint64_t cut = 1; cut == 1 || cut <= calls + 1; cut += 1 + calls / 40) {
        struct fs_sim *sim = make_disk();
        struct fs *fs = fs_sim_fs(sim);
        uint64_t before = fs_sim_calls(sim);

        if (cut > 1) {
            fs_sim_cut_at(sim, cut);
        }
        enum status st = export_step_0(fs, "/save", "/out");
        calls = cut == 1 ? fs_sim_calls(sim) - before : calls;
        fs_sim_crash(sim, cut);
        bool out = fs_exists(fs, "/out");
        cr_assert(out || st != STATUS_OK, "cut %llu", (unsigned long long)cut);
        if (out) {
            import(fs, "/out", "/again");
        }
        whole += out;
        none += !out;
        fs_sim_destroy(sim);
    }
    cr_assert(whole > 0 && none > 0, "%d whole, %d none", whole, none);
}
