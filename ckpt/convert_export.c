/* A checkpoint to a GPT-2 of transformers; see convert.h.
 *
 * Everything is written and synced in a folder with a temporary name beside the wanted one; a
 * rename makes it visible.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/json.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"
#include "ckpt/box_reader.h"
#include "ckpt/convert.h"
#include "ckpt/gpt2_map.h"
#include "ckpt/meta/nonce.h"
#include "ckpt/safetensors_writer.h"

#define PARAM_PREFIX "param/"
#define GPT2_END_OF_TEXT 50256

struct export
{
    struct fs *fs;
    const char *checkpoint;
    const struct manifest *manifest;
    struct gpt2_config config;
    const struct gpt2_mapping **mappings; /* [count]: of each tensor, in the file's order */
    struct safetensors_entry *entries;    /* [count]: theirs */
    char **names;                         /* [count]: ours */
    size_t count, capacity;
    uint64_t parameters;
};

/* The row {"value", "class"} of an option, or NULL. */
static const cJSON *find_option(const struct export *export, const char *name)
{
    const cJSON *row = cJSON_GetObjectItemCaseSensitive(export->manifest->options, name);

    return cJSON_GetObjectItemCaseSensitive(row, "value");
}

static enum status get_size(const struct export *export, const char *name, uint64_t max,
                            uint64_t *out_value)
{
    const cJSON *value = find_option(export, name);

    if (!cJSON_IsNumber(value) || !(value->valuedouble >= 1) ||
        !(value->valuedouble <= (double)max)) {
        return FAIL(STATUS_UNSUPPORTED,
                    "'%s' is no checkpoint of a GPT: its settings have no %s of 1 to %llu",
                    export->checkpoint, name, (unsigned long long)max);
    }
    *out_value = (uint64_t)value->valuedouble;
    return STATUS_OK;
}

static enum status read_settings(struct export *export)
{
    enum status st = STATUS_OK;
    struct gpt2_config *config = &export->config;
    const cJSON *epsilon = find_option(export, "norm-epsilon");

    TRY(st, get_size(export, "num-layers", GPT2_LAYERS_MAX, &config->layers), done);
    TRY(st, get_size(export, "hidden-size", GPT2_NUMBER_MAX, &config->hidden), done);
    TRY(st, get_size(export, "num-attention-heads", GPT2_NUMBER_MAX, &config->heads), done);
    TRY(st, get_size(export, "ffn-hidden-size", GPT2_NUMBER_MAX, &config->ffn), done);
    TRY(st, get_size(export, "vocab-size", GPT2_NUMBER_MAX, &config->vocab), done);
    TRY(st, get_size(export, "max-position-embeddings", GPT2_NUMBER_MAX, &config->positions), done);
    config->untied = cJSON_IsTrue(find_option(export, "untie-embeddings-and-output-weights"));
    config->norm_epsilon = cJSON_IsNumber(epsilon) ? epsilon->valuedouble : 1e-5;
    if (config->hidden % config->heads != 0) {
        st = FAIL(STATUS_UNSUPPORTED,
                  "'%s': hidden-size %" PRIu64 " is no multiple of %" PRIu64 " heads",
                  export->checkpoint, config->hidden, config->heads);
    }
done:
    return st;
}

/* The checkpoint must have the tensor as a GPT-2 of these settings has it. */
static enum status check_tensor(const struct export *export, const char *name, int dims,
                                const uint64_t *shape)
{
    const struct manifest_tensor *tensor = manifest_find(export->manifest, name);

    if (tensor == NULL) {
        return FAIL(STATUS_UNSUPPORTED, "'%s' is no GPT-2: it has no tensor '%s'",
                    export->checkpoint, name);
    }
    if (tensor->type != MANIFEST_F32 || tensor->dims != dims ||
        memcmp(tensor->shape, shape, (size_t)dims * sizeof *shape) != 0) {
        return FAIL(STATUS_UNSUPPORTED,
                    "'%s' is no GPT-2 of its settings: tensor '%s' is %s of %d dimensions, the "
                    "first of %" PRIu64 ", wanted f32 of %d, the first of %" PRIu64,
                    export->checkpoint, name, manifest_type_name(tensor->type), tensor->dims,
                    tensor->shape[0], dims, shape[0]);
    }
    return STATUS_OK;
}

static enum status add_row(struct export *export, const struct gpt2_mapping *mapping,
                           const char *prefix, int layer)
{
    enum status st = STATUS_OK;
    char ours[GPT2_NAME_MAX], theirs[GPT2_NAME_MAX];
    uint64_t shape[2];
    int dims = gpt2_our_shape(&export->config, mapping, shape);
    size_t i = export->count;

    CHECK(i < export->capacity);
    gpt2_name(ours, mapping->ours, layer);
    gpt2_name(theirs, mapping->theirs, layer);
    export->count++;
    export->mappings[i] = mapping;
    TRY(st, mem_format(&export->names[i], PARAM_PREFIX "%s", ours), done);
    TRY(st, mem_format(&export->entries[i].name, "%s%s", prefix, theirs), done);
    TRY(st, check_tensor(export, export->names[i], dims, shape), done);
    export->entries[i].dims = gpt2_their_shape(&export->config, mapping, export->entries[i].shape);
    export->parameters += shape[0] * shape[1];
done:
    return st;
}

/* A weight that would be left out is one that the model would miss. */
static enum status check_none_left(const struct export *export)
{
    size_t params = 0;

    for (size_t i = 0; i < export->manifest->tensor_count; i++) {
        const char *name = export->manifest->tensors[i].name;
        bool known = strncmp(name, PARAM_PREFIX, sizeof PARAM_PREFIX - 1) != 0;

        params += !known;
        for (size_t row = 0; !known && row < export->count; row++) {
            known = strcmp(name, export->names[row]) == 0;
        }
        if (!known) {
            return FAIL(STATUS_UNSUPPORTED, "'%s' is no GPT-2: it has a tensor '%s'",
                        export->checkpoint, name);
        }
    }
    CHECK(params == export->count);
    return STATUS_OK;
}

static enum status list_tensors(struct export *export)
{
    enum status st = STATUS_OK;
    int layers = (int)export->config.layers;

    export->capacity = GPT2_OUTER_COUNT + GPT2_INNER_COUNT * (size_t)layers + 1;
    TRY(st, mem_alloc(&export->mappings, export->capacity, sizeof *export->mappings), done);
    TRY(st, mem_alloc(&export->entries, export->capacity, sizeof *export->entries), done);
    TRY(st, mem_alloc(&export->names, export->capacity, sizeof *export->names), done);
    for (size_t i = 0; i < GPT2_OUTER_COUNT; i++) {
        TRY(st, add_row(export, &gpt2_outer[i], GPT2_PREFIX, 0), done);
    }
    for (int layer = 0; layer < layers; layer++) {
        for (size_t i = 0; i < GPT2_INNER_COUNT; i++) {
            TRY(st, add_row(export, &gpt2_inner[i], GPT2_PREFIX, layer), done);
        }
    }
    if (export->config.untied) {
        TRY(st, add_row(export, &gpt2_lm_head, "", 0), done);
    }
    TRY(st, check_none_left(export), done);
done:
    return st;
}

/* One tensor, whole: read and checked by its hashes, turned, written. */
static enum status copy_tensor(const struct export *export, size_t row, struct box_reader *reader,
                               struct safetensors_writer *writer)
{
    enum status st = STATUS_OK;
    const struct manifest_tensor *tensor = manifest_find(export->manifest, export->names[row]);
    struct box_target target = {tensor->name, box_whole(tensor->dims, tensor->shape), NULL};
    float *theirs = NULL;

    TRY(st, mem_alloc(&target.data, (size_t)box_count(&target.box), sizeof(float)), done);
    TRY(st, mem_alloc(&theirs, (size_t)box_count(&target.box), sizeof(float)), done);
    TRY(st, box_reader_read(reader, &target, 1), done);
    gpt2_turn_to_theirs(&export->config, export->mappings[row], target.data, theirs);
    TRY(st, safetensors_writer_add(writer, theirs), done);
done:
    mem_free(&target.data);
    mem_free(&theirs);
    return st;
}

static enum status write_weights(const struct export *export, const char *folder, int thread_count)
{
    enum status st = STATUS_OK;
    struct thread_pool *pool = NULL;
    struct box_reader *reader = NULL;
    struct safetensors_writer *writer = NULL;
    char path[FS_PATH_MAX];

    TRY(st, fs_join(path, folder, "model.safetensors"), done);
    TRY(st, thread_pool_create(thread_count, &pool), done);
    TRY(st, box_reader_open(export->fs, export->checkpoint, export->manifest, pool, &reader), done);
    TRY(st, safetensors_writer_create(export->fs, path, export->entries, export->count, &writer),
        done);
    for (size_t row = 0; row < export->count; row++) {
        TRY(st, copy_tensor(export, row, reader, writer), done);
    }
    TRY(st, safetensors_writer_finish(writer), done);
done:
    safetensors_writer_destroy(&writer);
    box_reader_close(&reader);
    thread_pool_destroy(pool);
    return st;
}

/* What transformers asks for by its own names; dropouts only where the run had them. */
static enum status add_numbers(const struct export *export, cJSON *object)
{
    const struct gpt2_config *config = &export->config;
    const struct {
        const char *name;
        uint64_t value;
    } sizes[] = {{"n_layer", config->layers},   {"n_embd", config->hidden},
                 {"n_head", config->heads},     {"n_inner", config->ffn},
                 {"vocab_size", config->vocab}, {"n_positions", config->positions}};
    const struct {
        const char *name, *option;
    } dropouts[] = {{"attn_pdrop", "attention-dropout"},
                    {"resid_pdrop", "hidden-dropout"},
                    {"embd_pdrop", "hidden-dropout"}};
    enum status st = STATUS_OK;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        TRY(st, json_add_u64(object, sizes[i].name, sizes[i].value), done);
    }
    TRY(st, json_add_double(object, "layer_norm_epsilon", config->norm_epsilon), done);
    for (size_t i = 0; i < sizeof dropouts / sizeof *dropouts; i++) {
        const cJSON *value = find_option(export, dropouts[i].option);

        if (cJSON_IsNumber(value)) {
            TRY(st, json_add_double(object, dropouts[i].name, value->valuedouble), done);
        }
    }
done:
    return st;
}

/* GPT-2 begins and ends texts with one id: the run's, or GPT-2's where the vocabulary has it. */
static enum status add_ends(const struct export *export, cJSON *object)
{
    const cJSON *given = find_option(export, "eod-id");
    double id = cJSON_IsNumber(given) && given->valuedouble >= 0 ? given->valuedouble
                : export->config.vocab > GPT2_END_OF_TEXT        ? GPT2_END_OF_TEXT
                                                                 : -1;
    const char *const names[] = {"bos_token_id", "eos_token_id"};
    enum status st = STATUS_OK;

    for (size_t i = 0; i < 2; i++) {
        TRY(st,
            json_add_item(object, names[i], id < 0 ? cJSON_CreateNull() : cJSON_CreateNumber(id)),
            done);
    }
done:
    return st;
}

static enum status write_config(const struct export *export, const char *folder)
{
    enum status st = STATUS_OK;
    cJSON *object = NULL, *architectures = NULL, *taken = NULL;
    char path[FS_PATH_MAX];

    TRY(st, json_new_object(&object), done);
    TRY(st, json_new_array(&architectures), done);
    TRY(st, json_append(architectures, cJSON_CreateString("GPT2LMHeadModel")), done);
    taken = architectures;
    architectures = NULL;
    TRY(st, json_add_item(object, "architectures", taken), done);
    TRY(st, json_add_string(object, "model_type", "gpt2"), done);
    TRY(st, json_add_string(object, "activation_function", "gelu_new"), done);
    TRY(st, add_numbers(export, object), done);
    TRY(st, add_ends(export, object), done);
    TRY(st, json_add_bool(object, "tie_word_embeddings", !export->config.untied), done);
    TRY(st, json_add_bool(object, "scale_attn_weights", true), done);
    TRY(st, json_add_bool(object, "scale_attn_by_inverse_layer_idx", false), done);
    TRY(st, json_add_string(object, "torch_dtype", "float32"), done);
    TRY(st, fs_join(path, folder, "config.json"), done);
    TRY(st, json_write_file(export->fs, path, object), done);
done:
    cJSON_Delete(architectures);
    cJSON_Delete(object);
    return st;
}

static enum status refuse_existing(struct fs *fs, const char *folder)
{
    struct fs_stat stat;
    enum status st = fs_stat(fs, folder, &stat);

    if (st == STATUS_OK) {
        return FAIL(STATUS_EXISTS, "'%s' is there already: it stays as it is", folder);
    }
    return st == STATUS_NOT_FOUND ? STATUS_OK : st;
}

/* The folder without slashes at its end, its parent, and a temporary name in there. */
static enum status choose_names(struct fs *fs, const char *folder, char out_folder[FS_PATH_MAX],
                                char out_parent[FS_PATH_MAX], char out_temporary[FS_PATH_MAX])
{
    enum status st = STATUS_OK;
    char nonce[NONCE_TEXT_MAX], name[FS_NAME_MAX];
    struct fs_stat stat;
    size_t length = strlen(folder);

    while (length > 1 && folder[length - 1] == '/') {
        length--;
    }
    if (length == 0 || length >= FS_PATH_MAX) {
        return FAIL(STATUS_USAGE, "'%.100s' is no name for a folder", folder);
    }
    (void)snprintf(out_folder, FS_PATH_MAX, "%.*s", (int)length, folder);
    fs_parent(out_parent, out_folder);
    TRY(st, refuse_existing(fs, out_folder), done);
    st = fs_stat(fs, out_parent, &stat);
    if (st == STATUS_NOT_FOUND) {
        return FAIL(STATUS_NOT_FOUND, "no folder '%s' to put '%s' into", out_parent, out_folder);
    }
    TRY(st, st, done);
    TRY(st, nonce_make(nonce), done);
    (void)snprintf(name, sizeof name, FS_TEMPORARY_PREFIX "export-%s", nonce);
    TRY(st, fs_join(out_temporary, out_parent, name), done);
done:
    return st;
}

/* Takes away what a failure has left; the failure stays the last error. */
static void discard(struct fs *fs, const char *path)
{
    struct status_record before;

    status_take(&before);
    if (fs_remove_tree(fs, path) != STATUS_OK) {
        log_warn("'%s' stays: %s", path, status_last()->message);
    }
    (void)status_give(&before);
}

static enum status write_folder(const struct export *export, const char *folder, int thread_count)
{
    enum status st = STATUS_OK;
    char name[FS_PATH_MAX], parent[FS_PATH_MAX], temporary[FS_PATH_MAX];
    const char *made = NULL;

    TRY(st, choose_names(export->fs, folder, name, parent, temporary), done);
    TRY(st, fs_mkdir(export->fs, temporary), done);
    made = temporary;
    TRY(st, write_weights(export, temporary, thread_count), done);
    TRY(st, write_config(export, temporary), done); /* last: it syncs the folder's names */
    TRY(st, refuse_existing(export->fs, name), done);
    TRY(st, fs_rename(export->fs, temporary, name), done);
    made = name;
    TRY(st, fs_sync_dir(export->fs, parent), done);
done:
    if (st != STATUS_OK && made != NULL) {
        discard(export->fs, made);
    }
    return st;
}

enum status convert_export_gpt2(struct fs *fs, const char *checkpoint,
                                const struct manifest *manifest, const char *folder,
                                int thread_count, struct convert_result *out_result)
{
    enum status st = STATUS_OK;
    struct export export = {.fs = fs, .checkpoint = checkpoint, .manifest = manifest};

    TRY(st, read_settings(&export), done);
    TRY(st, list_tensors(&export), done);
    TRY(st, write_folder(&export, folder, thread_count), done);
    out_result->parameters = export.parameters;
    out_result->state_hash = manifest->state_hash;
done:
    for (size_t i = 0; i < export.count; i++) {
        mem_free(&export.names[i]);
        mem_free(&export.entries[i].name);
    }
    mem_free(&export.mappings);
    mem_free(&export.entries);
    mem_free(&export.names);
    return st;
}
