/* Claims of convert.h: an import is the mapping written down here once more, by hand, from the
 * model's description; hostile and foreign inputs are refused and leave nothing. */
#include "ckpt/convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/ckpt.h"
#include "tests/support/safetensors.h"
#include "tests/unit/meta/meta_support.h"

#define HIDDEN 64
#define HEADS 4
#define HEAD (HIDDEN / HEADS)
#define LAYERS 2
#define CONFIG                                                                                     \
    "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_embd\": 2, \"n_head\": 1, "                    \
    "\"vocab_size\": 3, \"n_positions\": 2%s}"

static void quiet(void)
{
    log_init(LOG_LEVEL_ERROR, "");
}

TestSuite(convert, .init = quiet);

static const char *ref_folder(const char *name)
{
    const char *refs = getenv("HOLDFAST_TEST_REFS");
    static char path[FS_PATH_MAX];

    cr_assert(refs != NULL, "HOLDFAST_TEST_REFS names tests/refs");
    (void)snprintf(path, sizeof path, "%s/hf_gpt2/%s", refs, name);
    return path;
}

/* An imported checkpoint, read whole tensor by whole tensor. */
struct imported {
    char save[FS_PATH_MAX];
    struct ckpt_choice choice;
    struct safetensors *source;
    size_t checked;
};

static float *load(struct imported *imported, const char *kind, const char *name)
{
    struct ckpt_group alone = {.size = 1};
    char full[MANIFEST_TENSOR_NAME_MAX];
    float *values = NULL;

    (void)snprintf(full, sizeof full, "%s/%s", kind, name);
    const struct manifest_tensor *tensor = manifest_find(&imported->choice.manifest, full);
    cr_assert(tensor != NULL, "no tensor '%s'", full);
    struct ckpt_tensor wanted = {.name = full, .type = tensor->type, .dims = tensor->dims};
    memcpy(wanted.shape, tensor->shape, sizeof wanted.shape);
    wanted.box = wanted.owned = box_whole(tensor->dims, tensor->shape);
    assert_ok(mem_alloc(&values, (size_t)box_count(&wanted.box), sizeof *values));
    wanted.data = values;
    assert_ok(ckpt_load(fs_posix(), &imported->choice, &wanted, 1, 1, &alone));
    imported->checked++;
    return values;
}

/* Row of the fused QKV, head by head, as a column of theirs: q of all heads, k of all, v of all. */
static size_t qkv_column(size_t row)
{
    size_t head = row / (3 * HEAD), which = row % (3 * HEAD) / HEAD, at = row % HEAD;

    return which * HIDDEN + head * HEAD + at;
}

enum mapping { SAME, TRANSPOSED, QKV_ROWS };

static void check(struct imported *imported, const char *ours, const char *theirs,
                  enum mapping mapping)
{
    struct safetensor tensor;

    assert_ok(safetensors_find(imported->source, theirs, &tensor));
    float *values = load(imported, "param", ours);
    size_t rows = (size_t)tensor.shape[0], columns = tensor.dims > 1 ? (size_t)tensor.shape[1] : 1;
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < columns; c++) {
            float expected = tensor.values[r * columns + c], got;
            if (mapping == SAME) {
                got = values[r * columns + c];
            } else if (mapping == TRANSPOSED) {
                got = values[c * rows + r];
            } else {
                continue;
            }
            cr_assert(memcmp(&expected, &got, sizeof got) == 0, "'%s'[%zu, %zu]", ours, r, c);
        }
    }
    for (size_t row = 0; mapping == QKV_ROWS && row < (size_t)3 * HIDDEN; row++) {
        if (tensor.dims == 1) {
            cr_assert(values[row] == tensor.values[qkv_column(row)], "'%s'[%zu]", ours, row);
        }
        for (size_t c = 0; tensor.dims == 2 && c < HIDDEN; c++) {
            cr_assert(values[row * HIDDEN + c] == tensor.values[c * columns + qkv_column(row)],
                      "'%s'[%zu, %zu]", ours, row, c);
        }
    }
    mem_free(&values);
}

static void check_layer(struct imported *imported, int layer)
{
    static const struct {
        const char *ours, *theirs;
        enum mapping mapping;
    } rows[] = {
        {"input_layernorm.weight", "ln_1.weight", SAME},
        {"input_layernorm.bias", "ln_1.bias", SAME},
        {"self_attention.linear_qkv.weight", "attn.c_attn.weight", QKV_ROWS},
        {"self_attention.linear_qkv.bias", "attn.c_attn.bias", QKV_ROWS},
        {"self_attention.linear_proj.weight", "attn.c_proj.weight", TRANSPOSED},
        {"self_attention.linear_proj.bias", "attn.c_proj.bias", SAME},
        {"pre_mlp_layernorm.weight", "ln_2.weight", SAME},
        {"pre_mlp_layernorm.bias", "ln_2.bias", SAME},
        {"mlp.linear_fc1.weight", "mlp.c_fc.weight", TRANSPOSED},
        {"mlp.linear_fc1.bias", "mlp.c_fc.bias", SAME},
        {"mlp.linear_fc2.weight", "mlp.c_proj.weight", TRANSPOSED},
        {"mlp.linear_fc2.bias", "mlp.c_proj.bias", SAME},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char ours[128], theirs[128];
        (void)snprintf(ours, sizeof ours, "decoder.layers.%d.%s", layer, rows[i].ours);
        (void)snprintf(theirs, sizeof theirs, "transformer.h.%d.%s", layer, rows[i].theirs);
        check(imported, ours, theirs, rows[i].mapping);
    }
}

static void check_moments(struct imported *imported)
{
    static const char *const kinds[] = {"exp_avg", "exp_avg_sq"};
    const struct manifest *manifest = &imported->choice.manifest;

    for (size_t i = 0; i < manifest->tensor_count; i++) {
        const char *name = manifest->tensors[i].name;
        if (strncmp(name, "param/", 6) != 0) {
            continue;
        }
        struct box whole = box_whole(manifest->tensors[i].dims, manifest->tensors[i].shape);
        for (size_t k = 0; k < 2; k++) {
            float *values = load(imported, kinds[k], name + 6);
            for (uint64_t e = 0; e < box_count(&whole); e++) {
                cr_assert(values[e] == 0, "'%s/%s'", kinds[k], name + 6);
            }
            mem_free(&values);
        }
    }
}

static void check_import(const char *name, uint64_t vocab)
{
    struct imported imported = {.checked = 0};
    struct ckpt_group alone = {.size = 1};
    struct convert_result result, again;
    char file[64];

    support_make_folder(imported.save);
    assert_ok(convert_import_gpt2(fs_posix(), ref_folder(name), imported.save, 2, &result));
    (void)snprintf(file, sizeof file, "hf_gpt2/%s/model.safetensors", name);
    assert_ok(safetensors_open_ref(file, &imported.source));
    assert_ok(ckpt_choose(fs_posix(), imported.save, UINT64_MAX, false, &alone, &imported.choice));
    const struct manifest *manifest = &imported.choice.manifest;
    cr_assert(manifest->step == 0 && manifest->state_hash == result.state_hash);
    cr_assert(manifest_find(manifest, "param/embedding.word_embeddings.weight")->shape[0] == vocab);
    check(&imported, "embedding.word_embeddings.weight", "transformer.wte.weight", SAME);
    check(&imported, "embedding.position_embeddings.weight", "transformer.wpe.weight", SAME);
    check(&imported, "decoder.final_layernorm.weight", "transformer.ln_f.weight", SAME);
    check(&imported, "decoder.final_layernorm.bias", "transformer.ln_f.bias", SAME);
    for (int layer = 0; layer < LAYERS; layer++) {
        check_layer(&imported, layer);
    }
    check_moments(&imported);
    cr_assert(imported.checked == manifest->tensor_count, "%zu of %zu tensors are known",
              imported.checked, manifest->tensor_count);
    assert_ok(ckpt_verify(fs_posix(), imported.choice.path, CKPT_VERIFY_DEEP, 2));
    assert_status(convert_import_gpt2(fs_posix(), ref_folder(name), imported.save, 1, &again),
                  STATUS_EXISTS);
    ckpt_choice_deinit(&imported.choice);
    safetensors_close(&imported.source);
    support_remove_folder(imported.save);
}

Test(convert, an_import_is_transposed_reordered_by_heads_and_has_zero_moments)
{
    check_import("a", 512);
    check_import("a500", 500);
}

/* ---- refusals ---- */

/* A folder with this config and this safetensors file: header, its size as stated, data. */
static enum status import_text(const char *config, const char *header, uint64_t header_bytes,
                               size_t data_bytes)
{
    char folder[FS_PATH_MAX], save[FS_PATH_MAX];
    struct fs_file *file = NULL;
    struct convert_result result;
    char *data = NULL;

    support_make_folder(folder);
    support_write_text(fs_posix(), folder, "config.json", config);
    assert_ok(fs_join(save, folder, "save"));
    assert_ok(fs_open(fs_posix(), support_path(folder, "model.safetensors"), FS_CREATE, &file));
    assert_ok(fs_pwrite(file, &header_bytes, sizeof header_bytes, 0));
    assert_ok(fs_pwrite(file, header, strlen(header), sizeof header_bytes));
    assert_ok(mem_alloc(&data, data_bytes, 1));
    assert_ok(fs_pwrite(file, data, data_bytes, sizeof header_bytes + strlen(header)));
    fs_close(&file);
    enum status st = convert_import_gpt2(fs_posix(), folder, save, 1, &result);
    struct status_record record;
    status_take(&record);
    cr_assert(st == STATUS_OK || !fs_exists(fs_posix(), support_path(save, "step_0000000")));
    mem_free(&data);
    support_remove_folder(folder);
    return status_give(&record);
}

static enum status import_header(const char *header, size_t data_bytes)
{
    char config[512];

    (void)snprintf(config, sizeof config, CONFIG, "");
    return import_text(config, header, strlen(header), data_bytes);
}

#define WTE(dtype, shape, offsets)                                                                 \
    "{\"wte.weight\": {\"dtype\": " dtype ", \"shape\": " shape ", \"data_offsets\": " offsets "}" \
    "}"

Test(convert, hostile_headers_are_refused_and_leave_nothing)
{
    static const char *const corrupt[] = {
        "",
        "[]",
        "{\"wte.weight\": 3}",
        "{\"wte.weight\": {}}",
        "{\"wte.weight\": {\"dtype\": \"F32\"",
        WTE("7", "[3, 2]", "[0, 24]"),
        WTE("\"F32\"", "[3]", "[0, 24]"),
        WTE("\"F32\"", "[2, 3]", "[0, 24]"),
        WTE("\"F32\"", "[3, 2, 1]", "[0, 24]"),
        WTE("\"F32\"", "[3, -2]", "[0, 24]"),
        WTE("\"F32\"", "[3, 2]", "[0, 25]"),
        WTE("\"F32\"", "[3, 2]", "[24, 0]"),
        WTE("\"F32\"", "[3, 2]", "[-24, 0]"),
        WTE("\"F32\"", "[3, 2]", "[0.5, 24.5]"),
        WTE("\"F32\"", "[3, 2]", "[8, 32]"),
        WTE("\"F32\"", "[3, 2]", "[1e300, 1e300]"),
        WTE("\"F32\"", "[3, 2]", "[0]"),
        WTE("\"F32\"", "[3, 2]", "\"all\""),
        WTE("\"BF16\"", "[3, 2]", "[0, 24]"),
        "{\"wte.weight\": {\"dtype\": \"F32\", \"shape\": [3, 2], \"data_offsets\": [0, 24]}, "
        "\"wte.weight\": {\"dtype\": \"F32\", \"shape\": [3, 2], \"data_offsets\": [0, 24]}}",
    };
    char config[512];

    (void)snprintf(config, sizeof config, CONFIG, "");
    for (size_t i = 0; i < sizeof corrupt / sizeof *corrupt; i++) {
        enum status st = import_header(corrupt[i], 24);
        cr_assert(st == STATUS_CORRUPT, "%s: %s (%s)", corrupt[i], status_name(st),
                  status_last()->message);
    }
    const uint64_t sizes[] = {UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 40, 27};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_status(import_text(config, "{}", sizes[i], 24), STATUS_CORRUPT);
    }
    assert_status(import_header(WTE("\"F64\"", "[3, 2]", "[0, 24]"), 24), STATUS_UNSUPPORTED);
    assert_status(import_header("{}", 0), STATUS_NOT_FOUND);
    assert_status(import_header(WTE("\"F32\"", "[3, 2]", "[0, 24]"), 24), STATUS_NOT_FOUND);
    cr_assert(strstr(status_last()->message, "wpe.weight") != NULL);
}

/* The masks that transformers keeps in its files and a tied head are left out, nothing else. */
Test(convert, a_tensor_that_would_be_left_out_is_refused_by_its_name)
{
    static const char *const unknown[] = {
        "h.1.ln_1.weight",
        "h.0.ln_3.weight",
        "h.0.attn.c_attn.lora_A",
        "h.0_ln_1.weight",
        "h.-1.ln_1.weight",
        "h..ln_1.weight",
        "h.0",
        "h.0.",
        "transformer.ln_f.w",
        "score.weight",
        "wte.weight.absmax",
        "",
        "h.00.ln_1.weight",
        "h.18446744073709551616.ln_1.weight",
    };
    static const char *const known[] = {
        "h.0.attn.bias", "h.0.attn.masked_bias", "lm_head.weight",
        "__metadata__",  "h.0.ln_1.weight",
    };
    char header[256];

    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        (void)snprintf(header, sizeof header, "{\"%s\": {}}", unknown[i]);
        assert_status(import_header(header, 0), STATUS_UNSUPPORTED);
        (void)snprintf(header, sizeof header, "tensor '%s'", unknown[i]);
        cr_assert(strstr(status_last()->message, header) != NULL, "%s", status_last()->message);
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        (void)snprintf(header, sizeof header, "{\"%s\": {}}", known[i]);
        assert_status(import_header(header, 0), STATUS_NOT_FOUND); /* wte.weight is missing */
    }
}

Test(convert, a_model_that_means_something_else_is_refused_before_its_weights_are_read)
{
    static const struct {
        const char *more;
        enum status expected;
    } cases[] = {
        {", \"activation_function\": \"relu\"", STATUS_UNSUPPORTED},
        {", \"scale_attn_by_inverse_layer_idx\": true", STATUS_UNSUPPORTED},
        {", \"scale_attn_weights\": false", STATUS_UNSUPPORTED},
        {", \"add_cross_attention\": true", STATUS_UNSUPPORTED},
        {", \"layer_norm_epsilon\": 0", STATUS_BAD_DATA},
        {", \"layer_norm_epsilon\": \"small\"", STATUS_CORRUPT},
        {", \"n_inner\": 1e12", STATUS_BAD_DATA},
        {", \"n_inner\": null", STATUS_NOT_FOUND}, /* fine: then the first tensor is missing */
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char config[512];
        (void)snprintf(config, sizeof config, CONFIG, cases[i].more);
        enum status st = import_text(config, "{}", 2, 0);
        cr_assert(st == cases[i].expected, "%s: %s (%s)", cases[i].more, status_name(st),
                  status_last()->message);
    }
    assert_status(import_text("{\"model_type\": \"llama\"}", "{}", 2, 0), STATUS_UNSUPPORTED);
    assert_status(import_text("not json", "{}", 2, 0), STATUS_CORRUPT);
}
