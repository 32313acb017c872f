/* The flags that say how a training is cut over ranks and what it keeps in memory: Megatron's rules
 * about them, and what they make of the plan.
 *
 * Before it: train_options (all flags resolved). After it: trainer, by the plan.
 */
#ifndef TRAIN_TRAIN_LAYOUT_H
#define TRAIN_TRAIN_LAYOUT_H

#include "train/train_options.h"

/* Checks the flags of recompute and of the stages' sizes and writes them into `plan`, whose layout
 * and model are set.
 * STATUS_USAGE names flags and numbers. Pure. */
enum status train_layout_resolve(struct train_options *options, struct train_plan *plan)
    STATUS_MUST_CHECK;
/* The layers [*out_begin, *out_end) of a stage. */
void train_layout_stage_layers(const struct train_plan *plan, int stage, int *out_begin,
                               int *out_end);

#endif
