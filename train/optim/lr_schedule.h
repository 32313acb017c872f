/* The learning rate as Megatron's OptimizerParamScheduler gives it: a pure function of how many
 * samples the steps before have consumed. Its position is therefore part of the training state.
 */
#ifndef TRAIN_OPTIM_LR_SCHEDULE_H
#define TRAIN_OPTIM_LR_SCHEDULE_H

#include <stdint.h>

enum lr_decay { LR_DECAY_CONSTANT, LR_DECAY_LINEAR, LR_DECAY_COSINE };

struct lr_schedule {
    enum lr_decay decay;
    double max, min;       /* rates */
    double warmup_init;    /* rate at sample 0 of a warm-up */
    double warmup_samples; /* a fraction of the decay may be no whole number */
    double decay_samples;  /* from sample 0, warm-up included; > warmup_samples */
};

/* The rate of the step that begins at `samples`. The very first step of a warm-up has warmup_init,
 * as in Megatron. */
double lr_schedule_at(const struct lr_schedule *schedule, uint64_t samples);

#endif
