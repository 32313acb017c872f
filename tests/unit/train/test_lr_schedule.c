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

/* Megatron's OptimizerParamScheduler, lr 1e-3, min 1e-4, warm-up 80 of 880 samples. */
Test(lr_schedule, decays_by_the_inverse_square_root_but_not_below_the_minimum)
{
    struct lr_schedule at = schedule(LR_DECAY_INVERSE_SQUARE_ROOT);

    expect(&at, 40, 5e-4);
    expect(&at, 80, 1e-3);
    expect(&at, 320, 5e-4);
    expect(&at, 720, 1e-3 / 3.0);
    expect(&at, 881, 1e-4);
    at.min = 4e-4;
    expect(&at, 720, 4e-4);
    at.warmup_samples = 0; /* counts as one sample, and so does position 0 */
    at.min = 0;
    expect(&at, 0, 1e-3);
    expect(&at, 16, 2.5e-4);
}

Test(lr_schedule, stays_then_decays_in_each_of_wsds_ways)
{
    struct lr_schedule at = schedule(LR_DECAY_WSD);

    at.wsd_samples = 400; /* from 480 to 880 */
    expect(&at, 80, 1e-3);
    expect(&at, 300, 1e-3);
    expect(&at, 480, 1e-3);
    expect(&at, 680, 1e-4 + 9e-4 * (2.0 * 0.70710678118654757 - 1.0));
    expect(&at, 880, 1e-4);
    expect(&at, 888, 1e-4);
    at.wsd_decay = LR_WSD_DECAY_LINEAR;
    expect(&at, 580, 1e-4 + 9e-4 * 0.75);
    at.wsd_decay = LR_WSD_DECAY_COSINE;
    expect(&at, 580, 1e-4 + 9e-4 * 0.85355339059327373);
    at.wsd_decay = LR_WSD_DECAY_MINUS_SQRT;
    expect(&at, 580, 1e-4 + 9e-4 * 0.5);
    expect(&at, 880, 1e-4);
}

static void expect_weight_decay(const struct lr_schedule *at, uint64_t samples, double decay)
{
    double got = lr_schedule_weight_decay_at(at, samples);

    cr_assert(fabs(got - decay) <= 1e-12 * decay, "at %llu: %.17g, not %.17g",
              (unsigned long long)samples, got, decay);
}

Test(lr_schedule, weight_decay_goes_from_first_to_last_and_stays)
{
    struct lr_schedule at = schedule(LR_DECAY_LINEAR);

    at.weight_decay_first = 0.01;
    at.weight_decay_last = 0.1;
    at.weight_decay_samples = 800;
    expect_weight_decay(&at, 0, 0.1); /* constant */
    at.weight_decay = LR_WEIGHT_DECAY_LINEAR;
    expect_weight_decay(&at, 0, 0.01);
    expect_weight_decay(&at, 200, 0.01 + 0.09 * 0.25);
    expect_weight_decay(&at, 800, 0.1);
    expect_weight_decay(&at, 808, 0.1);
    at.weight_decay = LR_WEIGHT_DECAY_COSINE;
    expect_weight_decay(&at, 0, 0.01);
    expect_weight_decay(&at, 200, 0.01 + 0.09 * 0.14644660940672621);
    expect_weight_decay(&at, 400, 0.01 + 0.09 * 0.5);
    expect_weight_decay(&at, 800, 0.1);
}
