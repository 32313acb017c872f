/* Linear warm-up, then constant, linear or half-cosine decay. Before it: train_options (the
 * numbers); after it: optimizer. The formulas and their order of operations are Megatron's, so that
 * the printed rates agree to the last digit.
 */
#include "train/optim/lr_schedule.h"

#include <math.h>

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
    double ratio = (position - schedule->warmup_samples) /
                   (schedule->decay_samples - schedule->warmup_samples);
    double share = 1.0 - ratio;
    if (schedule->decay == LR_DECAY_COSINE) {
        share = 0.5 * (cos(acos(-1.0) * ratio) + 1.0);
    }
    return schedule->min + share * (schedule->max - schedule->min);
}
