/* A pipeline's schedule, played in thought: when each stage does what, how long it idles, and how
 * many micro-batches it holds. For `holdfast train --print-schedule`.
 *
 * Before it: schedule. After it: people who choose a layout.
 *
 * The unit of time is a forward of one chunk of a stage; a backward takes two. All chunks are taken
 * to be equally fast and transfers to take no time. Then m micro-batches on p stages of v chunks
 * take 3 (m v + p - 1) units, of which each stage idles 3 (p - 1): in parts of the time that it is
 * busy, (p - 1) / (m v) (Narayanan et al. 2021, section 2.2). What a run idles beyond that, it
 * idles for another reason.
 */
#ifndef TRAIN_PARALLEL_SCHEDULE_VIEW_H
#define TRAIN_PARALLEL_SCHEDULE_VIEW_H

#include <stdio.h>

#include "ckpt/base/status.h"
#include "train/parallel/schedule.h"

#define SCHEDULE_VIEW_MICRO_BATCHES_MAX 4096

struct schedule_view {
    struct schedule_shape shape;
    struct schedule_times times;
};

/* STATUS_USAGE: more micro-batches than can be looked at. */
enum status schedule_view_init(const struct schedule_shape *shape, struct schedule_view *out_view)
    STATUS_MUST_CHECK;
void schedule_view_deinit(struct schedule_view *view);
/* Part of its time that a stage idles; the same for all stages. */
double schedule_view_bubble(const struct schedule_view *view);
/* A line for each stage, a column for each unit ("f2" is the forward of micro-batch 2, "B2" half of
 * its backward; with several chunks "f2b" is that of the second), and the totals. */
enum status schedule_view_print(const struct schedule_view *view, FILE *out) STATUS_MUST_CHECK;

#endif
