/* A reader of NumPy's array files; see npy.h. Before it: tests/refs. After it: a test's claims. */
#include "tests/support/npy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/mem.h"

#define HEADER_BYTES_MAX 1024

static const struct {
    const char *descr;
    enum npy_type type;
    size_t size;
} types[] = {
    {"'<i4'", NPY_INT32, 4},   {"'<i8'", NPY_INT64, 8}, {"'<u4'", NPY_UINT32, 4},
    {"'<u2'", NPY_UINT16, 2},  {"'<i2'", NPY_INT16, 2}, {"'<f4'", NPY_FLOAT32, 4},
    {"'<f8'", NPY_FLOAT64, 8},
};

/* Of "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }" everything but the elements. */
static enum status parse_header(const char *header, const char *path, struct npy *array,
                                size_t *out_size)
{
    const char *shape = strstr(header, "'shape': (");

    *out_size = 0;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strstr(header, types[i].descr) != NULL) {
            array->type = types[i].type;
            *out_size = types[i].size;
        }
    }
    if (*out_size == 0 || shape == NULL || strstr(header, "'fortran_order': False") == NULL) {
        return FAIL(STATUS_CORRUPT, "unknown array header '%s' in '%s'", header, path);
    }
    array->count = 1;
    for (shape += strlen("'shape': ("); *shape != ')';) {
        char *end = NULL;
        unsigned long long extent = strtoull(shape, &end, 10);

        if (end == shape || array->dims == NPY_DIMS_MAX) {
            return FAIL(STATUS_CORRUPT, "unknown array shape in '%s' of '%s'", header, path);
        }
        array->shape[array->dims++] = extent;
        array->count *= extent;
        shape = end + strspn(end, ", ");
    }
    return STATUS_OK;
}

enum status npy_read(const char *path, struct npy *out_array)
{
    enum status st = STATUS_OK;
    unsigned char start[10]; /* magic, version, length of the header */
    char header[HEADER_BYTES_MAX + 1] = {0};
    size_t size = 0;
    FILE *file = fopen(path, "rb");

    *out_array = (struct npy){0};
    if (file == NULL) {
        return FAIL_ERRNO("cannot open '%s'", path);
    }
    size_t header_bytes = 0;
    if (fread(start, sizeof start, 1, file) == 1 && memcmp(start, "\x93NUMPY\x01\x00", 8) == 0) {
        header_bytes = start[8] + 256u * start[9];
    }
    if (header_bytes == 0 || header_bytes > HEADER_BYTES_MAX ||
        fread(header, header_bytes, 1, file) != 1) {
        st = FAIL(STATUS_CORRUPT, "no array of version 1 in '%s'", path);
        goto done;
    }
    TRY(st, parse_header(header, path, out_array, &size), done);
    TRY(st, mem_alloc(&out_array->elements, out_array->count, size), done);
    if (fread(out_array->elements, size, out_array->count, file) != out_array->count) {
        st = FAIL(STATUS_CORRUPT, "fewer than %zu elements in '%s'", out_array->count, path);
    }
done:
    (void)fclose(file);
    if (st != STATUS_OK) {
        npy_deinit(out_array);
    }
    return st;
}

enum status npy_read_ref(const char *name, struct npy *out_array)
{
    enum status st = STATUS_OK;
    const char *refs = getenv("HOLDFAST_TEST_REFS");
    char *path = NULL;

    *out_array = (struct npy){0};
    if (refs == NULL) {
        return FAIL(STATUS_USAGE, "HOLDFAST_TEST_REFS is not set; run the test through ctest");
    }
    TRY(st, mem_format(&path, "%s/%s", refs, name), done);
    TRY(st, npy_read(path, out_array), done);
done:
    mem_free(&path);
    return st;
}

void npy_deinit(struct npy *array)
{
    mem_free(&array->elements);
    *array = (struct npy){0};
}
