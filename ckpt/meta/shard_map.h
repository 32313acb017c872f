/* Boxes: which part of a global tensor somebody holds or wants. Pure arithmetic.
 *
 * A tensor has one global shape (row-major); a box is an offset and an extent in each dimension.
 * Resharding, ZeRO slices, uneven stages and partial loads are all intersections of boxes: a load
 * asks shard_map_plan which parts of which stored boxes make up the box it wants.
 */
#ifndef CKPT_META_SHARD_MAP_H
#define CKPT_META_SHARD_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"

#define BOX_DIMS_MAX 4

struct box {
    int dims; /* 1 .. BOX_DIMS_MAX */
    uint64_t offset[BOX_DIMS_MAX];
    uint64_t extent[BOX_DIMS_MAX]; /* a 0 in any dimension: empty */
};

uint64_t box_count(const struct box *box); /* elements */
bool box_is_empty(const struct box *box);
bool box_equal(const struct box *a, const struct box *b);
struct box box_whole(int dims, const uint64_t *shape);
bool box_fits(const struct box *box, int dims, const uint64_t *shape);
/* False (and an empty box) when they share nothing. */
bool box_intersect(const struct box *a, const struct box *b, struct box *out_box);
/* "[0:4, 128:256]" for messages; cut to `bytes`. */
void box_format(const struct box *box, char *out_text, size_t bytes);
/* Copies `part` (inside both boxes) between the row-major memories of two boxes of the same
 * tensor. Rows that are contiguous on both sides are copied at once. */
void box_copy(const struct box *part, size_t element_bytes, const struct box *to, void *to_data,
              const struct box *from, const void *from_data);

/* One stored box of a tensor, and whatever the caller needs to find its bytes. */
struct shard_map_stored {
    struct box box;
    size_t source; /* the caller's index */
};

struct shard_map_piece {
    size_t stored;   /* index into the list of stored boxes */
    struct box part; /* what to take of it */
};

/* The pieces that make up `wanted`, in the order of `stored`. STATUS_CORRUPT when they overlap or
 * leave a gap (the message names `tensor_name` and the box); freed by mem_free. An empty `wanted`
 * needs none. */
enum status shard_map_plan(const char *tensor_name, const struct box *wanted,
                           const struct shard_map_stored *stored, size_t stored_count,
                           struct shard_map_piece **out_pieces, size_t *out_count)
    STATUS_MUST_CHECK;

#endif
