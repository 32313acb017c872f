/* A file is a little-endian u64 n, n bytes of JSON {name: {dtype, shape, data_offsets}}, then the
 * data, which the offsets count from. */
#include "tests/support/safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#define FILE_BYTES_MAX ((size_t)64 << 20)

struct safetensors {
    char *bytes;
    size_t count;
    size_t data_begin;
    cJSON *header;
};

static enum status read_whole(const char *path, char **out_bytes, size_t *out_count)
{
    FILE *stream = fopen(path, "rb");
    char *bytes = malloc(FILE_BYTES_MAX);
    size_t count = 0;
    enum status st = STATUS_OK;

    if (stream == NULL) {
        st = FAIL_ERRNO("cannot open '%s'", path);
        goto done;
    }
    if (bytes == NULL) {
        st = FAIL(STATUS_NO_MEMORY, "no memory for '%s'", path);
        goto done;
    }
    count = fread(bytes, 1, FILE_BYTES_MAX, stream);
    if (ferror(stream) || count == FILE_BYTES_MAX) {
        st = FAIL(STATUS_IO, "cannot read '%s' whole", path);
        goto done;
    }
    *out_bytes = bytes;
    *out_count = count;
    bytes = NULL;
done:
    free(bytes);
    if (stream != NULL) {
        fclose(stream);
    }
    return st;
}

enum status safetensors_open_ref(const char *name, struct safetensors **out_file)
{
    const char *refs = getenv("HOLDFAST_TEST_REFS");
    struct safetensors *file = calloc(1, sizeof(*file));
    char path[4096];
    uint64_t header_bytes = 0;
    enum status st = STATUS_OK;

    if (refs == NULL || file == NULL) {
        st = FAIL(STATUS_NOT_FOUND, "HOLDFAST_TEST_REFS is not set: run the test through ctest");
        goto done;
    }
    snprintf(path, sizeof(path), "%s/%s", refs, name);
    TRY(st, read_whole(path, &file->bytes, &file->count), done);
    if (file->count >= sizeof(header_bytes)) {
        memcpy(&header_bytes, file->bytes, sizeof(header_bytes));
    }
    if (header_bytes == 0 || header_bytes > file->count - sizeof(header_bytes)) {
        st = FAIL(STATUS_CORRUPT, "'%s' is not a safetensors file", path);
        goto done;
    }
    file->data_begin = sizeof(header_bytes) + (size_t)header_bytes;
    file->header = cJSON_ParseWithLength(file->bytes + sizeof(header_bytes), (size_t)header_bytes);
    if (file->header == NULL) {
        st = FAIL(STATUS_CORRUPT, "the header of '%s' is not JSON", path);
        goto done;
    }
    *out_file = file;
    file = NULL;
done:
    safetensors_close(&file);
    return st;
}

void safetensors_close(struct safetensors **file)
{
    if (*file != NULL) {
        cJSON_Delete((*file)->header);
        free((*file)->bytes);
        free(*file);
        *file = NULL;
    }
}

enum status safetensors_find(const struct safetensors *file, const char *name,
                             struct safetensor *out_tensor)
{
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(file->header, name);
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    struct safetensor tensor = {.count = 1};

    if (entry == NULL) {
        return FAIL(STATUS_NOT_FOUND, "there is no tensor '%s'", name);
    }
    if (!cJSON_IsString(dtype) || strcmp(dtype->valuestring, "F32") != 0 || !cJSON_IsArray(shape) ||
        cJSON_GetArraySize(shape) > SAFETENSORS_DIMS_MAX || !cJSON_IsArray(offsets) ||
        cJSON_GetArraySize(offsets) != 2) {
        return FAIL(STATUS_CORRUPT, "tensor '%s' is not float32 with shape and offsets", name);
    }
    tensor.dims = cJSON_GetArraySize(shape);
    for (int i = 0; i < tensor.dims; i++) {
        tensor.shape[i] = (uint64_t)cJSON_GetArrayItem(shape, i)->valuedouble;
        tensor.count *= tensor.shape[i];
    }
    size_t begin = (size_t)cJSON_GetArrayItem(offsets, 0)->valuedouble;
    size_t end = (size_t)cJSON_GetArrayItem(offsets, 1)->valuedouble;
    if (end < begin || end - begin != tensor.count * sizeof(float) ||
        end > file->count - file->data_begin) {
        return FAIL(STATUS_CORRUPT, "the data of tensor '%s' is not in the file", name);
    }
    tensor.values = (const float *)(const void *)(file->bytes + file->data_begin + begin);
    *out_tensor = tensor;
    return STATUS_OK;
}
