/* Collectives through a group's shared memory: bounded chunks, one barrier a chunk. */
#ifndef TRAIN_COMM_WINDOW_H
#define TRAIN_COMM_WINDOW_H

#include "train/comm/segment.h"

enum window_call {
    WINDOW_SETUP = 1,
    WINDOW_ALL_REDUCE,
    WINDOW_REDUCE_SCATTER,
    WINDOW_ALL_GATHER,
    WINDOW_BROADCAST,
    WINDOW_BARRIER
};

struct window {
    struct segment *segment;
    uint64_t turn;   /* which halves of the memory come next */
    uint64_t calls;  /* collectives begun */
    size_t *offsets; /* the walk of the present call: where each member's */
    size_t *lengths; /* part of the buffer begins, its bytes, */
    size_t *slots;   /* and where its pieces lie in a chunk */
    const void **sources;
    size_t slot_bytes;
    size_t piece_count; /* of the longest part; at least 1 */
};

enum status window_init(struct window *window, struct segment *segment) STATUS_MUST_CHECK;
void window_deinit(struct window *window);
const char *window_call_name(enum window_call call); /* "all-reduce" */

/* Groups of two or more. Each passes at least one barrier. */
enum status window_barrier(struct window *window, struct wait *wait, enum window_call call)
    STATUS_MUST_CHECK;
enum status window_all_reduce(struct window *window, struct wait *wait, void *buffer, size_t count,
                              enum comm_type type, enum comm_op op) STATUS_MUST_CHECK;
enum status window_reduce_scatter(struct window *window, struct wait *wait, void *buffer,
                                  const size_t *counts, enum comm_type type) STATUS_MUST_CHECK;
enum status window_all_gather(struct window *window, struct wait *wait, void *buffer,
                              const size_t *byte_counts) STATUS_MUST_CHECK;
enum status window_broadcast(struct window *window, struct wait *wait, void *buffer, size_t bytes,
                             int root) STATUS_MUST_CHECK;

#endif
