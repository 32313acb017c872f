/* The memory that the members of one group share: its shape. window (collectives) and
 * ring (point to point) work in it.
 *
 *   head | members | slabs: 2 turns x members x chunk | results: 2 turns x chunk | rings: n x n
 *
 * Turns alternate, so that one barrier per chunk is enough: what is written in turn t was last
 * read in turn t - 2, and the barrier of turn t - 1 lies between. Rings that are never used cost
 * no memory: the file is sparse.
 */
#ifndef TRAIN_COMM_SEGMENT_H
#define TRAIN_COMM_SEGMENT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "train/comm/wait.h"

#define SEGMENT_LINE 64

struct segment_head {
    _Atomic uint32_t turn;    /* barriers passed; slept on */
    _Atomic uint32_t arrived; /* members in the present barrier */
    _Atomic uint32_t sleepers;
    char fill[SEGMENT_LINE - 3 * sizeof(uint32_t)];
};

struct segment_member {
    _Atomic uint64_t arrivals; /* barriers come to: tells who is missing */
    _Atomic uint64_t calls[2]; /* which collective, by parity of its number */
    _Atomic uint32_t bell;     /* rung when one of its rings has moved; slept on */
    _Atomic uint32_t is_asleep;
    char fill[SEGMENT_LINE - 4 * sizeof(uint64_t)];
};

/* One direction between two members. Positions count bytes since the start; the writer moves
 * `head`, the reader `tail`. */
struct segment_ring {
    _Atomic uint64_t head;
    char fill_head[SEGMENT_LINE - sizeof(uint64_t)];
    _Atomic uint64_t tail;
    char fill_tail[SEGMENT_LINE - sizeof(uint64_t)];
    unsigned char data[];
};

struct segment {
    struct wait_world *world;
    const char *name; /* of the group */
    int rank, size;   /* in the group */
    const int *world_ranks;
    int *missing; /* scratch: world ranks, at most `size` */
    unsigned char *base;
    size_t bytes;
    size_t chunk_bytes; /* a member's share of the window */
    size_t ring_bytes;  /* a power of two */
    size_t ring_stride;
};

/* Sets the sizes; `base` is set by the caller, to that many mapped zero bytes. */
void segment_plan(struct segment *segment, int size);
struct segment_head *segment_head(const struct segment *segment);
struct segment_member *segment_member(const struct segment *segment, int rank);
/* turn: any number; only its parity counts. */
unsigned char *segment_slab(const struct segment *segment, uint64_t turn, int rank);
unsigned char *segment_result(const struct segment *segment, uint64_t turn);
struct segment_ring *segment_ring(const struct segment *segment, int from, int to);

#endif
