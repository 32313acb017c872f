/* Draws the schedules of all stages. Before it: schedule_play; after it: stdout. */
#include "train/parallel/schedule_view.h"

#include <string.h>

#include "ckpt/base/mem.h"

#define CHUNK_LETTERS 26

static int units_of(struct schedule_task task)
{
    return task.is_backward ? SCHEDULE_BACKWARD_UNITS : SCHEDULE_FORWARD_UNITS;
}

enum status schedule_view_init(const struct schedule_shape *shape, struct schedule_view *out_view)
{
    *out_view = (struct schedule_view){.shape = *shape};
    if (shape->micro_batches > SCHEDULE_VIEW_MICRO_BATCHES_MAX) {
        return FAIL(STATUS_USAGE,
                    "%d micro-batches are more than the %d of a schedule that is shown",
                    shape->micro_batches, SCHEDULE_VIEW_MICRO_BATCHES_MAX);
    }
    return schedule_play(shape, &out_view->times);
}

void schedule_view_deinit(struct schedule_view *view)
{
    schedule_times_deinit(&view->times);
}

double schedule_view_bubble(const struct schedule_view *view)
{
    int busy = view->shape.micro_batches * view->shape.chunks *
               (SCHEDULE_FORWARD_UNITS + SCHEDULE_BACKWARD_UNITS);

    return 1.0 - (double)busy / view->times.units;
}

/* --- the picture -------------------------------------------------------------------------- */

static int format_task(const struct schedule_view *view, struct schedule_task task, char text[16])
{
    char chunk[2] = {view->shape.chunks > 1 ? (char)('a' + task.chunk % CHUNK_LETTERS) : 0, 0};

    return snprintf(text, 16, "%c%d%s", task.is_backward ? 'B' : 'f', task.micro_batch, chunk);
}

static void draw_stage(const struct schedule_view *view, int stage,
                       const struct schedule_task *tasks, int width, char *row)
{
    char text[16];

    memset(row, ' ', (size_t)view->times.units * (size_t)width);
    for (int unit = 0; unit < view->times.units; unit++) {
        row[unit * width] = '.';
    }
    for (int i = 0; i < schedule_task_count(&view->shape); i++) {
        int length = format_task(view, tasks[i], text);
        int begin = view->times.begins[schedule_index(&view->shape, stage, tasks[i])];
        for (int unit = begin; unit < begin + units_of(tasks[i]); unit++) {
            memcpy(row + unit * width, text, (size_t)length);
        }
    }
}

enum status schedule_view_print(const struct schedule_view *view, FILE *out)
{
    enum status st = STATUS_OK;
    const struct schedule_shape *shape = &view->shape;
    struct schedule_task *tasks = NULL;
    char *row = NULL, text[16];
    struct schedule_task widest = {.micro_batch = shape->micro_batches - 1};
    int width = format_task(view, widest, text) + 1;

    TRY(st, mem_alloc(&row, (size_t)view->times.units * (size_t)width + 1, 1), done);
    TRY(st, mem_alloc(&tasks, (size_t)schedule_task_count(shape), sizeof(*tasks)), done);
    fprintf(out, "%s schedule of %d stages", shape->chunks > 1 ? "interleaved 1F1B" : "1F1B",
            shape->stages);
    if (shape->chunks > 1) {
        fprintf(out, " of %d chunks (a, b ...)", shape->chunks);
    }
    fprintf(out, " and %d micro-batches; a column is the time of a forward, a backward takes %d\n",
            shape->micro_batches, SCHEDULE_BACKWARD_UNITS);
    for (int s = 0; s < shape->stages; s++) {
        schedule_order(shape, s, tasks);
        draw_stage(view, s, tasks, width, row);
        fprintf(out, "stage %2d, at most %2d in flight: %s\n", s, schedule_slots(shape, s), row);
    }
    fprintf(out, "%d columns, bubble %.1f %%\n", view->times.units,
            100 * schedule_view_bubble(view));
done:
    mem_free(&tasks);
    mem_free(&row);
    return st;
}
