/* Point to point through a group's shared memory: one ring per direction and pair of members. */
#ifndef TRAIN_COMM_RING_H
#define TRAIN_COMM_RING_H

#include "train/comm/segment.h"

/* Does all transfers; a send is done once its last byte lies in the ring. */
enum status ring_exchange(struct segment *segment, struct wait *wait,
                          const struct comm_transfer *transfers, int count) STATUS_MUST_CHECK;

#endif
