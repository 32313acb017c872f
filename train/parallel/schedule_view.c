/* Plays the plans of all stages against each other. Before it: pipeline_plan; after it: stdout. */
#include "train/parallel/schedule_view.h"

#include <string.h>

#include "ckpt/base/mem.h"

#define NOT_YET (-1)

struct stage {
    struct pipeline_op *ops;
    size_t count, next;
    int now; /* when it has done all before `next` */
    int held;
};

static struct schedule_times *times_of(const struct schedule_view *view, int stage, int micro_batch)
{
    return &view->times[stage * view->micro_batches + micro_batch];
}

/* When a stage has what an exchange brings it, or NOT_YET. */
static int arrival(const struct schedule_view *view, int stage, const struct pipeline_op *op)
{
    int ready = 0;

    if (op->recv_forward != PIPELINE_NONE) {
        int begin = times_of(view, stage - 1, op->recv_forward)->forward_begin;
        if (begin == NOT_YET) {
            return NOT_YET;
        }
        ready = begin + SCHEDULE_FORWARD_UNITS;
    }
    if (op->recv_backward != PIPELINE_NONE) {
        int begin = times_of(view, stage + 1, op->recv_backward)->backward_begin;
        if (begin == NOT_YET) {
            return NOT_YET;
        }
        int end = begin + SCHEDULE_BACKWARD_UNITS;
        ready = end > ready ? end : ready;
    }
    return ready;
}

/* False: it waits for a neighbour. */
static bool play_one(struct schedule_view *view, int index, struct stage *stage)
{
    const struct pipeline_op *op = &stage->ops[stage->next];
    int ready;

    switch (op->kind) {
    case PIPELINE_FORWARD:
        times_of(view, index, op->micro_batch)->forward_begin = stage->now;
        stage->now += SCHEDULE_FORWARD_UNITS;
        stage->held++;
        if (stage->held > view->in_flight[index]) {
            view->in_flight[index] = stage->held;
        }
        break;
    case PIPELINE_BACKWARD:
        times_of(view, index, op->micro_batch)->backward_begin = stage->now;
        stage->now += SCHEDULE_BACKWARD_UNITS;
        stage->held--;
        break;
    case PIPELINE_EXCHANGE:
        ready = arrival(view, index, op);
        if (ready == NOT_YET) {
            return false;
        }
        stage->now = ready > stage->now ? ready : stage->now;
        break;
    }
    stage->next++;
    return true;
}

static enum status play(struct schedule_view *view, struct stage *stages)
{
    bool moves = true;

    while (moves) {
        moves = false;
        for (int s = 0; s < view->stages; s++) {
            while (stages[s].next < stages[s].count && play_one(view, s, &stages[s])) {
                moves = true;
            }
        }
    }
    for (int s = 0; s < view->stages; s++) {
        if (stages[s].next < stages[s].count) {
            return FAIL(STATUS_FAILED, "the schedule's stage %d waits forever", s);
        }
        view->units = stages[s].now > view->units ? stages[s].now : view->units;
    }
    return STATUS_OK;
}

enum status schedule_view_init(int stages, int micro_batches, struct schedule_view *out_view)
{
    enum status st = STATUS_OK;
    struct schedule_view view = {.stages = stages, .micro_batches = micro_batches};
    size_t cells = (size_t)stages * (size_t)micro_batches;
    struct stage *all = NULL;

    if (micro_batches > SCHEDULE_VIEW_MICRO_BATCHES_MAX) {
        st = FAIL(STATUS_USAGE, "%d micro-batches are more than the %d of a schedule that is shown",
                  micro_batches, SCHEDULE_VIEW_MICRO_BATCHES_MAX);
        goto done;
    }
    TRY(st, mem_alloc(&all, (size_t)stages, sizeof(*all)), done);
    TRY(st, mem_alloc(&view.times, cells, sizeof(*view.times)), done);
    TRY(st, mem_alloc(&view.in_flight, (size_t)stages, sizeof(*view.in_flight)), done);
    for (size_t i = 0; i < cells; i++) {
        view.times[i] = (struct schedule_times){NOT_YET, NOT_YET};
    }
    for (int s = 0; s < stages; s++) {
        TRY(st, pipeline_plan(s, stages, micro_batches, &all[s].ops, &all[s].count), done);
    }
    TRY(st, play(&view, all), done);
done:
    for (int s = 0; all != NULL && s < stages; s++) {
        mem_free(&all[s].ops);
    }
    mem_free(&all);
    if (st != STATUS_OK) {
        schedule_view_deinit(&view);
    }
    *out_view = view;
    return st;
}

void schedule_view_deinit(struct schedule_view *view)
{
    mem_free(&view->times);
    mem_free(&view->in_flight);
}

double schedule_view_bubble(const struct schedule_view *view)
{
    int busy = view->micro_batches * (SCHEDULE_FORWARD_UNITS + SCHEDULE_BACKWARD_UNITS);

    return 1.0 - (double)busy / view->units;
}

/* --- the picture -------------------------------------------------------------------------- */

static void put_cells(char *row, int width, int begin, int units, char letter, int micro_batch)
{
    char text[16];

    for (int i = 0; i < units; i++) {
        int length = snprintf(text, sizeof(text), "%c%d", letter, micro_batch);
        memcpy(row + (begin + i) * width, text, (size_t)length);
    }
}

enum status schedule_view_print(const struct schedule_view *view, FILE *out)
{
    enum status st = STATUS_OK;
    char *row = NULL;
    int width = 2 + snprintf(NULL, 0, "%d", view->micro_batches - 1);
    size_t bytes = (size_t)view->units * (size_t)width;

    TRY(st, mem_alloc(&row, bytes + 1, 1), done);
    fprintf(out,
            "1F1B schedule of %d stages and %d micro-batches; a column is the time of a forward, a "
            "backward takes %d\n",
            view->stages, view->micro_batches, SCHEDULE_BACKWARD_UNITS);
    for (int s = 0; s < view->stages; s++) {
        memset(row, ' ', bytes);
        for (int unit = 0; unit < view->units; unit++) {
            row[unit * width] = '.';
        }
        for (int m = 0; m < view->micro_batches; m++) {
            const struct schedule_times *times = times_of(view, s, m);
            put_cells(row, width, times->forward_begin, SCHEDULE_FORWARD_UNITS, 'f', m);
            put_cells(row, width, times->backward_begin, SCHEDULE_BACKWARD_UNITS, 'B', m);
        }
        fprintf(out, "stage %2d, at most %2d in flight: %s\n", s, view->in_flight[s], row);
    }
    fprintf(out, "%d columns, bubble %.1f %%\n", view->units, 100 * schedule_view_bubble(view));
done:
    mem_free(&row);
    return st;
}
