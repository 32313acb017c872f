/* Reads safetensors files: a JSON header, then the tensors' bytes; hostile headers are refused.
 *
 * Format: u64 little-endian header size, JSON {"name": {"dtype", "shape", "data_offsets"}, ...},
 * data. The source is the specification of huggingface/safetensors (README, "Format").
 */
#ifndef CKPT_SAFETENSORS_H
#define CKPT_SAFETENSORS_H

#include <cjson/cJSON.h>
#include <stdint.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"

#define SAFETENSORS_HEADER_BYTES_MAX ((uint64_t)100 << 20) /* the format's own limit */
#define SAFETENSORS_DIMS_MAX 4

struct safetensors {
    struct fs_file *file;
    uint64_t data_begin, data_bytes;
    cJSON *header;
};

enum status safetensors_open(struct fs *fs, const char *path, struct safetensors *out_file)
    STATUS_MUST_CHECK;
void safetensors_close(struct safetensors *file); /* takes zeroed storage */
/* Reads the float32 tensor `name` of exactly this shape into `out`; F16 and BF16 are widened.
 * STATUS_NOT_FOUND, STATUS_CORRUPT and STATUS_UNSUPPORTED (another dtype) name it. */
enum status safetensors_read_f32(const struct safetensors *file, const char *name, int dims,
                                 const uint64_t *shape, float *out) STATUS_MUST_CHECK;

#endif
