/* NumPy's file format 1.0 for arrays of known shape; see array_file.h. */
#include "train/data/array_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/mem.h"

static const struct {
    const char *descr;
    size_t bytes;
} types[] = {
    [ARRAY_INT16] = {"<i2", 2},
    [ARRAY_INT32] = {"<i4", 4},
    [ARRAY_INT64] = {"<i8", 8},
    [ARRAY_UINT32] = {"<u4", 4},
};

struct array_file array_file_describe(const char *name, enum array_type type, uint64_t rows,
                                      int columns)
{
    return (struct array_file){.name = name, .type = type, .rows = rows, .columns = columns};
}

size_t array_file_bytes(enum array_type type, uint64_t rows, int columns)
{
    return ARRAY_FILE_HEADER_BYTES +
           rows * (columns == 0 ? 1 : (size_t)columns) * types[type].bytes;
}

/* Magic, version 1.0, the length of the rest, and a Python dictionary padded to 64 bytes. With the
 * room that NumPy leaves for a first dimension of 21 digits that makes 128 for all our shapes. */
static void write_header(const struct array_file *array, unsigned char out_header[])
{
    static const char magic[10] = "\x93NUMPY\x01\x00\x76\x00";
    char text[ARRAY_FILE_HEADER_BYTES + 1], columns[16] = "";

    if (array->columns > 0) {
        (void)snprintf(columns, sizeof columns, " %d", array->columns);
    }
    int length = snprintf(text, sizeof text,
                          "{'descr': '%s', 'fortran_order': False, 'shape': (%" PRIu64 ",%s), }",
                          types[array->type].descr, array->rows, columns);
    CHECK(length > 0 && (size_t)length + sizeof magic < ARRAY_FILE_HEADER_BYTES);
    memset(out_header, ' ', ARRAY_FILE_HEADER_BYTES);
    memcpy(out_header, magic, sizeof magic);
    memcpy(out_header + sizeof magic, text, (size_t)length);
    out_header[ARRAY_FILE_HEADER_BYTES - 1] = '\n';
}

enum status array_file_create(struct array_file *array)
{
    enum status st = STATUS_OK;
    size_t byte_count = array_file_bytes(array->type, array->rows, array->columns);

    TRY(st, mem_alloc(&array->memory, byte_count, 1), done);
    write_header(array, array->memory);
    array->bytes = array->memory;
    array->byte_count = byte_count;
done:
    return st;
}

enum status array_file_map(struct array_file *array, const char *path)
{
    enum status st = STATUS_OK;
    unsigned char header[ARRAY_FILE_HEADER_BYTES];
    struct map_file map = {0};
    size_t wanted = array_file_bytes(array->type, array->rows, array->columns);

    TRY(st, map_file_open(path, &map), done);
    if (map.count != wanted) {
        st = FAIL(STATUS_BAD_DATA, "'%s' has %zu bytes, wanted %zu", path, map.count, wanted);
        goto done;
    }
    write_header(array, header);
    if (memcmp(map.bytes, header, sizeof header) != 0) {
        st = FAIL(STATUS_BAD_DATA, "'%s' is no array of the wanted type and shape", path);
        goto done;
    }
    array->map = map;
    array->bytes = map.bytes;
    array->byte_count = map.count;
done:
    if (st != STATUS_OK) {
        map_file_close(&map);
    }
    return st;
}

void *array_file_elements(const struct array_file *array)
{
    CHECK(array->bytes != NULL);
    return (void *)((uintptr_t)array->bytes + ARRAY_FILE_HEADER_BYTES);
}

void array_file_deinit(struct array_file *array)
{
    mem_free(&array->memory);
    map_file_close(&array->map);
    array->bytes = NULL;
    array->byte_count = 0;
}
