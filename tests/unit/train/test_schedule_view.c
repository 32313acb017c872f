/* The played schedule against 1F1B's closed forms, and its picture. */
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "train/parallel/schedule_view.h"

#define UNITS (SCHEDULE_FORWARD_UNITS + SCHEDULE_BACKWARD_UNITS)

static int min(int a, int b)
{
    return a < b ? a : b;
}

Test(schedule_view, time_bubble_and_memory_are_those_of_the_closed_forms)
{
    for (int stages = 1; stages <= 9; stages++) {
        for (int micro_batches = 1; micro_batches <= 20; micro_batches++) {
            struct schedule_view view;
            double bubble = (double)(stages - 1) / (micro_batches + stages - 1);

            cr_assert_eq(schedule_view_init(stages, micro_batches, &view), STATUS_OK);
            cr_assert_eq(view.units, UNITS * (micro_batches + stages - 1), "%d stages, %d", stages,
                         micro_batches);
            cr_assert_float_eq(schedule_view_bubble(&view), bubble, 1e-12);
            for (int s = 0; s < stages; s++) {
                cr_assert_eq(view.in_flight[s], min(stages - s, micro_batches));
            }
            schedule_view_deinit(&view);
        }
    }
}

Test(schedule_view, no_micro_batch_is_anywhere_before_its_data)
{
    struct schedule_view view;

    cr_assert_eq(schedule_view_init(4, 6, &view), STATUS_OK);
    for (int s = 0; s < 4; s++) {
        for (int m = 0; m < 6; m++) {
            const struct schedule_times *here = &view.times[s * 6 + m];
            cr_assert_geq(here->backward_begin, here->forward_begin + SCHEDULE_FORWARD_UNITS);
            if (s > 0) {
                const struct schedule_times *before = &view.times[(s - 1) * 6 + m];
                cr_assert_geq(here->forward_begin, before->forward_begin + SCHEDULE_FORWARD_UNITS);
                cr_assert_geq(before->backward_begin,
                              here->backward_begin + SCHEDULE_BACKWARD_UNITS);
            }
        }
    }
    schedule_view_deinit(&view);
}

Test(schedule_view, two_stages_and_three_micro_batches_as_a_picture)
{
    struct schedule_view view;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    cr_assert_eq(schedule_view_init(2, 3, &view), STATUS_OK);
    cr_assert_eq(schedule_view_print(&view, out), STATUS_OK);
    fclose(out);
    cr_assert(strstr(text, "2 stages and 3 micro-batches") != NULL);
    cr_assert(strstr(text, "stage  0, at most  2 in flight: "
                           "f0 f1 .  .  B0 B0 f2 B1 B1 .  B2 B2 \n") != NULL,
              "%s", text);
    cr_assert(strstr(text, "stage  1, at most  1 in flight: "
                           ".  f0 B0 B0 f1 B1 B1 f2 B2 B2 .  .  \n") != NULL,
              "%s", text);
    cr_assert(strstr(text, "12 columns, bubble 25.0 %") != NULL, "%s", text);
    free(text);
    schedule_view_deinit(&view);
}

Test(schedule_view, more_than_can_be_looked_at_is_refused)
{
    struct schedule_view view;

    cr_assert_eq(schedule_view_init(2, SCHEDULE_VIEW_MICRO_BATCHES_MAX + 1, &view), STATUS_USAGE);
}
