/* The played schedules against their closed forms, and their pictures. */
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "train/parallel/schedule_view.h"

#define UNITS (SCHEDULE_FORWARD_UNITS + SCHEDULE_BACKWARD_UNITS)

static struct schedule_shape shape_of(int stages, int chunks, int micro_batches)
{
    return (struct schedule_shape){
        .stages = stages, .chunks = chunks, .micro_batches = micro_batches};
}

Test(schedule_view, time_and_bubble_are_those_of_the_closed_forms)
{
    for (int stages = 1; stages <= 9; stages++) {
        for (int chunks = 1; chunks <= (stages == 1 ? 1 : 4); chunks++) {
            int step = chunks == 1 ? 1 : stages;
            for (int micro_batches = step; micro_batches <= 36; micro_batches += step) {
                struct schedule_shape shape = shape_of(stages, chunks, micro_batches);
                struct schedule_view view;
                int passes = micro_batches * chunks;

                cr_assert_eq(schedule_view_init(&shape, &view), STATUS_OK);
                cr_assert_eq(view.times.units, UNITS * (passes + stages - 1), "%d stages, %d, %d",
                             stages, chunks, micro_batches);
                /* Idle as a part of the busy time: (p - 1) / (m v). */
                double part = schedule_view_bubble(&view);
                cr_assert_float_eq(part / (1 - part), (double)(stages - 1) / passes, 1e-12);
                schedule_view_deinit(&view);
            }
        }
    }
}

static void check_data(const struct schedule_view *view, int stage, struct schedule_task task)
{
    int units = task.is_backward ? SCHEDULE_BACKWARD_UNITS : SCHEDULE_FORWARD_UNITS;
    int begin = view->times.begins[schedule_index(&view->shape, stage, task)], from;
    struct schedule_task source, forward = {.micro_batch = task.micro_batch, .chunk = task.chunk};

    if (task.is_backward) {
        cr_assert_geq(begin, view->times.begins[schedule_index(&view->shape, stage, forward)] +
                                 SCHEDULE_FORWARD_UNITS);
    }
    if (schedule_source(&view->shape, stage, task, &from, &source)) {
        cr_assert_geq(begin,
                      view->times.begins[schedule_index(&view->shape, from, source)] + units);
    }
}

Test(schedule_view, no_micro_batch_is_anywhere_before_its_data)
{
    for (int chunks = 1; chunks <= 3; chunks++) {
        struct schedule_shape shape = shape_of(4, chunks, 8);
        struct schedule_view view;

        cr_assert_eq(schedule_view_init(&shape, &view), STATUS_OK);
        for (int s = 0; s < 4; s++) {
            for (int c = 0; c < chunks; c++) {
                for (int m = 0; m < 8; m++) {
                    check_data(&view, s, (struct schedule_task){false, m, c});
                    check_data(&view, s, (struct schedule_task){true, m, c});
                }
            }
        }
        schedule_view_deinit(&view);
    }
}

/* The caller frees it. */
static char *picture(struct schedule_shape shape)
{
    struct schedule_view view;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    cr_assert_eq(schedule_view_init(&shape, &view), STATUS_OK);
    cr_assert_eq(schedule_view_print(&view, out), STATUS_OK);
    fclose(out);
    schedule_view_deinit(&view);
    return text;
}

Test(schedule_view, two_stages_and_three_micro_batches_as_a_picture)
{
    char *text = picture(shape_of(2, 1, 3));

    cr_assert(strstr(text, "2 stages and 3 micro-batches") != NULL);
    cr_assert(strstr(text, "stage  0, at most  2 in flight: "
                           "f0 f1 .  .  B0 B0 f2 B1 B1 .  B2 B2 \n") != NULL,
              "%s", text);
    cr_assert(strstr(text, "stage  1, at most  1 in flight: "
                           ".  f0 B0 B0 f1 B1 B1 f2 B2 B2 .  .  \n") != NULL,
              "%s", text);
    cr_assert(strstr(text, "12 columns, bubble 25.0 %") != NULL, "%s", text);
    free(text);
}

Test(schedule_view, two_stages_of_two_chunks_as_a_picture)
{
    char *text = picture(shape_of(2, 2, 2));

    cr_assert(strstr(text, "interleaved 1F1B schedule of 2 stages of 2 chunks (a, b ...) and 2 "
                           "micro-batches") != NULL,
              "%s", text);
    cr_assert(strstr(text, "stage  0, at most  4 in flight: f0a f1a f0b f1b .   .   B0b B0b .   "
                           "B1b B1b B0a B0a B1a B1a \n") != NULL,
              "%s", text);
    cr_assert(strstr(text, "stage  1, at most  3 in flight: .   f0a f1a f0b B0b B0b f1b B1b B1b "
                           "B0a B0a B1a B1a .   .   \n") != NULL,
              "%s", text);
    cr_assert(strstr(text, "15 columns, bubble 20.0 %") != NULL, "%s", text);
    free(text);
}

Test(schedule_view, more_than_can_be_looked_at_is_refused)
{
    struct schedule_shape shape = shape_of(2, 1, SCHEDULE_VIEW_MICRO_BATCHES_MAX + 1);
    struct schedule_view view;

    cr_assert_eq(schedule_view_init(&shape, &view), STATUS_USAGE);
}
