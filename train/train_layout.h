/* The flags that say how a training is cut over ranks and what it keeps in memory: Megatron's rules
 * about them, and what they make of the plan.
 *
 * Before it: train_options (all flags resolved). After it: trainer, by the plan.
 */
#ifndef TRAIN_TRAIN_LAYOUT_H
#define TRAIN_TRAIN_LAYOUT_H

#include "train/train_options.h"

/* Checks the flags of recompute, of the stages' sizes and of their chunks and writes them into
 * `plan`, whose layout, model and batch are set.
 * STATUS_USAGE names flags and numbers. Pure. */
enum status train_layout_resolve(struct train_options *options, struct train_plan *plan)
    STATUS_MUST_CHECK;
/* The part of the model that the rank at `coords` holds; `tp` is its TP group. With several chunks
 * every stage's layers are cut into equal ones, and the model passes all stages once for each. */
struct gpt_stage train_layout_stage(const struct train_plan *plan, struct coords coords,
                                    struct comm *tp);

#endif
