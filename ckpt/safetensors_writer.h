/* Writes safetensors files, float32, tensor after tensor, whatever their sizes in all.
 *
 * Before it: convert_export. After it: transformers, and whatever else reads the format (see
 * safetensors_reader.h). Call order: create with the list of all tensors, add each once in the
 * list's order, finish. The caller removes the file when any of it fails. One thread.
 */
#ifndef CKPT_SAFETENSORS_WRITER_H
#define CKPT_SAFETENSORS_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"

struct safetensors_entry {
    char *name;
    int dims; /* 1 or 2 */
    uint64_t shape[2];
};

struct safetensors_writer;

/* Makes a new file, reserves its space and writes the header. `entries` stay the caller's, and
 * stay. */
enum status safetensors_writer_create(struct fs *fs, const char *path,
                                      const struct safetensors_entry *entries, size_t count,
                                      struct safetensors_writer **out_writer) STATUS_MUST_CHECK;
/* The next tensor, row-major. */
enum status safetensors_writer_add(struct safetensors_writer *writer, const float *values)
    STATUS_MUST_CHECK;
/* All tensors are there: makes the file durable. */
enum status safetensors_writer_finish(struct safetensors_writer *writer) STATUS_MUST_CHECK;
void safetensors_writer_destroy(struct safetensors_writer **writer); /* takes NULL inside */

#endif
