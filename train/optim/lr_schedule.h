/* Learning rate and weight decay as Megatron's OptimizerParamScheduler gives them: pure functions
 * of how many samples the steps before have consumed. Their position is therefore part of the
 * training state.
 */
#ifndef TRAIN_OPTIM_LR_SCHEDULE_H
#define TRAIN_OPTIM_LR_SCHEDULE_H

#include <stdint.h>

enum lr_decay {
    LR_DECAY_CONSTANT,
    LR_DECAY_LINEAR,
    LR_DECAY_COSINE,
    LR_DECAY_INVERSE_SQUARE_ROOT,
    LR_DECAY_WSD /* warm-up, then stable, then decay */
};

enum lr_wsd_decay {
    LR_WSD_DECAY_EXPONENTIAL,
    LR_WSD_DECAY_LINEAR,
    LR_WSD_DECAY_COSINE,
    LR_WSD_DECAY_MINUS_SQRT
};

enum lr_weight_decay { LR_WEIGHT_DECAY_CONSTANT, LR_WEIGHT_DECAY_LINEAR, LR_WEIGHT_DECAY_COSINE };

struct lr_schedule {
    enum lr_decay decay;
    enum lr_wsd_decay wsd_decay;
    double max, min;       /* rates */
    double warmup_init;    /* rate at sample 0 of a warm-up */
    double warmup_samples; /* a fraction of the decay may be no whole number */
    double decay_samples;  /* from sample 0, warm-up included; > warmup_samples */
    double wsd_samples;    /* of WSD: the part of the decay at its end; at most decay_samples */

    enum lr_weight_decay weight_decay; /* how it goes from first to last */
    double weight_decay_first, weight_decay_last;
    double weight_decay_samples; /* until the last one; > 0 */
};

/* The rate of the step that begins at `samples`. The very first step of a warm-up has warmup_init,
 * as in Megatron. */
double lr_schedule_at(const struct lr_schedule *schedule, uint64_t samples);
/* The same step's weight decay. */
double lr_schedule_weight_decay_at(const struct lr_schedule *schedule, uint64_t samples);

#endif
