/* Which data a training's options name, and their sources of samples.
 *
 * Before it: train_options (the flags), train_main (when a rank opens them). After it: data_loader.
 * One of three: --data-path (or the file of --data-args-path) cut by --split, a path of its own for
 * each split, or mock data.
 */
#ifndef TRAIN_TRAIN_DATA_H
#define TRAIN_TRAIN_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/base/status.h"
#include "train/data/data_loader.h"
#include "train/train_options.h"

/* Whether a flag asks where documents end: --eod-mask-loss, a reset of positions or attention. */
bool train_data_needs_eod(const struct train_options *options);
/* Exactly one source, with all that it needs and nothing of the others; else STATUS_USAGE. */
enum status train_data_check(const struct train_options *options) STATUS_MUST_CHECK;

/* Opens `split` for `samples` samples (0: a zeroed source), read ahead in this rank's order unless
 * it is mock data. See data_loader_open. */
enum status train_data_open(const struct train_options *options, const struct train_plan *plan,
                            enum data_split split, uint64_t samples, struct data_source *out_source)
    STATUS_MUST_CHECK;

#endif
