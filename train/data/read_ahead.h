/* Read-ahead: threads fetch the samples that a rank will ask for next, so that a cold disk is
 * waited for beside the mathematics and not in it.
 *
 * Before it: any data_source. After it: the trainer, which sees the same source, only sooner.
 * A rank asks for `run` consecutive samples (its micro-batch), then for those `stride` samples on
 * (the micro-batches of the other DP ranks lie between), and so on. A sample that is not the next
 * of this order (the first one, or after a jump) is fetched too and starts the order anew.
 *
 * Invariants: what `get` gives for a sample, an error included, is what the source below gives; at
 * most `depth` samples are fetched before they are asked for.
 * Threads: `get` belongs to one thread; the source below is called by several at once.
 */
#ifndef TRAIN_DATA_READ_AHEAD_H
#define TRAIN_DATA_READ_AHEAD_H

#include <stdint.h>

#include "ckpt/base/status.h"
#include "train/data/data_loader.h"

#define READ_AHEAD_WORKERS_MAX 64
#define READ_AHEAD_BYTES_MAX ((uint64_t)64 << 20) /* of samples fetched ahead */

struct read_ahead_config {
    int workers; /* 1 .. READ_AHEAD_WORKERS_MAX */
    int64_t sequence_length;
    uint64_t run, stride; /* samples; 1 <= run <= stride */
};

/* Puts itself before `*source`, which it owns from then on (data_loader_close closes both); when it
 * fails, the source is as it was. Threads start with the first `get`. */
enum status read_ahead_open(const struct read_ahead_config *config, struct data_source *source)
    STATUS_MUST_CHECK;

#endif
