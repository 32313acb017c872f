/* Reads safetensors files: a JSON header, then the tensors' bytes; hostile headers are refused.
 *
 * Format: u64 little-endian header size, JSON {"name": {"dtype", "shape", "data_offsets"}, ...},
 * data. The source is the specification of huggingface/safetensors (README, "Format").
 */
#ifndef CKPT_SAFETENSORS_READER_H
#define CKPT_SAFETENSORS_READER_H

#include <cjson/cJSON.h>
#include <stdint.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"

#define SAFETENSORS_HEADER_BYTES_MAX ((uint64_t)100 << 20) /* the format's own limit */

struct safetensors_reader {
    struct fs_file *file;
    uint64_t data_begin, data_bytes;
    cJSON *header;
};

enum status safetensors_reader_open(struct fs *fs, const char *path,
                                    struct safetensors_reader *out_file) STATUS_MUST_CHECK;
void safetensors_reader_close(struct safetensors_reader *file); /* takes zeroed storage */
/* Reads tensor `name` of exactly this shape; F16 and BF16 are widened. Memory is taken only when
 * the file holds as many bytes; freed by mem_free. STATUS_NOT_FOUND, STATUS_CORRUPT and
 * STATUS_UNSUPPORTED (another dtype) name the tensor. */
enum status safetensors_reader_read_f32(const struct safetensors_reader *file, const char *name,
                                        int dims, const uint64_t *shape, float **out_values)
    STATUS_MUST_CHECK;

#endif
