/* Reads boxes of tensors out of a checkpoint's shards, whatever layout wrote them, without HDF5.
 *
 * Before it: the manifest. After it: reader (into the live state), verify, tools. Every chunk is
 * checked by its hash before it is used. Threads: one caller; the pool reads in parallel.
 */
#ifndef CKPT_BOX_READER_H
#define CKPT_BOX_READER_H

#include <stddef.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"
#include "ckpt/base/thread.h"
#include "ckpt/meta/manifest.h"
#include "ckpt/meta/shard_map.h"

struct box_reader;

/* A box that is wanted, and its memory: row-major and contiguous. */
struct box_target {
    const char *tensor;
    struct box box;
    void *data;
};

/* Reads the index of every shard. `directory` and `manifest` stay the caller's. */
enum status box_reader_open(struct fs *fs, const char *directory, const struct manifest *manifest,
                            struct thread_pool *pool, struct box_reader **out_reader)
    STATUS_MUST_CHECK;
void box_reader_close(struct box_reader **reader);
/* STATUS_CORRUPT: a chunk is damaged, or the stored boxes leave a gap or overlap. Every tensor
 * named is in the manifest. */
enum status box_reader_read(struct box_reader *reader, const struct box_target *targets,
                            size_t count) STATUS_MUST_CHECK;

#endif
