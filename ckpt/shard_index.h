/* The index of a shard: which box of which tensor lies where. Written by shard.c, read without
 * HDF5 by reader.c; JSON on disk, checked against hostile content on the way in.
 */
#ifndef CKPT_SHARD_INDEX_H
#define CKPT_SHARD_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"
#include "ckpt/meta/manifest.h"
#include "ckpt/meta/shard_map.h"

#define SHARD_INDEX_BYTES_MAX ((uint64_t)1 << 30)
#define SHARD_INDEX_CHUNK_BYTES_MAX ((uint64_t)1 << 31)

enum shard_encoding { SHARD_RAW, SHARD_SHUFFLE_ZSTD };

struct shard_chunk {
    uint64_t offset; /* in the file */
    uint64_t bytes;  /* as stored */
    uint64_t hash;   /* XXH3-64 of the stored bytes */
};

/* Chunk c holds rows c * chunk_rows ... of the box's first dimension. The last chunk of a raw box
 * ends with the box; the last one of an encoded box is padded with zero rows to chunk_rows. */
struct shard_index_box {
    char *tensor;
    enum manifest_type type;
    struct box box;
    enum shard_encoding encoding;
    uint64_t chunk_rows;
    struct shard_chunk *chunks;
    size_t chunk_count;
};

struct shard_index {
    struct shard_index_box *boxes;
    size_t count, capacity;
};

void shard_index_deinit(struct shard_index *index);
/* Adds a box with its chunks cut and not yet placed (offset, bytes and hash are 0). */
enum status shard_index_add(struct shard_index *index, const char *tensor, enum manifest_type type,
                            const struct box *box, enum shard_encoding encoding,
                            uint64_t chunk_rows, struct shard_index_box **out_box)
    STATUS_MUST_CHECK;
/* Bytes of one row of the box (an index into its first dimension). */
uint64_t shard_index_row_bytes(const struct shard_index_box *box);
/* Rows of the box that lie in `chunk`, without padding. */
uint64_t shard_index_chunk_rows(const struct shard_index_box *box, size_t chunk);
enum status shard_index_print(const struct shard_index *index, char **out_text) STATUS_MUST_CHECK;
/* Reads, checks the hash, parses and checks: tensors are in the manifest with this type, boxes fit
 * their shapes, chunks lie inside the file and are as large as they must be. */
enum status shard_index_read(struct fs *fs, const char *path, const struct manifest *manifest,
                             const struct manifest_file *file, struct shard_index *out_index)
    STATUS_MUST_CHECK;

#endif
