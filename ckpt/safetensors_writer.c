/* Writes safetensors files; see safetensors_writer.h. */
#include "ckpt/safetensors_writer.h"

#include <string.h>

#include "ckpt/base/json.h"
#include "ckpt/base/mem.h"

#define HEAD_BYTES 8 /* the size of the header */
#define ALIGN 8      /* of the data, by blanks at the header's end */

struct safetensors_writer {
    struct fs_file *file;
    const struct safetensors_entry *entries;
    size_t count, next;
    uint64_t at; /* where the next tensor goes */
};

static uint64_t entry_bytes(const struct safetensors_entry *entry)
{
    return sizeof(float) * entry->shape[0] * (entry->dims > 1 ? entry->shape[1] : 1);
}

/* {"NAME": {"dtype": "F32", "shape": [...], "data_offsets": [begin, end]}} */
static enum status add_entry(cJSON *header, const struct safetensors_entry *entry, uint64_t begin)
{
    enum status st = STATUS_OK;
    cJSON *row = NULL, *shape = NULL, *offsets = NULL, *taken = NULL;

    TRY(st, json_new_object(&row), done);
    TRY(st, json_new_array(&shape), done);
    TRY(st, json_new_array(&offsets), done);
    for (int d = 0; d < entry->dims; d++) {
        TRY(st, json_append(shape, cJSON_CreateNumber((double)entry->shape[d])), done);
    }
    TRY(st, json_append(offsets, cJSON_CreateNumber((double)begin)), done);
    TRY(st, json_append(offsets, cJSON_CreateNumber((double)(begin + entry_bytes(entry)))), done);
    TRY(st, json_add_string(row, "dtype", "F32"), done);
    taken = shape;
    shape = NULL; /* json_add_item takes over */
    TRY(st, json_add_item(row, "shape", taken), done);
    taken = offsets;
    offsets = NULL;
    TRY(st, json_add_item(row, "data_offsets", taken), done);
    taken = row;
    row = NULL;
    TRY(st, json_add_item(header, entry->name, taken), done);
done:
    cJSON_Delete(row);
    cJSON_Delete(shape);
    cJSON_Delete(offsets);
    return st;
}

/* The header as it stands in the file, its size and blanks included; and the size of the data. */
static enum status make_header(const struct safetensors_entry *entries, size_t count,
                               char **out_bytes, size_t *out_count, uint64_t *out_data_bytes)
{
    enum status st = STATUS_OK;
    cJSON *header = NULL, *metadata = NULL, *taken = NULL;
    char *text = NULL;
    uint64_t begin = 0;

    TRY(st, json_new_object(&header), done);
    TRY(st, json_new_object(&metadata), done);
    TRY(st, json_add_string(metadata, "format", "pt"), done); /* transformers wants to know */
    taken = metadata;
    metadata = NULL;
    TRY(st, json_add_item(header, "__metadata__", taken), done);
    for (size_t i = 0; i < count; i++) {
        TRY(st, add_entry(header, &entries[i], begin), done);
        begin += entry_bytes(&entries[i]);
    }
    TRY(st, json_print_line(header, &text), done);
    size_t used = strlen(text), padded = (used + ALIGN - 1) / ALIGN * ALIGN;
    TRY(st, mem_alloc(out_bytes, HEAD_BYTES + padded, 1), done);
    for (int i = 0; i < HEAD_BYTES; i++) {
        (*out_bytes)[i] = (char)(padded >> (8 * i));
    }
    memset(*out_bytes + HEAD_BYTES, ' ', padded);
    memcpy(*out_bytes + HEAD_BYTES, text, used);
    *out_count = HEAD_BYTES + padded;
    *out_data_bytes = begin;
done:
    mem_free(&text);
    cJSON_Delete(metadata);
    cJSON_Delete(header);
    return st;
}

enum status safetensors_writer_create(struct fs *fs, const char *path,
                                      const struct safetensors_entry *entries, size_t count,
                                      struct safetensors_writer **out_writer)
{
    enum status st = STATUS_OK;
    struct safetensors_writer *writer = NULL;
    char *header = NULL;
    size_t header_bytes = 0;
    uint64_t data_bytes = 0;

    *out_writer = NULL;
    TRY(st, mem_alloc(&writer, 1, sizeof *writer), done);
    TRY(st, make_header(entries, count, &header, &header_bytes, &data_bytes), done);
    TRY(st, fs_open(fs, path, FS_CREATE_NEW, &writer->file), done);
    TRY(st, fs_reserve(writer->file, header_bytes + data_bytes), done);
    TRY(st, fs_pwrite(writer->file, header, header_bytes, 0), done);
    writer->entries = entries;
    writer->count = count;
    writer->at = header_bytes;
    *out_writer = writer;
    writer = NULL;
done:
    mem_free(&header);
    safetensors_writer_destroy(&writer);
    return st;
}

enum status safetensors_writer_add(struct safetensors_writer *writer, const float *values)
{
    enum status st = STATUS_OK;

    CHECK(writer->next < writer->count);
    uint64_t bytes = entry_bytes(&writer->entries[writer->next]);
    TRY(st, fs_pwrite(writer->file, values, (size_t)bytes, writer->at), done);
    writer->next++;
    writer->at += bytes;
done:
    return st;
}

enum status safetensors_writer_finish(struct safetensors_writer *writer)
{
    CHECK(writer->next == writer->count);
    return fs_sync(writer->file);
}

void safetensors_writer_destroy(struct safetensors_writer **writer)
{
    if (*writer != NULL) {
        fs_close(&(*writer)->file);
        mem_free(writer);
    }
}
