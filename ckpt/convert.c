/* GPT-2 of transformers to a checkpoint; see convert.h. */
#include "ckpt/convert.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/json.h"
#include "ckpt/base/mem.h"
#include "ckpt/ckpt.h"
#include "ckpt/gpt2_map.h"
#include "ckpt/meta/nonce.h"
#include "ckpt/safetensors_reader.h"

/* The whole model in memory: three tensors (weight and both moments) a parameter. */
struct import {
    struct gpt2_config config;
    struct safetensors_reader source;
    const char *prefix; /* "transformer." or "" */
    struct ckpt_tensor *tensors;
    size_t count, capacity;
    uint64_t parameters;
};

static enum status get_number(const cJSON *config, const char *what, const char *key,
                              uint64_t fallback, uint64_t *out_value)
{
    enum status st = STATUS_OK;
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, key);

    *out_value = fallback;
    if ((item == NULL || cJSON_IsNull(item)) && fallback != 0) {
        return STATUS_OK;
    }
    TRY(st, json_get_u64(config, what, key, out_value), done);
    if (*out_value == 0 || *out_value > GPT2_NUMBER_MAX) {
        st = FAIL(STATUS_BAD_DATA, "'%s': '%s' is %llu", what, key, (unsigned long long)*out_value);
    }
done:
    return st;
}

/* Anything that changes what the weights mean is refused, not ignored. */
static enum status check_architecture(const cJSON *config, const char *what)
{
    static const char *const off[] = {"scale_attn_by_inverse_layer_idx", "add_cross_attention"};
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(config, "model_type");
    const cJSON *act = cJSON_GetObjectItemCaseSensitive(config, "activation_function");
    const cJSON *scale = cJSON_GetObjectItemCaseSensitive(config, "scale_attn_weights");

    if (!cJSON_IsString(type) || strcmp(type->valuestring, "gpt2") != 0) {
        return FAIL(STATUS_UNSUPPORTED, "'%s' is a model of type '%.40s', only gpt2 is imported",
                    what, cJSON_IsString(type) ? type->valuestring : "(none)");
    }
    if (cJSON_IsString(act) && strcmp(act->valuestring, "gelu_new") != 0 &&
        strcmp(act->valuestring, "gelu_pytorch_tanh") != 0) {
        return FAIL(STATUS_UNSUPPORTED,
                    "'%s': activation_function is '%.40s', only the tanh form of GELU (gelu_new) "
                    "is trained here",
                    what, act->valuestring);
    }
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(config, off[i]))) {
            return FAIL(STATUS_UNSUPPORTED, "'%s': %s is not supported", what, off[i]);
        }
    }
    if (cJSON_IsFalse(scale)) {
        return FAIL(STATUS_UNSUPPORTED, "'%s': scale_attn_weights is off", what);
    }
    return STATUS_OK;
}

static enum status get_epsilon(const cJSON *config, const char *what, double *out_value)
{
    enum status st = STATUS_OK;
    const char *key = "layer_norm_epsilon";

    *out_value = 1e-5; /* their default */
    if (cJSON_HasObjectItem(config, key)) {
        TRY(st, json_get_double(config, what, key, out_value), done);
    }
    if (!(*out_value > 0) || *out_value > 1) {
        st = FAIL(STATUS_BAD_DATA, "'%s': '%s' is %g", what, key, *out_value);
    }
done:
    return st;
}

static enum status read_config(struct fs *fs, const char *folder, struct gpt2_config *out_config)
{
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX];
    cJSON *config = NULL;

    TRY(st, fs_join(path, folder, "config.json"), done);
    TRY(st, json_read_file(fs, path, &config), done);
    TRY(st, check_architecture(config, path), done);
    TRY(st, get_number(config, path, "n_layer", 0, &out_config->layers), done);
    TRY(st, get_number(config, path, "n_embd", 0, &out_config->hidden), done);
    TRY(st, get_number(config, path, "n_head", 0, &out_config->heads), done);
    TRY(st, get_number(config, path, "vocab_size", 0, &out_config->vocab), done);
    TRY(st, get_number(config, path, "n_positions", 0, &out_config->positions), done);
    TRY(st, get_number(config, path, "n_inner", 4 * out_config->hidden, &out_config->ffn), done);
    TRY(st, get_epsilon(config, path, &out_config->norm_epsilon), done);
    const cJSON *tied = cJSON_GetObjectItemCaseSensitive(config, "tie_word_embeddings");
    out_config->untied = cJSON_IsFalse(tied);
    if (out_config->layers > GPT2_LAYERS_MAX || out_config->hidden % out_config->heads != 0) {
        st = FAIL(STATUS_BAD_DATA, "'%s': %llu layers, hidden %llu, %llu heads do not go together",
                  path, (unsigned long long)out_config->layers,
                  (unsigned long long)out_config->hidden, (unsigned long long)out_config->heads);
    }
done:
    cJSON_Delete(config);
    return st;
}

static enum status add_tensor(struct import *import, const char *kind, const char *name, int dims,
                              const uint64_t *shape, float **out_data)
{
    enum status st = STATUS_OK;
    struct box whole = box_whole(dims, shape);
    char *full = NULL;

    TRY(st,
        mem_grow((void **)&import->tensors, &import->capacity, import->count + 1,
                 sizeof *import->tensors),
        done);
    TRY(st, mem_format(&full, "%s/%s", kind, name), done);
    struct ckpt_tensor *tensor = &import->tensors[import->count++];
    *tensor = (struct ckpt_tensor){
        .name = full, .type = MANIFEST_F32, .dims = dims, .box = whole, .owned = whole};
    memcpy(tensor->shape, shape, (size_t)dims * sizeof *shape);
    TRY(st, mem_alloc(&tensor->data, (size_t)box_count(&whole), sizeof(float)), done);
    *out_data = tensor->data;
done:
    return st;
}

static enum status import_tensor(struct import *import, const char *prefix,
                                 const struct gpt2_mapping *mapping, const char *theirs,
                                 const char *ours)
{
    enum status st = STATUS_OK;
    uint64_t shape[2], source_shape[2];
    int dims = gpt2_our_shape(&import->config, mapping, shape);
    float *data = NULL, *source = NULL, *moment = NULL;
    char name[256];

    (void)gpt2_their_shape(&import->config, mapping, source_shape);
    (void)snprintf(name, sizeof name, "%s%s", prefix, theirs);
    TRY(st, safetensors_reader_read_f32(&import->source, name, dims, source_shape, &source), done);
    TRY(st, add_tensor(import, "param", ours, dims, shape, &data), done);
    gpt2_turn_to_ours(&import->config, mapping, source, data);
    TRY(st, add_tensor(import, "exp_avg", ours, dims, shape, &moment), done);
    TRY(st, add_tensor(import, "exp_avg_sq", ours, dims, shape, &moment), done);
    import->parameters += shape[0] * shape[1];
done:
    mem_free(&source);
    return st;
}

static enum status import_rows(struct import *import, const struct gpt2_mapping *rows, size_t count,
                               int layer)
{
    enum status st = STATUS_OK;
    char theirs[GPT2_NAME_MAX], ours[GPT2_NAME_MAX];

    for (size_t i = 0; i < count; i++) {
        gpt2_name(theirs, rows[i].theirs, layer);
        gpt2_name(ours, rows[i].ours, layer);
        TRY(st, import_tensor(import, import->prefix, &rows[i], theirs, ours), done);
    }
done:
    return st;
}

/* Of a layer: one of gpt2_inner, or a mask that their modules keep beside the weights. */
static bool is_known_in_layer(const struct import *import, const char *name)
{
    static const char *const masks[] = {"attn.bias", "attn.masked_bias"};
    char *end = NULL;

    if (strncmp(name, "h.", 2) != 0 || !isdigit((unsigned char)name[2]) ||
        (name[2] == '0' && name[3] != '.')) {
        return false;
    }
    unsigned long long layer = strtoull(name + 2, &end, 10);
    if (layer >= import->config.layers || *end++ != '.') {
        return false;
    }
    for (size_t i = 0; i < GPT2_INNER_COUNT; i++) {
        if (strcmp(end, gpt2_inner[i].theirs + sizeof GPT2_LAYER_PATTERN - 1) == 0) {
            return true;
        }
    }
    return strcmp(end, masks[0]) == 0 || strcmp(end, masks[1]) == 0;
}

static bool is_known(const struct import *import, const char *name)
{
    size_t skip = strlen(import->prefix);

    if (strcmp(name, "__metadata__") == 0 || strcmp(name, gpt2_lm_head.theirs) == 0) {
        return true;
    }
    if (strncmp(name, import->prefix, skip) != 0) {
        return false;
    }
    for (size_t i = 0; i < GPT2_OUTER_COUNT; i++) {
        if (strcmp(name + skip, gpt2_outer[i].theirs) == 0) {
            return true;
        }
    }
    return is_known_in_layer(import, name + skip);
}

/* A tensor that would be left out is weight that the model would miss. */
static enum status check_all_known(const struct import *import)
{
    const cJSON *entry = import->source.header->child;

    for (; entry != NULL; entry = entry->next) {
        if (!is_known(import, entry->string)) {
            return FAIL(STATUS_UNSUPPORTED,
                        "'%s': tensor '%.200s' is none of a GPT-2 with %llu layers; is config.json "
                        "this model's?",
                        fs_path(import->source.file), entry->string,
                        (unsigned long long)import->config.layers);
        }
    }
    return STATUS_OK;
}

static enum status import_model(struct import *import)
{
    enum status st = STATUS_OK;

    bool has_prefix =
        cJSON_GetObjectItemCaseSensitive(import->source.header, GPT2_PREFIX "wte.weight") != NULL;
    import->prefix = has_prefix ? GPT2_PREFIX : "";
    TRY(st, check_all_known(import), done);
    TRY(st, import_rows(import, gpt2_outer, GPT2_OUTER_COUNT, 0), done);
    for (uint64_t layer = 0; layer < import->config.layers; layer++) {
        TRY(st, import_rows(import, gpt2_inner, GPT2_INNER_COUNT, (int)layer), done);
    }
    if (import->config.untied) {
        TRY(st, import_tensor(import, "", &gpt2_lm_head, gpt2_lm_head.theirs, gpt2_lm_head.ours),
            done);
    }
done:
    return st;
}

static enum status add_option(cJSON *options, const char *name, cJSON *value)
{
    enum status st = STATUS_OK;
    cJSON *row = NULL;

    TRY(st, json_new_object(&row), done);
    cJSON *taken = value;
    value = NULL; /* json_add_item takes it over */
    TRY(st, json_add_item(row, "value", taken), done);
    TRY(st, json_add_string(row, "class", "FIXED"), done);
    taken = row;
    row = NULL;
    TRY(st, json_add_item(options, name, taken), done);
done:
    cJSON_Delete(value);
    cJSON_Delete(row);
    return st;
}

/* Only what the model fixes, by the trainer's names; a run that goes on from here adds its own, and
 * is refused when it would give the weights another meaning. */
static enum status make_options(const struct gpt2_config *config, cJSON *options)
{
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {
        {"num-layers", config->layers},         {"hidden-size", config->hidden},
        {"num-attention-heads", config->heads}, {"ffn-hidden-size", config->ffn},
        {"vocab-size", config->vocab},          {"max-position-embeddings", config->positions},
    };
    enum status st = STATUS_OK;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        TRY(st, add_option(options, rows[i].name, cJSON_CreateNumber((double)rows[i].value)), done);
    }
    TRY(st, add_option(options, "norm-epsilon", cJSON_CreateNumber(config->norm_epsilon)), done);
    TRY(st,
        add_option(options, "untie-embeddings-and-output-weights",
                   cJSON_CreateBool(config->untied)),
        done);
done:
    return st;
}

static enum status write_checkpoint(struct import *import, struct fs *fs, const char *save,
                                    int thread_count, struct convert_result *out_result)
{
    enum status st = STATUS_OK;
    struct ckpt_writer *writer = NULL;
    struct ckpt_save_result result = {0};
    cJSON *options = NULL, *state = NULL;
    char run_id[NONCE_TEXT_MAX];

    TRY(st, nonce_make(run_id), done);
    struct ckpt_writer_config config = {
        .fs = fs,
        .save = save,
        .run_id = run_id,
        .layout = {1, 1, 1},
        .group = {.rank = 0, .size = 1},
        .compression = "none",
        .thread_count = thread_count,
    };
    TRY(st, json_new_object(&options), done);
    TRY(st, json_new_object(&state), done);
    TRY(st, make_options(&import->config, options), done);
    TRY(st, json_add_u64(state, "consumed_samples", 0), done);
    TRY(st, json_add_u64(state, "consumed_valid_samples", 0), done);
    TRY(st, ckpt_writer_open(&config, &writer), done);
    struct ckpt_save what = {.tensors = import->tensors,
                             .tensor_count = import->count,
                             .options = options,
                             .state = state};
    TRY(st, ckpt_save(writer, &what, &result), done);
    out_result->state_hash = result.state_hash;
    out_result->parameters = import->parameters;
done:
    ckpt_writer_close(&writer);
    cJSON_Delete(options);
    cJSON_Delete(state);
    return st;
}

enum status convert_import_gpt2(struct fs *fs, const char *folder, const char *save,
                                int thread_count, struct convert_result *out_result)
{
    enum status st = STATUS_OK;
    struct import import = {.prefix = ""};
    char path[FS_PATH_MAX];

    TRY(st, read_config(fs, folder, &import.config), done);
    TRY(st, fs_join(path, folder, "model.safetensors"), done);
    TRY(st, safetensors_reader_open(fs, path, &import.source), done);
    TRY(st, import_model(&import), done);
    TRY(st, write_checkpoint(&import, fs, save, thread_count, out_result), done);
done:
    for (size_t i = 0; i < import.count; i++) {
        char *name = (char *)import.tensors[i].name;
        mem_free(&name);
        mem_free(&import.tensors[i].data);
    }
    mem_free(&import.tensors);
    safetensors_reader_close(&import.source);
    return st;
}
