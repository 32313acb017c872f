/* The manifest's text: printing, parsing, and the rules that both ask for (manifest.h).
 *
 * The hash is compared before a byte is parsed, and the last line is compared as a whole, so that
 * no flipped bit passes, not even in white space. Whoever makes a false manifest with a right hash
 * on purpose meets the rules: nothing read here is used as a size, path or index unchecked.
 */
#include "ckpt/meta/manifest.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/json.h"
#include "ckpt/base/mem.h"

#define FORMAT_NAME "holdfast checkpoint"
#define TAIL_FORMAT "  \"manifest_hash\": \"%s\"\n}\n"
#define TAIL_BYTES (sizeof TAIL_FORMAT - 1 - 2 + (HASH_TEXT_MAX - 1))
#define NUMBER_MAX ((uint64_t)1 << 53) /* what a JSON number holds exactly */
#define TOTAL_BYTES_MAX ((uint64_t)1 << 60)
#define MEMBERS_MAX 64 /* of the whole and of an entry: 15 are known */

/* ---- rules ---- */

static bool name_is_clean(const char *name)
{
    const char *component = name;

    for (const char *at = name;; at++) {
        if (*at == '/' || *at == '\0') {
            size_t length = (size_t)(at - component);

            if (length == 0 || (length <= 2 && strncmp(component, "..", length) == 0)) {
                return false;
            }
            component = at + 1;
        } else if (*at <= ' ' || *at > '~') {
            return false;
        }
        if (*at == '\0') {
            return at - name <= MANIFEST_TENSOR_NAME_MAX;
        }
    }
}

static enum status check_tensor(const struct manifest_tensor *tensor, const char *what)
{
    uint64_t elements_max = NUMBER_MAX / manifest_type_bytes(tensor->type);
    uint64_t elements = 1;

    if (!name_is_clean(tensor->name)) {
        return FAIL(STATUS_CORRUPT, "'%s': tensor name '%.*s' is not allowed", what,
                    MANIFEST_TENSOR_NAME_MAX, tensor->name);
    }
    for (int d = 0; d < tensor->dims; d++) {
        if (tensor->shape[d] == 0 || tensor->shape[d] > elements_max / elements) {
            return FAIL(STATUS_CORRUPT, "'%s': shape of tensor '%s' is out of range", what,
                        tensor->name);
        }
        elements *= tensor->shape[d];
    }
    return STATUS_OK;
}

static enum status check_file(const struct manifest *manifest, size_t index, const char *what)
{
    const struct manifest_file *file = &manifest->files[index];
    struct coords named, expected = layout_coords(manifest->layout, (int)index);

    if (!layout_parse_shard_name(file->name, &named) || named.tp != file->coords.tp ||
        named.pp != file->coords.pp || named.dp != file->coords.dp) {
        return FAIL(STATUS_CORRUPT, "'%s': file name '%.*s' does not fit tp %d, pp %d, dp %d", what,
                    LAYOUT_NAME_MAX, file->name, file->coords.tp, file->coords.pp, file->coords.dp);
    }
    /* As many files as ranks, sorted by rank: all there is exactly that each is its index's. */
    if (named.tp != expected.tp || named.pp != expected.pp || named.dp != expected.dp) {
        return FAIL(STATUS_CORRUPT, "'%s': no file for tp %d, pp %d, dp %d", what, expected.tp,
                    expected.pp, expected.dp);
    }
    if (file->bytes > NUMBER_MAX || file->index_offset > file->bytes ||
        file->index_bytes > file->bytes - file->index_offset) {
        return FAIL(STATUS_CORRUPT, "'%s': index of file '%s' is not inside the file", what,
                    file->name);
    }
    return STATUS_OK;
}

static enum status check_layout(struct layout layout, size_t file_count, const char *what)
{
    if (layout.tp < 1 || layout.pp < 1 || layout.dp < 1 || layout.tp > LAYOUT_RANKS_MAX ||
        layout.pp > LAYOUT_RANKS_MAX || layout.dp > LAYOUT_RANKS_MAX ||
        (int64_t)layout.tp * layout.pp > LAYOUT_RANKS_MAX ||
        (int64_t)layout.tp * layout.pp * layout.dp > LAYOUT_RANKS_MAX) {
        return FAIL(STATUS_CORRUPT, "'%s': layout TP %d, PP %d, DP %d is out of range", what,
                    layout.tp, layout.pp, layout.dp);
    }
    if (file_count != (size_t)layout_size(layout)) {
        return FAIL(STATUS_CORRUPT, "'%s': %zu files for the %d ranks of its layout", what,
                    file_count, layout_size(layout));
    }
    return STATUS_OK;
}

static bool word_is_clean(const char *word, size_t bytes)
{
    size_t length = strnlen(word, bytes);

    for (size_t i = 0; i < length; i++) {
        if (word[i] <= ' ' || word[i] > '~') {
            return false;
        }
    }
    return length > 0 && length < bytes;
}

enum status manifest_check(const struct manifest *manifest, const char *what)
{
    enum status st = STATUS_OK;
    uint64_t bytes = 0;

    if (manifest->step > NUMBER_MAX || manifest->epoch > NUMBER_MAX ||
        manifest->parent_step > manifest->step) {
        return FAIL(STATUS_CORRUPT, "'%s': step, epoch or parent_step is out of range", what);
    }
    if (!word_is_clean(manifest->run_id, sizeof manifest->run_id) ||
        !word_is_clean(manifest->compression, sizeof manifest->compression)) {
        return FAIL(STATUS_CORRUPT, "'%s': run_id or compression is no word", what);
    }
    if (!cJSON_IsObject(manifest->options) || !cJSON_IsObject(manifest->state)) {
        return FAIL(STATUS_CORRUPT, "'%s': options or state is no object", what);
    }
    if (manifest->tensor_count > MANIFEST_TENSORS_MAX) {
        return FAIL(STATUS_CORRUPT, "'%s': more than %d tensors", what, MANIFEST_TENSORS_MAX);
    }
    TRY(st, check_layout(manifest->layout, manifest->file_count, what), done);
    for (size_t i = 0; i < manifest->tensor_count; i++) {
        TRY(st, check_tensor(&manifest->tensors[i], what), done);
        if (i > 0 && strcmp(manifest->tensors[i - 1].name, manifest->tensors[i].name) >= 0) {
            return FAIL(STATUS_CORRUPT, "'%s': tensor '%s' is there twice or out of order", what,
                        manifest->tensors[i].name);
        }
    }
    for (size_t i = 0; i < manifest->file_count; i++) {
        TRY(st, check_file(manifest, i, what), done);
        bytes += manifest->files[i].bytes;
        if (bytes > TOTAL_BYTES_MAX) {
            return FAIL(STATUS_CORRUPT, "'%s': its files are larger together than any disk", what);
        }
    }
done:
    return st;
}

/* ---- printing ---- */

static enum status add_hash(cJSON *object, const char *key, struct hash128 hash)
{
    char text[HASH_TEXT_MAX];

    hash128_format(hash, text);
    return json_add_string(object, key, text);
}

static enum status add_coords(cJSON *object, int tp, int pp, int dp)
{
    enum status st = STATUS_OK;

    TRY(st, json_add_i64(object, "tp", tp), done);
    TRY(st, json_add_i64(object, "pp", pp), done);
    TRY(st, json_add_i64(object, "dp", dp), done);
done:
    return st;
}

static enum status append_tensor(cJSON *array, const struct manifest_tensor *tensor)
{
    enum status st = STATUS_OK;
    cJSON *object = NULL, *shape = NULL;

    TRY(st, json_new_object(&object), done);
    TRY(st, json_add_string(object, "name", tensor->name), done);
    TRY(st, json_add_string(object, "type", manifest_type_name(tensor->type)), done);
    TRY(st, json_new_array(&shape), done);
    for (int d = 0; d < tensor->dims; d++) {
        TRY(st, json_append(shape, cJSON_CreateNumber((double)tensor->shape[d])), done);
    }
    cJSON *taken = shape;
    shape = NULL;
    TRY(st, json_add_item(object, "shape", taken), done);
    taken = object;
    object = NULL;
    TRY(st, json_append(array, taken), done);
done:
    cJSON_Delete(shape);
    cJSON_Delete(object);
    return st;
}

static enum status append_file(cJSON *array, const struct manifest_file *file)
{
    enum status st = STATUS_OK;
    cJSON *object = NULL;

    TRY(st, json_new_object(&object), done);
    TRY(st, json_add_string(object, "name", file->name), done);
    TRY(st, add_coords(object, file->coords.tp, file->coords.pp, file->coords.dp), done);
    TRY(st, json_add_u64(object, "bytes", file->bytes), done);
    TRY(st, add_hash(object, "hash", file->hash), done);
    TRY(st, json_add_u64(object, "index_offset", file->index_offset), done);
    TRY(st, json_add_u64(object, "index_bytes", file->index_bytes), done);
    TRY(st, add_hash(object, "index_hash", file->index_hash), done);
    cJSON *taken = object;
    object = NULL;
    TRY(st, json_append(array, taken), done);
done:
    cJSON_Delete(object);
    return st;
}

static enum status add_scalars(cJSON *root, const struct manifest *manifest)
{
    enum status st = STATUS_OK;
    char created[CLOCK_TEXT_MAX];
    cJSON *layout = NULL;

    clock_format_utc(manifest->created_wall_ns, created);
    TRY(st, json_add_string(root, "format", FORMAT_NAME), done);
    TRY(st, json_add_u64(root, "format_version", MANIFEST_FORMAT_VERSION), done);
    TRY(st, json_add_u64(root, "step", manifest->step), done);
    TRY(st, json_add_u64(root, "epoch", manifest->epoch), done);
    TRY(st, json_add_u64(root, "parent_step", manifest->parent_step), done);
    TRY(st, json_add_string(root, "run_id", manifest->run_id), done);
    TRY(st, json_add_string(root, "created", created), done);
    TRY(st, json_add_hex64(root, "created_wall_ns", (uint64_t)manifest->created_wall_ns), done);
    TRY(st, json_add_string(root, "compression", manifest->compression), done);
    TRY(st, json_add_hex64(root, "state_hash", manifest->state_hash), done);
    TRY(st, json_new_object(&layout), done);
    TRY(st, add_coords(layout, manifest->layout.tp, manifest->layout.pp, manifest->layout.dp),
        done);
    cJSON *taken = layout;
    layout = NULL;
    TRY(st, json_add_item(root, "layout", taken), done);
    /* References: the trees stay the manifest's. */
    TRY(st, json_add_item(root, "options", cJSON_CreateObjectReference(manifest->options->child)),
        done);
    TRY(st, json_add_item(root, "state", cJSON_CreateObjectReference(manifest->state->child)),
        done);
done:
    cJSON_Delete(layout);
    return st;
}

static enum status build_tree(const struct manifest *manifest, cJSON **out_root)
{
    enum status st = STATUS_OK;
    cJSON *root = NULL, *array = NULL, *taken;

    TRY(st, json_new_object(&root), done);
    TRY(st, add_scalars(root, manifest), done);
    TRY(st, json_new_array(&array), done);
    for (size_t i = 0; i < manifest->tensor_count; i++) {
        TRY(st, append_tensor(array, &manifest->tensors[i]), done);
    }
    taken = array;
    array = NULL;
    TRY(st, json_add_item(root, "tensors", taken), done);
    TRY(st, json_new_array(&array), done);
    for (size_t i = 0; i < manifest->file_count; i++) {
        TRY(st, append_file(array, &manifest->files[i]), done);
    }
    taken = array;
    array = NULL;
    TRY(st, json_add_item(root, "files", taken), done);
    *out_root = root;
    root = NULL;
done:
    cJSON_Delete(array);
    cJSON_Delete(root);
    return st;
}

static size_t format_tail(const char *text, size_t body_bytes, char out_tail[TAIL_BYTES + 1])
{
    char hash[HASH_TEXT_MAX];

    hash128_format(hash_bytes128(text, body_bytes), hash);
    int length = snprintf(out_tail, TAIL_BYTES + 1, TAIL_FORMAT, hash);
    CHECK(length == (int)TAIL_BYTES);
    return TAIL_BYTES;
}

/* Replaces the closing brace by ",\n" and the tail, which hashes all before itself. */
static enum status seal_text(const char *text, char **out_text, size_t *out_bytes)
{
    enum status st = STATUS_OK;
    size_t body = strlen(text);
    char *sealed = NULL;

    while (body > 0 && text[body - 1] != '}') {
        body--;
    }
    CHECK(body > 0);
    body--;
    while (body > 0 && (text[body - 1] == '\n' || text[body - 1] == ' ')) {
        body--;
    }
    TRY(st, mem_alloc(&sealed, body + 2 + TAIL_BYTES + 1, 1), done);
    memcpy(sealed, text, body);
    memcpy(sealed + body, ",\n", 2);
    body += 2;
    body += format_tail(sealed, body, sealed + body);
    *out_text = sealed;
    *out_bytes = body;
done:
    return st;
}

enum status manifest_print(const struct manifest *manifest, char **out_text, size_t *out_bytes)
{
    enum status st = STATUS_OK;
    cJSON *root = NULL;
    char *text = NULL;

    TRY(st, manifest_check(manifest, "manifest to write"), done);
    TRY(st, build_tree(manifest, &root), done);
    TRY(st, json_print(root, &text), done);
    TRY(st, seal_text(text, out_text, out_bytes), done);
done:
    mem_free(&text);
    cJSON_Delete(root);
    return st;
}

/* ---- parsing ---- */

static enum status check_hash(const char *text, size_t bytes, const char *what)
{
    char tail[TAIL_BYTES + 1];

    if (bytes > TAIL_BYTES) {
        (void)format_tail(text, bytes - TAIL_BYTES, tail);
        if (memcmp(text + bytes - TAIL_BYTES, tail, TAIL_BYTES) == 0) {
            return STATUS_OK;
        }
    }
    return FAIL(STATUS_CORRUPT, "'%s' is damaged or cut: its content does not fit its hash", what);
}

/* cJSON keeps members that are there twice; two readers could then see two values. */
static enum status check_members(const cJSON *object, const char *what)
{
    size_t count = 0;

    if (!cJSON_IsObject(object)) {
        return FAIL(STATUS_CORRUPT, "'%s': something else where an object belongs", what);
    }
    for (const cJSON *member = object->child; member != NULL; member = member->next) {
        if (++count > MEMBERS_MAX) {
            return FAIL(STATUS_CORRUPT, "'%s': more than %d members in one object", what,
                        MEMBERS_MAX);
        }
        for (const cJSON *other = member->next; other != NULL; other = other->next) {
            if (strcmp(member->string, other->string) == 0) {
                return FAIL(STATUS_CORRUPT, "'%s': member '%s' is there twice", what,
                            member->string);
            }
        }
    }
    return STATUS_OK;
}

static enum status get_word(const cJSON *object, const char *what, const char *key, char *out_word,
                            size_t bytes)
{
    enum status st = STATUS_OK;
    const char *text;

    TRY(st, json_get_string(object, what, key, &text), done);
    if (strlen(text) >= bytes) {
        return FAIL(STATUS_CORRUPT, "'%s': '%s' is longer than %zu bytes", what, key, bytes - 1);
    }
    memcpy(out_word, text, strlen(text) + 1);
done:
    return st;
}

static enum status get_hash(const cJSON *object, const char *what, const char *key,
                            struct hash128 *out_hash)
{
    enum status st = STATUS_OK;
    const char *text;

    TRY(st, json_get_string(object, what, key, &text), done);
    if (hash128_parse(text, out_hash) != 0) {
        return FAIL(STATUS_CORRUPT, "'%s': '%s' is no hash of 32 hexadecimal digits", what, key);
    }
done:
    return st;
}

static enum status get_small(const cJSON *object, const char *what, const char *key, int *out_value)
{
    enum status st = STATUS_OK;
    uint64_t value;

    TRY(st, json_get_u64(object, what, key, &value), done);
    if (value > LAYOUT_RANKS_MAX) {
        return FAIL(STATUS_CORRUPT, "'%s': '%s' is above %d", what, key, LAYOUT_RANKS_MAX);
    }
    *out_value = (int)value;
done:
    return st;
}

static enum status parse_type(const cJSON *object, const char *what, enum manifest_type *out_type)
{
    enum status st = STATUS_OK;
    const char *text;

    TRY(st, json_get_string(object, what, "type", &text), done);
    for (int type = 0; type < MANIFEST_TYPE_COUNT; type++) {
        if (strcmp(text, manifest_type_name((enum manifest_type)type)) == 0) {
            *out_type = (enum manifest_type)type;
            return STATUS_OK;
        }
    }
    return FAIL(STATUS_CORRUPT, "'%s': tensor type '%.32s' is unknown", what, text);
done:
    return st;
}

static enum status parse_shape(const cJSON *object, const char *what,
                               struct manifest_tensor *tensor)
{
    enum status st = STATUS_OK;
    cJSON *array;

    TRY(st, json_get_array(object, what, "shape", &array), done);
    for (const cJSON *item = array->child; item != NULL; item = item->next) {
        double value = cJSON_IsNumber(item) ? item->valuedouble : -1;

        if (tensor->dims == BOX_DIMS_MAX || !(value >= 1 && value <= (double)NUMBER_MAX) ||
            value != floor(value)) {
            return FAIL(STATUS_CORRUPT, "'%s': a shape is not 1 to %d positive numbers", what,
                        BOX_DIMS_MAX);
        }
        tensor->shape[tensor->dims++] = (uint64_t)value;
    }
    if (tensor->dims == 0) {
        return FAIL(STATUS_CORRUPT, "'%s': a shape is empty", what);
    }
done:
    return st;
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp(((const struct manifest_tensor *)a)->name,
                  ((const struct manifest_tensor *)b)->name);
}

static enum status parse_tensors(const cJSON *root, const char *what, struct manifest *manifest)
{
    enum status st = STATUS_OK;
    cJSON *array;
    size_t count = 0;

    TRY(st, json_get_array(root, what, "tensors", &array), done);
    for (const cJSON *item = array->child; item != NULL; item = item->next) {
        count++;
    }
    if (count > MANIFEST_TENSORS_MAX) {
        return FAIL(STATUS_CORRUPT, "'%s': more than %d tensors", what, MANIFEST_TENSORS_MAX);
    }
    TRY(st,
        mem_grow((void **)&manifest->tensors, &manifest->tensor_capacity, count,
                 sizeof *manifest->tensors),
        done);
    for (const cJSON *item = array->child; item != NULL; item = item->next) {
        struct manifest_tensor tensor = {0};
        const char *name;

        TRY(st, check_members(item, what), done);
        TRY(st, json_get_string(item, what, "name", &name), done);
        TRY(st, parse_type(item, what, &tensor.type), done);
        TRY(st, parse_shape(item, what, &tensor), done);
        TRY(st, mem_copy_string(&tensor.name, name), done);
        manifest->tensors[manifest->tensor_count++] = tensor;
    }
    if (count > 1) {
        qsort(manifest->tensors, count, sizeof *manifest->tensors, compare_tensors);
    }
done:
    return st;
}

static enum status parse_file(const cJSON *item, const char *what, struct manifest_file *file)
{
    enum status st = STATUS_OK;

    TRY(st, check_members(item, what), done);
    TRY(st, get_word(item, what, "name", file->name, sizeof file->name), done);
    TRY(st, get_small(item, what, "tp", &file->coords.tp), done);
    TRY(st, get_small(item, what, "pp", &file->coords.pp), done);
    TRY(st, get_small(item, what, "dp", &file->coords.dp), done);
    TRY(st, json_get_u64(item, what, "bytes", &file->bytes), done);
    TRY(st, get_hash(item, what, "hash", &file->hash), done);
    TRY(st, json_get_u64(item, what, "index_offset", &file->index_offset), done);
    TRY(st, json_get_u64(item, what, "index_bytes", &file->index_bytes), done);
    TRY(st, get_hash(item, what, "index_hash", &file->index_hash), done);
done:
    return st;
}

static enum status parse_files(const cJSON *root, const char *what, struct manifest *manifest)
{
    enum status st = STATUS_OK;
    cJSON *array;

    TRY(st, json_get_array(root, what, "files", &array), done);
    for (const cJSON *item = array->child; item != NULL; item = item->next) {
        struct manifest_file file = {0};

        if (manifest->file_count == LAYOUT_RANKS_MAX) {
            return FAIL(STATUS_CORRUPT, "'%s': more than %d files", what, LAYOUT_RANKS_MAX);
        }
        TRY(st, parse_file(item, what, &file), done);
        st = manifest_add_file(manifest, &file);
        if (st == STATUS_EXISTS) {
            return FAIL(STATUS_CORRUPT, "'%s': two files for tp %d, pp %d, dp %d", what,
                        file.coords.tp, file.coords.pp, file.coords.dp);
        }
        TRY(st, st, done);
    }
done:
    return st;
}

static enum status parse_format(const cJSON *root, const char *what)
{
    enum status st = STATUS_OK;
    const char *format;
    uint64_t version;

    TRY(st, json_get_string(root, what, "format", &format), done);
    if (strcmp(format, FORMAT_NAME) != 0) {
        return FAIL(STATUS_CORRUPT, "'%s': format '%.64s' is not '%s'", what, format, FORMAT_NAME);
    }
    TRY(st, json_get_u64(root, what, "format_version", &version), done);
    if (version == 0 || version > MANIFEST_FORMAT_VERSION) {
        return FAIL(STATUS_UNSUPPORTED,
                    "'%s' has format version %" PRIu64 ", this program reads up to %d: "
                    "use a newer one",
                    what, version, MANIFEST_FORMAT_VERSION);
    }
done:
    return st;
}

static enum status parse_scalars(const cJSON *root, const char *what, struct manifest *manifest)
{
    enum status st = STATUS_OK;
    cJSON *layout;
    uint64_t created;

    TRY(st, json_get_u64(root, what, "step", &manifest->step), done);
    TRY(st, json_get_u64(root, what, "epoch", &manifest->epoch), done);
    TRY(st, json_get_u64(root, what, "parent_step", &manifest->parent_step), done);
    TRY(st, get_word(root, what, "run_id", manifest->run_id, sizeof manifest->run_id), done);
    TRY(st, json_get_hex64(root, what, "created_wall_ns", &created), done);
    manifest->created_wall_ns = (int64_t)created;
    TRY(st,
        get_word(root, what, "compression", manifest->compression, sizeof manifest->compression),
        done);
    TRY(st, json_get_hex64(root, what, "state_hash", &manifest->state_hash), done);
    TRY(st, json_get_object(root, what, "layout", &layout), done);
    TRY(st, check_members(layout, what), done);
    TRY(st, get_small(layout, what, "tp", &manifest->layout.tp), done);
    TRY(st, get_small(layout, what, "pp", &manifest->layout.pp), done);
    TRY(st, get_small(layout, what, "dp", &manifest->layout.dp), done);
done:
    return st;
}

enum status manifest_parse(const char *text, size_t bytes, const char *what,
                           struct manifest *out_manifest)
{
    enum status st = STATUS_OK;
    struct manifest manifest = {0};
    cJSON *root = NULL, *member;

    memset(out_manifest, 0, sizeof *out_manifest);
    TRY(st, check_hash(text, bytes, what), done);
    TRY(st, json_parse(text, bytes, what, &root), done);
    TRY(st, check_members(root, what), done);
    TRY(st, parse_format(root, what), done);
    TRY(st, parse_scalars(root, what, &manifest), done);
    TRY(st, parse_tensors(root, what, &manifest), done);
    TRY(st, parse_files(root, what, &manifest), done);
    TRY(st, json_get_object(root, what, "options", &member), done);
    manifest.options = cJSON_DetachItemViaPointer(root, member);
    TRY(st, json_get_object(root, what, "state", &member), done);
    manifest.state = cJSON_DetachItemViaPointer(root, member);
    TRY(st, manifest_check(&manifest, what), done);
    *out_manifest = manifest;
    memset(&manifest, 0, sizeof manifest);
done:
    manifest_deinit(&manifest);
    cJSON_Delete(root);
    return st;
}
