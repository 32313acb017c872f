/* The learning rate against values computed by hand from Megatron's formulas. */
#include <criterion/criterion.h>
#include <math.h>

#include "train/optim/lr_schedule.h"

/* lr 1e-3, min 1e-4, warm-up 10 iterations, decay 110, batch 8: positions in samples. */
static struct lr_schedule schedule(enum lr_decay decay)
{
    return (struct lr_schedule){
        .decay = decay, .max = 1e-3, .min = 1e-4, .warmup_samples = 80, .decay_samples = 880};
}

static void expect(const struct lr_schedule *at, uint64_t samples, double rate)
{
    double got = lr_schedule_at(at, samples);

    cr_assert(fabs(got - rate) <= 1e-12 * rate, "at %llu: %.17g, not %.17g",
              (unsigned long long)samples, got, rate);
}

Test(lr_schedule, warms_up_in_a_line_from_zero)
{
    struct lr_schedule at = schedule(LR_DECAY_LINEAR);

    expect(&at, 0, 0.0);
    expect(&at, 8, 1e-4);
    expect(&at, 40, 5e-4);
    expect(&at, 80, 1e-3);
}

Test(lr_schedule, warms_up_from_the_initial_rate)
{
    struct lr_schedule at = schedule(LR_DECAY_LINEAR);

    at.warmup_init = 2e-4;
    expect(&at, 0, 2e-4);
    expect(&at, 40, 6e-4);
}

Test(lr_schedule, decays_in_a_line_to_the_minimum_and_stays_there)
{
    struct lr_schedule at = schedule(LR_DECAY_LINEAR);

    expect(&at, 88, 1e-4 + 9e-4 * 0.99);
    expect(&at, 480, 1e-4 + 9e-4 * 0.5);
    expect(&at, 880, 1e-4);
    expect(&at, 888, 1e-4);
    expect(&at, 1000000, 1e-4);
}

Test(lr_schedule, decays_along_half_a_cosine)
{
    struct lr_schedule at = schedule(LR_DECAY_COSINE);

    expect(&at, 80, 1e-3);
    expect(&at, 280, 1e-4 + 9e-4 * 0.85355339059327373); /* (cos(pi / 4) + 1) / 2 */
    expect(&at, 480, 1e-4 + 9e-4 * 0.5);
    expect(&at, 680, 1e-4 + 9e-4 * 0.14644660940672621);
    expect(&at, 880, 1e-4);
}

Test(lr_schedule, stays_constant_after_the_warm_up_and_past_the_decay)
{
    struct lr_schedule at = schedule(LR_DECAY_CONSTANT);

    expect(&at, 40, 5e-4);
    expect(&at, 81, 1e-3);
    expect(&at, 100000, 1e-3);
}

Test(lr_schedule, has_the_highest_rate_at_once_without_warm_up)
{
    struct lr_schedule at = schedule(LR_DECAY_LINEAR);

    at.warmup_samples = 0;
    expect(&at, 0, 1e-3);
    expect(&at, 440, 1e-4 + 9e-4 * 0.5);
}
