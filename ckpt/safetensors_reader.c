/* Reads safetensors files; see safetensors_reader.h. */
#include "ckpt/safetensors_reader.h"

#include <math.h>
#include <string.h>

#include "ckpt/base/json.h"
#include "ckpt/base/mem.h"

enum status safetensors_reader_open(struct fs *fs, const char *path,
                                    struct safetensors_reader *out_file)
{
    enum status st = STATUS_OK;
    unsigned char head[8];
    uint64_t size = 0, header_bytes = 0;
    char *text = NULL;

    *out_file = (struct safetensors_reader){.file = NULL};
    TRY(st, fs_open(fs, path, FS_READ, &out_file->file), done);
    TRY(st, fs_file_size(out_file->file, &size), done);
    TRY(st, fs_pread(out_file->file, head, sizeof head, 0), done);
    for (int i = 7; i >= 0; i--) {
        header_bytes = header_bytes << 8 | head[i];
    }
    if (header_bytes > SAFETENSORS_HEADER_BYTES_MAX || header_bytes > size - sizeof head) {
        st = FAIL(STATUS_CORRUPT, "'%s' is no safetensors file: its header would have %llu bytes",
                  path, (unsigned long long)header_bytes);
        goto done;
    }
    TRY(st, mem_alloc(&text, (size_t)header_bytes + 1, 1), done);
    TRY(st, fs_pread(out_file->file, text, (size_t)header_bytes, sizeof head), done);
    TRY(st, json_parse(text, (size_t)header_bytes, path, &out_file->header), done);
    if (!cJSON_IsObject(out_file->header)) {
        st = FAIL(STATUS_CORRUPT, "'%s': its header is no JSON object", path);
        goto done;
    }
    out_file->data_begin = sizeof head + header_bytes;
    out_file->data_bytes = size - out_file->data_begin;
done:
    mem_free(&text);
    if (st != STATUS_OK) {
        safetensors_reader_close(out_file);
    }
    return st;
}

void safetensors_reader_close(struct safetensors_reader *file)
{
    fs_close(&file->file);
    cJSON_Delete(file->header);
    file->header = NULL;
}

static enum status get_range(const struct safetensors_reader *file, const cJSON *entry,
                             const char *name, uint64_t *out_begin, uint64_t *out_bytes)
{
    enum status st = STATUS_OK;
    cJSON *offsets = NULL;

    TRY(st, json_get_array(entry, name, "data_offsets", &offsets), done);
    const cJSON *first = cJSON_GetArrayItem(offsets, 0), *second = cJSON_GetArrayItem(offsets, 1);
    if (cJSON_GetArraySize(offsets) != 2 || !cJSON_IsNumber(first) || !cJSON_IsNumber(second) ||
        !(first->valuedouble >= 0) || !(second->valuedouble >= first->valuedouble) ||
        !(second->valuedouble <= (double)file->data_bytes) ||
        floor(first->valuedouble) != first->valuedouble ||
        floor(second->valuedouble) != second->valuedouble) {
        return FAIL(STATUS_CORRUPT, "'%s': tensor '%s' lies outside the file", fs_path(file->file),
                    name);
    }
    *out_begin = (uint64_t)first->valuedouble;
    *out_bytes = (uint64_t)second->valuedouble - *out_begin;
done:
    return st;
}

static enum status check_shape(const struct safetensors_reader *file, const cJSON *entry,
                               const char *name, int dims, const uint64_t *shape)
{
    enum status st = STATUS_OK;
    cJSON *array = NULL;

    TRY(st, json_get_array(entry, name, "shape", &array), done);
    bool is_same = cJSON_GetArraySize(array) == dims;
    for (int d = 0; is_same && d < dims; d++) {
        const cJSON *item = cJSON_GetArrayItem(array, d);
        is_same = cJSON_IsNumber(item) && item->valuedouble == (double)shape[d];
    }
    if (!is_same) {
        char *text = NULL;
        st = json_print_line(array, &text);
        if (st == STATUS_OK) {
            st = FAIL(STATUS_CORRUPT, "'%s': tensor '%s' has shape %s, wanted [%llu%s%.0llu]",
                      fs_path(file->file), name, text, (unsigned long long)shape[0],
                      dims > 1 ? "," : "", dims > 1 ? (unsigned long long)shape[1] : 0ULL);
        }
        mem_free(&text);
    }
done:
    return st;
}

/* Widens 16-bit floats. */
static void widen(float *out, const uint16_t *halves, size_t count, bool is_bf16)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t half = halves[i], word = half << 16;
        if (!is_bf16) {
            uint32_t sign = (half & 0x8000U) << 16, exponent = half >> 10 & 31, part = half & 1023;
            if (exponent == 0) {
                float small = (float)part * 0x1p-24F;
                memcpy(&word, &small, sizeof word);
                word |= sign;
            } else {
                word = sign | (exponent == 31 ? 255U : exponent + 112) << 23 | part << 13;
            }
        }
        memcpy(&out[i], &word, sizeof word);
    }
}

enum status safetensors_reader_read_f32(const struct safetensors_reader *file, const char *name,
                                        int dims, const uint64_t *shape, float **out_values)
{
    enum status st = STATUS_OK;
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(file->header, name);
    const char *dtype = NULL;
    uint64_t begin = 0, bytes = 0, count = 1;
    uint16_t *halves = NULL;
    float *values = NULL;

    for (int d = 0; d < dims; d++) {
        count *= shape[d];
    }
    if (entry == NULL) {
        return FAIL(STATUS_NOT_FOUND, "'%s' has no tensor '%s'", fs_path(file->file), name);
    }
    for (const cJSON *other = entry->next; other != NULL; other = other->next) {
        if (strcmp(other->string, name) == 0) {
            return FAIL(STATUS_CORRUPT, "'%s': tensor '%s' is there twice", fs_path(file->file),
                        name);
        }
    }
    TRY(st, json_get_string(entry, name, "dtype", &dtype), done);
    TRY(st, check_shape(file, entry, name, dims, shape), done);
    TRY(st, get_range(file, entry, name, &begin, &bytes), done);
    bool is_f32 = strcmp(dtype, "F32") == 0, is_bf16 = strcmp(dtype, "BF16") == 0;
    if (!is_f32 && !is_bf16 && strcmp(dtype, "F16") != 0) {
        return FAIL(STATUS_UNSUPPORTED, "'%s': tensor '%s' is %.16s, wanted F32, F16 or BF16",
                    fs_path(file->file), name, dtype);
    }
    if (bytes != count * (is_f32 ? 4 : 2)) {
        return FAIL(STATUS_CORRUPT, "'%s': tensor '%s' has %llu bytes for %llu elements",
                    fs_path(file->file), name, (unsigned long long)bytes,
                    (unsigned long long)count);
    }
    TRY(st, mem_alloc(&values, (size_t)count, sizeof *values), done);
    if (is_f32) {
        TRY(st, fs_pread(file->file, values, (size_t)bytes, file->data_begin + begin), done);
    } else {
        TRY(st, mem_alloc(&halves, (size_t)count, sizeof *halves), done);
        TRY(st, fs_pread(file->file, halves, (size_t)bytes, file->data_begin + begin), done);
        widen(values, halves, (size_t)count, is_bf16);
    }
    *out_values = values;
    values = NULL;
done:
    mem_free(&values);
    mem_free(&halves);
    return st;
}
