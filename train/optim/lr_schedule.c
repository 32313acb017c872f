/* Linear warm-up, then one of the decays; and the weight decay. Before it: train_options (the
 * numbers); after it: optimizer. The formulas and their order of operations are Megatron's, so that
 * the printed rates agree to the last digit.
 */
#include "train/optim/lr_schedule.h"

#include <math.h>

/* From 1 at ratio 0 to 0 at ratio 1. */
static double half_cosine(double ratio)
{
    return 0.5 * (cos(acos(-1.0) * ratio) + 1.0);
}

/* The share of (max - min) in the last part of WSD. */
static double wsd_share(const struct lr_schedule *schedule, double position)
{
    double begin = schedule->decay_samples - schedule->wsd_samples;
    double ratio = (position - begin) / schedule->wsd_samples;

    if (position <= begin) {
        return 1.0;
    }
    switch (schedule->wsd_decay) {
    case LR_WSD_DECAY_EXPONENTIAL:
        return 2.0 * pow(0.5, ratio) - 1.0;
    case LR_WSD_DECAY_LINEAR:
        return 1.0 - ratio;
    case LR_WSD_DECAY_COSINE:
        return half_cosine(ratio);
    case LR_WSD_DECAY_MINUS_SQRT:
        return 1.0 - sqrt(ratio);
    }
    return 0.0;
}

static double inverse_square_root(const struct lr_schedule *schedule, double position)
{
    double warmup = fmax(schedule->warmup_samples, 1.0);

    return fmax(schedule->min, schedule->max * sqrt(warmup) / sqrt(fmax(position, 1.0)));
}

double lr_schedule_at(const struct lr_schedule *schedule, uint64_t samples)
{
    double position = (double)samples;

    if (schedule->warmup_samples > 0 && position <= schedule->warmup_samples) {
        return schedule->warmup_init +
               (schedule->max - schedule->warmup_init) * position / schedule->warmup_samples;
    }
    if (schedule->decay == LR_DECAY_CONSTANT) {
        return schedule->max;
    }
    if (position > schedule->decay_samples) {
        return schedule->min;
    }
    if (schedule->decay == LR_DECAY_INVERSE_SQUARE_ROOT) {
        return inverse_square_root(schedule, position);
    }
    double ratio = (position - schedule->warmup_samples) /
                   (schedule->decay_samples - schedule->warmup_samples);
    double share = schedule->decay == LR_DECAY_WSD      ? wsd_share(schedule, position)
                   : schedule->decay == LR_DECAY_COSINE ? half_cosine(ratio)
                                                        : 1.0 - ratio;
    return schedule->min + share * (schedule->max - schedule->min);
}

double lr_schedule_weight_decay_at(const struct lr_schedule *schedule, uint64_t samples)
{
    double first = schedule->weight_decay_first;
    double last = schedule->weight_decay_last;
    double ratio = (double)samples / schedule->weight_decay_samples;

    if (ratio > 1.0 || schedule->weight_decay == LR_WEIGHT_DECAY_CONSTANT) {
        return last;
    }
    double share =
        schedule->weight_decay == LR_WEIGHT_DECAY_COSINE ? half_cosine(1.0 - ratio) : ratio;
    return first + share * (last - first);
}
