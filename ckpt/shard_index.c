/* The index of a shard; see shard_index.h. */
#include "ckpt/shard_index.h"

#include <math.h>
#include <string.h>

#include "ckpt/base/hash.h"
#include "ckpt/base/json.h"
#include "ckpt/base/mem.h"

static const char *const encoding_names[] = {
    [SHARD_RAW] = "raw",
    [SHARD_SHUFFLE_ZSTD] = "shuffle+zstd",
};

void shard_index_deinit(struct shard_index *index)
{
    for (size_t i = 0; i < index->count; i++) {
        mem_free(&index->boxes[i].tensor);
        mem_free(&index->boxes[i].chunks);
    }
    mem_free(&index->boxes);
    *index = (struct shard_index){.boxes = NULL};
}

uint64_t shard_index_row_bytes(const struct shard_index_box *box)
{
    return box_count(&box->box) / box->box.extent[0] * manifest_type_bytes(box->type);
}

uint64_t shard_index_chunk_rows(const struct shard_index_box *box, size_t chunk)
{
    uint64_t first = chunk * box->chunk_rows;
    uint64_t left = box->box.extent[0] - first;

    return left < box->chunk_rows ? left : box->chunk_rows;
}

enum status shard_index_add(struct shard_index *index, const char *tensor, enum manifest_type type,
                            const struct box *box, enum shard_encoding encoding,
                            uint64_t chunk_rows, struct shard_index_box **out_box)
{
    enum status st = STATUS_OK;

    CHECK(!box_is_empty(box) && chunk_rows > 0);
    TRY(st,
        mem_grow((void **)&index->boxes, &index->capacity, index->count + 1, sizeof *index->boxes),
        done);
    struct shard_index_box *added = &index->boxes[index->count];
    *added = (struct shard_index_box){
        .type = type, .box = *box, .encoding = encoding, .chunk_rows = chunk_rows};
    added->chunk_count = (size_t)((box->extent[0] + chunk_rows - 1) / chunk_rows);
    index->count++;
    TRY(st, mem_copy_string(&added->tensor, tensor), done);
    TRY(st, mem_alloc(&added->chunks, added->chunk_count, sizeof *added->chunks), done);
    *out_box = added;
done:
    return st;
}

static enum status add_numbers(cJSON *object, const char *key, const uint64_t *numbers, int count)
{
    enum status st = STATUS_OK;
    cJSON *array = NULL;

    TRY(st, json_new_array(&array), done);
    for (int i = 0; i < count; i++) {
        TRY(st, json_append(array, cJSON_CreateNumber((double)numbers[i])), done);
    }
    cJSON *whole = array;
    array = NULL; /* json_add_item takes it over */
    TRY(st, json_add_item(object, key, whole), done);
done:
    cJSON_Delete(array);
    return st;
}

static enum status print_chunk(const struct shard_chunk *chunk, cJSON *chunks)
{
    enum status st = STATUS_OK;
    cJSON *object = NULL;

    TRY(st, json_new_object(&object), done);
    TRY(st, json_add_u64(object, "at", chunk->offset), done);
    TRY(st, json_add_u64(object, "bytes", chunk->bytes), done);
    TRY(st, json_add_hex64(object, "hash", chunk->hash), done);
    cJSON *whole = object;
    object = NULL;
    TRY(st, json_append(chunks, whole), done);
done:
    cJSON_Delete(object);
    return st;
}

static enum status print_box(const struct shard_index_box *box, cJSON *boxes)
{
    enum status st = STATUS_OK;
    cJSON *object = NULL, *chunks = NULL;

    TRY(st, json_new_object(&object), done);
    TRY(st, json_add_string(object, "tensor", box->tensor), done);
    TRY(st, json_add_string(object, "type", manifest_type_name(box->type)), done);
    TRY(st, add_numbers(object, "offset", box->box.offset, box->box.dims), done);
    TRY(st, add_numbers(object, "extent", box->box.extent, box->box.dims), done);
    TRY(st, json_add_string(object, "encoding", encoding_names[box->encoding]), done);
    TRY(st, json_add_u64(object, "chunk_rows", box->chunk_rows), done);
    TRY(st, json_new_array(&chunks), done);
    for (size_t i = 0; i < box->chunk_count; i++) {
        TRY(st, print_chunk(&box->chunks[i], chunks), done);
    }
    cJSON *whole = chunks;
    chunks = NULL;
    TRY(st, json_add_item(object, "chunks", whole), done);
    whole = object;
    object = NULL;
    TRY(st, json_append(boxes, whole), done);
done:
    cJSON_Delete(chunks);
    cJSON_Delete(object);
    return st;
}

enum status shard_index_print(const struct shard_index *index, char **out_text)
{
    enum status st = STATUS_OK;
    cJSON *root = NULL, *boxes = NULL;

    TRY(st, json_new_object(&root), done);
    TRY(st, json_new_array(&boxes), done);
    for (size_t i = 0; i < index->count; i++) {
        TRY(st, print_box(&index->boxes[i], boxes), done);
    }
    cJSON *whole = boxes;
    boxes = NULL;
    TRY(st, json_add_item(root, "boxes", whole), done);
    TRY(st, json_print_line(root, out_text), done);
done:
    cJSON_Delete(boxes);
    cJSON_Delete(root);
    return st;
}

static enum status get_numbers(const cJSON *object, const char *what, const char *key, int dims,
                               uint64_t *out_numbers)
{
    enum status st = STATUS_OK;
    cJSON *array = NULL;

    TRY(st, json_get_array(object, what, key, &array), done);
    if (cJSON_GetArraySize(array) != dims) {
        return FAIL(STATUS_CORRUPT, "'%s': '%s' has %d numbers, not %d", what, key,
                    cJSON_GetArraySize(array), dims);
    }
    for (int i = 0; i < dims; i++) {
        const cJSON *item = cJSON_GetArrayItem(array, i);
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) || item->valuedouble > 0x1p53 ||
            floor(item->valuedouble) != item->valuedouble) {
            return FAIL(STATUS_CORRUPT, "'%s': '%s' holds no index", what, key);
        }
        out_numbers[i] = (uint64_t)item->valuedouble;
    }
done:
    return st;
}

/* A raw chunk has the bytes of its rows; an encoded one anything that a frame may have. */
static enum status parse_chunk(const cJSON *item, const char *what,
                               const struct manifest_file *file, struct shard_index_box *box,
                               size_t number)
{
    enum status st = STATUS_OK;
    struct shard_chunk *chunk = &box->chunks[number];
    uint64_t rows = shard_index_chunk_rows(box, number);

    TRY(st, json_get_u64(item, what, "at", &chunk->offset), done);
    TRY(st, json_get_u64(item, what, "bytes", &chunk->bytes), done);
    TRY(st, json_get_hex64(item, what, "hash", &chunk->hash), done);
    bool is_inside = chunk->offset <= file->bytes && chunk->bytes <= file->bytes - chunk->offset;
    bool is_sized = box->encoding == SHARD_RAW
                        ? chunk->bytes == rows * shard_index_row_bytes(box)
                        : chunk->bytes > 0 && chunk->bytes <= SHARD_INDEX_CHUNK_BYTES_MAX;
    if (!is_inside || !is_sized) {
        st = FAIL(STATUS_CORRUPT, "'%s': chunk %zu of '%s' has %llu bytes at %llu", what, number,
                  box->tensor, (unsigned long long)chunk->bytes, (unsigned long long)chunk->offset);
    }
done:
    return st;
}

static enum status parse_encoding(const cJSON *item, const char *what,
                                  enum shard_encoding *out_encoding)
{
    enum status st = STATUS_OK;
    const char *name = NULL;

    TRY(st, json_get_string(item, what, "encoding", &name), done);
    for (size_t i = 0; i < sizeof encoding_names / sizeof *encoding_names; i++) {
        if (strcmp(name, encoding_names[i]) == 0) {
            *out_encoding = (enum shard_encoding)i;
            return STATUS_OK;
        }
    }
    st = FAIL(STATUS_UNSUPPORTED, "'%s': unknown encoding '%.40s'", what, name);
done:
    return st;
}

static enum status parse_box(const cJSON *item, const char *what, const struct manifest *manifest,
                             const struct manifest_file *file, struct shard_index *index)
{
    enum status st = STATUS_OK;
    const char *name = NULL, *type = NULL;
    struct box box = {0};
    enum shard_encoding encoding = SHARD_RAW;
    uint64_t chunk_rows = 0;
    struct shard_index_box *added = NULL;
    cJSON *chunks = NULL;

    TRY(st, json_get_string(item, what, "tensor", &name), done);
    TRY(st, json_get_string(item, what, "type", &type), done);
    const struct manifest_tensor *tensor = manifest_find(manifest, name);
    if (tensor == NULL || strcmp(type, manifest_type_name(tensor->type)) != 0) {
        return FAIL(STATUS_CORRUPT, "'%s': tensor '%.200s' (%.8s) is not the manifest's", what,
                    name, type);
    }
    box.dims = tensor->dims;
    TRY(st, get_numbers(item, what, "offset", box.dims, box.offset), done);
    TRY(st, get_numbers(item, what, "extent", box.dims, box.extent), done);
    if (box_is_empty(&box) || !box_fits(&box, tensor->dims, tensor->shape)) {
        return FAIL(STATUS_CORRUPT, "'%s': a box of '%s' does not fit its shape", what, name);
    }
    TRY(st, parse_encoding(item, what, &encoding), done);
    TRY(st, json_get_u64(item, what, "chunk_rows", &chunk_rows), done);
    TRY(st, json_get_array(item, what, "chunks", &chunks), done);
    uint64_t row_bytes = box_count(&box) / box.extent[0] * manifest_type_bytes(tensor->type);
    if (chunk_rows == 0 || chunk_rows > box.extent[0] ||
        chunk_rows > SHARD_INDEX_CHUNK_BYTES_MAX / row_bytes) {
        return FAIL(STATUS_CORRUPT, "'%s': chunks of '%s' have %llu rows", what, name,
                    (unsigned long long)chunk_rows);
    }
    if ((uint64_t)cJSON_GetArraySize(chunks) != (box.extent[0] + chunk_rows - 1) / chunk_rows) {
        return FAIL(STATUS_CORRUPT, "'%s': '%s' has %d chunks", what, name,
                    cJSON_GetArraySize(chunks));
    }
    TRY(st, shard_index_add(index, name, tensor->type, &box, encoding, chunk_rows, &added), done);
    size_t number = 0;
    for (const cJSON *chunk = chunks->child; chunk != NULL; chunk = chunk->next) {
        TRY(st, parse_chunk(chunk, what, file, added, number++), done);
    }
done:
    return st;
}

static enum status parse(const char *text, size_t bytes, const char *what,
                         const struct manifest *manifest, const struct manifest_file *file,
                         struct shard_index *out_index)
{
    enum status st = STATUS_OK;
    cJSON *root = NULL, *boxes = NULL;

    TRY(st, json_parse(text, bytes, what, &root), done);
    TRY(st, json_get_array(root, what, "boxes", &boxes), done);
    for (const cJSON *item = boxes->child; item != NULL; item = item->next) {
        TRY(st, parse_box(item, what, manifest, file, out_index), done);
    }
done:
    cJSON_Delete(root);
    return st;
}

enum status shard_index_read(struct fs *fs, const char *path, const struct manifest *manifest,
                             const struct manifest_file *file, struct shard_index *out_index)
{
    enum status st = STATUS_OK;
    struct fs_file *shard = NULL;
    char *text = NULL;

    *out_index = (struct shard_index){.boxes = NULL};
    if (file->index_bytes > SHARD_INDEX_BYTES_MAX) {
        return FAIL(STATUS_CORRUPT, "the index of '%s' has %llu bytes", path,
                    (unsigned long long)file->index_bytes);
    }
    TRY(st, fs_open(fs, path, FS_READ, &shard), done);
    TRY(st, mem_alloc(&text, (size_t)file->index_bytes + 1, 1), done);
    TRY(st, fs_pread(shard, text, (size_t)file->index_bytes, file->index_offset), done);
    struct hash128 hash = hash_bytes128(text, (size_t)file->index_bytes);
    if (hash.high != file->index_hash.high || hash.low != file->index_hash.low) {
        st = FAIL(STATUS_CORRUPT, "the index of '%s' is damaged: its hash differs", path);
        goto done;
    }
    TRY(st, parse(text, (size_t)file->index_bytes, path, manifest, file, out_index), done);
done:
    fs_close(&shard);
    mem_free(&text);
    if (st != STATUS_OK) {
        shard_index_deinit(out_index);
    }
    return st;
}
