/* One rank's shard file: plain HDF5 on the outside, an index of boxes on the inside. The only user
 * of HDF5.
 *
 * Before it: writer (which boxes), codec (chunks). After it: meta/commit (the record of the file).
 * A shard holds one dataset for each non-empty box, named by its tensor, and last the dataset
 * "index": JSON that tells where each chunk of each box lies, with its XXH3-64, so that a load
 * finds and checks every byte by pread without HDF5 (reader.c, shard_index.h). FORMAT.md is the
 * reference. The file is built layout-first: HDF5 allocates and writes the structure, payload goes
 * by plain pwrite, and all of it through struct fs. Chunks hold whole rows of the first dimension.
 * A shard is immutable once it is synced.
 */
#ifndef CKPT_SHARD_H
#define CKPT_SHARD_H

#include <stdint.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"
#include "ckpt/base/thread.h"
#include "ckpt/meta/layout.h"
#include "ckpt/meta/manifest.h"
#include "ckpt/meta/shard_map.h"

#define SHARD_ALIGN 4096
#define SHARD_CHUNK_BYTES ((uint64_t)2 << 20) /* aimed at; a single row may be larger */
#define SHARD_COMPRESS_BYTES_MIN ((uint64_t)64 << 10)

/* What to write of one tensor. `data` is the box, row-major and contiguous. */
struct shard_box {
    const char *tensor;
    enum manifest_type type;
    int dims;
    uint64_t shape[BOX_DIMS_MAX]; /* global */
    struct box box;
    const void *data;
};

struct shard_identity {
    uint64_t step, epoch;
    struct coords coords;
    struct layout layout;
    const char *run_id;
};

/* Creates `path` (which must not be there), writes it, syncs it, and fills in out_file but for
 * coords and name. Space is reserved before the first byte. After a failure the file may be there,
 * half written; the caller removes it with its directory. */
enum status shard_write(struct fs *fs, const char *path, const struct shard_identity *identity,
                        const struct shard_box *boxes, size_t count, bool compress,
                        struct thread_pool *pool, struct manifest_file *out_file) STATUS_MUST_CHECK;

#endif
