/* A pipeline's schedule, played in thought: when each stage does what, how long it idles, and how
 * many micro-batches it holds. For `holdfast train --print-schedule`.
 *
 * Before it: pipeline_plan. After it: people who choose a layout.
 *
 * The unit of time is a forward of one stage; a backward takes two. All stages are taken to be
 * equally fast and transfers to take no time. Then 1F1B takes 3 (M + S - 1) units, of which each
 * stage of S idles 3 (S - 1) (Narayanan et al. 2021, section 2.2): what a run idles beyond that, it
 * idles for another reason.
 */
#ifndef TRAIN_PARALLEL_SCHEDULE_VIEW_H
#define TRAIN_PARALLEL_SCHEDULE_VIEW_H

#include <stdio.h>

#include "ckpt/base/status.h"
#include "train/parallel/pipeline.h"

#define SCHEDULE_FORWARD_UNITS 1
#define SCHEDULE_BACKWARD_UNITS 2
#define SCHEDULE_VIEW_MICRO_BATCHES_MAX 4096

/* One micro-batch's times on one stage, in units. */
struct schedule_times {
    int forward_begin, backward_begin;
};

struct schedule_view {
    int stages, micro_batches;
    int units;                    /* of the whole step */
    struct schedule_times *times; /* [stages,micro_batches] */
    int *in_flight;               /* [stages]: between forward and backward, at most */
};

/* STATUS_USAGE: more micro-batches than can be looked at. */
enum status schedule_view_init(int stages, int micro_batches, struct schedule_view *out_view)
    STATUS_MUST_CHECK;
void schedule_view_deinit(struct schedule_view *view);
/* Part of its time that a stage idles; the same for all stages. */
double schedule_view_bubble(const struct schedule_view *view);
/* A line for each stage, a column for each unit ("f2" is the forward of micro-batch 2, "B2" half of
 * its backward), and the totals. */
enum status schedule_view_print(const struct schedule_view *view, FILE *out) STATUS_MUST_CHECK;

#endif
