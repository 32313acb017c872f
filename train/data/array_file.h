/* One index array in memory as it lies in a NumPy file: 128 bytes of header, then the elements.
 *
 * Before it: sample_index and blend (which fill the elements). After it: index_cache, which writes
 * `bytes` as a .npy file, byte for byte NumPy's, and maps it again.
 */
#ifndef TRAIN_DATA_ARRAY_FILE_H
#define TRAIN_DATA_ARRAY_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"
#include "train/data/map_file.h"

#define ARRAY_FILE_HEADER_BYTES 128

enum array_type { ARRAY_INT16, ARRAY_INT32, ARRAY_INT64, ARRAY_UINT32 };

struct array_file {
    const char *name; /* "document_index": its part of the file's name; a literal */
    enum array_type type;
    uint64_t rows;
    int columns;                /* 0: one dimension */
    const unsigned char *bytes; /* header and elements; NULL: neither made nor mapped */
    size_t byte_count;
    unsigned char *memory; /* what array_file_create made, else NULL */
    struct map_file map;   /* what array_file_map mapped */
};

/* An array without memory; columns 0: one dimension. */
struct array_file array_file_describe(const char *name, enum array_type type, uint64_t rows,
                                      int columns);
size_t array_file_bytes(enum array_type type, uint64_t rows, int columns); /* with the header */
/* Makes `array` (name, type, rows, columns are set) with its header and zeroed elements. */
enum status array_file_create(struct array_file *array) STATUS_MUST_CHECK;
/* Maps PATH, which must be of that very type and shape, else STATUS_BAD_DATA. */
enum status array_file_map(struct array_file *array, const char *path) STATUS_MUST_CHECK;
/* The elements, 64-byte aligned; to be written only after array_file_create. */
void *array_file_elements(const struct array_file *array);
/* Takes a zeroed array; name, type and shape stay. */
void array_file_deinit(struct array_file *array);

#endif
