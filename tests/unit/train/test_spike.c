/* How far a loss is above those before it. What made it is seen in tests/process/duties.sh. */
#include <criterion/criterion.h>
#include <math.h>

#include "train/spike.h"

static struct spike_window window;

/* 2 +- 0.1 in turn: mean 2, deviation 0.1. */
static void fill(int count)
{
    window = (struct spike_window){.count = 0};
    for (int i = 0; i < count; i++) {
        (void)spike_add(&window, i % 2 == 0 ? 2.1 : 1.9);
    }
}

Test(spike, deviations_count_from_the_mean_of_those_before)
{
    fill(60);
    double above = spike_add(&window, 3.0);
    cr_assert_float_eq(above, 10.0, 1e-9);
    fill(60);
    double below = spike_add(&window, 1.5);
    cr_assert_float_eq(below, -5.0, 1e-9);
}

Test(spike, too_few_or_equal_losses_have_no_deviation)
{
    fill(SPIKE_WINDOW_MIN - 1);
    cr_assert_eq(spike_add(&window, 100.0), 0);
    window = (struct spike_window){.count = 0};
    for (int i = 0; i < 50; i++) {
        cr_assert_eq(spike_add(&window, 2.0), 0);
    }
    cr_assert_eq(spike_add(&window, 3.0), 0);
}

Test(spike, the_window_forgets)
{
    window = (struct spike_window){.count = 0};
    for (int i = 0; i < 40; i++) {
        (void)spike_add(&window, 1000.0 + i);
    }
    for (int i = 0; i < SPIKE_WINDOW; i++) {
        (void)spike_add(&window, i % 2 == 0 ? 2.1 : 1.9);
    }
    double deviations = spike_add(&window, 3.0);
    cr_assert_float_eq(deviations, 10.0, 1e-9);
}
