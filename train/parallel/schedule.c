/* Megatron's order of tasks, its clock, and the plan of one stage. See schedule.h. */
#include "train/parallel/schedule.h"

#include <stdint.h>

#include "ckpt/base/mem.h"

#define NOT_YET (-1)

static int min(int a, int b)
{
    return a < b ? a : b;
}

/* --- the order ---------------------------------------------------------------------------- */

static int pass_count(const struct schedule_shape *shape)
{
    return shape->micro_batches * shape->chunks;
}

int schedule_task_count(const struct schedule_shape *shape)
{
    return shape->is_forward_only ? pass_count(shape) : 2 * pass_count(shape);
}

static int warmup_count(const struct schedule_shape *shape, int stage)
{
    int behind = shape->stages - stage - 1;
    int wanted = shape->chunks == 1 ? behind : 2 * behind + (shape->chunks - 1) * shape->stages;

    return min(shape->is_forward_only ? pass_count(shape) : wanted, pass_count(shape));
}

/* The forward or backward at `position` among those of its direction. */
static struct schedule_task task_at(const struct schedule_shape *shape, bool is_backward,
                                    int position)
{
    struct schedule_task task = {.is_backward = is_backward, .micro_batch = position};

    if (shape->chunks > 1) {
        int group = position / (shape->stages * shape->chunks);
        int chunk = position / shape->stages % shape->chunks;
        task.micro_batch = group * shape->stages + position % shape->stages;
        task.chunk = is_backward ? shape->chunks - 1 - chunk : chunk;
    }
    return task;
}

void schedule_order(const struct schedule_shape *shape, int stage, struct schedule_task *out_tasks)
{
    int passes = pass_count(shape), warmup = warmup_count(shape, stage);
    int count = 0;

    CHECK(stage >= 0 && stage < shape->stages && shape->micro_batches > 0);
    CHECK(shape->chunks == 1 ||
          (shape->chunks > 1 && shape->stages > 1 && shape->micro_batches % shape->stages == 0));
    for (int k = 0; k < warmup; k++) {
        out_tasks[count++] = task_at(shape, false, k);
    }
    for (int k = 0; k < passes && !shape->is_forward_only; k++) {
        if (warmup + k < passes) {
            out_tasks[count++] = task_at(shape, false, warmup + k);
        }
        out_tasks[count++] = task_at(shape, true, k);
    }
}

int schedule_slots(const struct schedule_shape *shape, int stage)
{
    return shape->is_forward_only ? 1 : min(warmup_count(shape, stage) + 1, pass_count(shape));
}

/* The task one place further along the model (`by` 1) or back (-1); false: out of the model. */
static bool neighbour(const struct schedule_shape *shape, int stage, struct schedule_task task,
                      int by, int *out_stage, struct schedule_task *out_task)
{
    int place = task.chunk * shape->stages + stage + by;

    *out_stage = place % shape->stages;
    *out_task = task;
    out_task->chunk = place / shape->stages;
    return place >= 0 && place < shape->chunks * shape->stages;
}

bool schedule_source(const struct schedule_shape *shape, int stage, struct schedule_task task,
                     int *out_stage, struct schedule_task *out_task)
{
    return neighbour(shape, stage, task, task.is_backward ? 1 : -1, out_stage, out_task);
}

bool schedule_target(const struct schedule_shape *shape, int stage, struct schedule_task task,
                     int *out_stage, struct schedule_task *out_task)
{
    return neighbour(shape, stage, task, task.is_backward ? -1 : 1, out_stage, out_task);
}

/* --- the clock ---------------------------------------------------------------------------- */

size_t schedule_index(const struct schedule_shape *shape, int stage, struct schedule_task task)
{
    int pass = task.chunk * shape->micro_batches + task.micro_batch;

    return (size_t)stage * (size_t)schedule_task_count(shape) +
           (size_t)(task.is_backward ? pass_count(shape) + pass : pass);
}

/* When the input of a task is there, or NOT_YET. */
static int arrival(const struct schedule_shape *shape, const int *begins, int stage,
                   struct schedule_task task, int units)
{
    struct schedule_task source;
    int from;

    if (!schedule_source(shape, stage, task, &from, &source)) {
        return 0;
    }
    int begin = begins[schedule_index(shape, from, source)];
    return begin == NOT_YET ? NOT_YET : begin + units;
}

enum status schedule_play(const struct schedule_shape *shape, int forward_units, int backward_units,
                          int **out_begins)
{
    enum status st = STATUS_OK;
    size_t stages = (size_t)shape->stages, count = (size_t)schedule_task_count(shape);
    struct schedule_task *tasks = NULL; /* [stages,count] */
    int *begins = NULL, *next = NULL, *now = NULL;
    size_t left = stages * count;

    TRY(st, mem_alloc(&tasks, stages * count, sizeof(*tasks)), done);
    TRY(st, mem_alloc(&begins, stages * count, sizeof(*begins)), done);
    TRY(st, mem_alloc(&next, stages, sizeof(*next)), done);
    TRY(st, mem_alloc(&now, stages, sizeof(*now)), done);
    for (size_t i = 0; i < stages * count; i++) {
        begins[i] = NOT_YET;
    }
    for (int s = 0; s < shape->stages; s++) {
        schedule_order(shape, s, &tasks[(size_t)s * count]);
    }
    while (left > 0) {
        size_t before = left;
        for (int s = 0; s < shape->stages; s++) {
            for (; (size_t)next[s] < count; next[s]++, left--) {
                struct schedule_task task = tasks[(size_t)s * count + (size_t)next[s]];
                int units = task.is_backward ? backward_units : forward_units;
                int ready = arrival(shape, begins, s, task, units);
                if (ready == NOT_YET) {
                    break;
                }
                now[s] = ready > now[s] ? ready : now[s];
                begins[schedule_index(shape, s, task)] = now[s];
                now[s] += units;
            }
        }
        CHECK(left < before); /* else no stage could ever go on */
    }
    *out_begins = begins;
    begins = NULL;
done:
    mem_free(&tasks);
    mem_free(&begins);
    mem_free(&next);
    mem_free(&now);
    return st;
}

/* --- the plan of one stage ---------------------------------------------------------------- */

/* An output that waits in its buffer for its tick. */
struct waiting {
    bool is_used;
    int tick, peer;
};

struct planner {
    const struct schedule_shape *shape;
    int stage;
    const int *ticks; /* schedule_play of units of 1 */
    struct schedule_plan plan;
    struct waiting *waiting; /* [tasks] by buffer */
    int *slots;              /* [micro_batches chunks] of the passes between their tasks */
    bool *slot_used;         /* [micro_batches chunks] */
};

/* The earliest tick of what waits, if it is not after `last`; else NOT_YET. */
static int next_tick(const struct planner *planner, int last)
{
    int tick = NOT_YET;

    for (int b = 0; b < planner->plan.buffers; b++) {
        const struct waiting *waiting = &planner->waiting[b];
        if (waiting->is_used && waiting->tick <= last &&
            (tick == NOT_YET || waiting->tick < tick)) {
            tick = waiting->tick;
        }
    }
    return tick;
}

static void add_exchange(struct planner *planner, int tick, int receive_from,
                         struct schedule_task task)
{
    struct schedule_op *op = &planner->plan.ops[planner->plan.count];
    int count = 0;

    *op = (struct schedule_op){.kind = SCHEDULE_EXCHANGE,
                               .task = task,
                               .slot = SCHEDULE_NONE,
                               .buffer = SCHEDULE_NONE,
                               .receive_from = receive_from};
    for (int b = 0; b < planner->plan.buffers; b++) {
        struct waiting *waiting = &planner->waiting[b];
        if (waiting->is_used && waiting->tick == tick) {
            CHECK(count < SCHEDULE_SENDS_MAX);
            op->sends[count++] = (struct schedule_send){waiting->peer, b};
            waiting->is_used = false;
        }
    }
    planner->plan.count += count > 0 || receive_from != SCHEDULE_NONE ? 1 : 0;
    while (count < SCHEDULE_SENDS_MAX) {
        op->sends[count++] = (struct schedule_send){SCHEDULE_NONE, SCHEDULE_NONE};
    }
}

/* The buffer that the output of `task` waits in, if it goes anywhere. */
static int put_output(struct planner *planner, struct schedule_task task)
{
    struct schedule_task target;
    int peer, buffer = 0;

    if (!schedule_target(planner->shape, planner->stage, task, &peer, &target)) {
        return SCHEDULE_NONE;
    }
    while (planner->waiting[buffer].is_used) {
        buffer++;
    }
    planner->waiting[buffer] =
        (struct waiting){true, planner->ticks[schedule_index(planner->shape, peer, target)], peer};
    if (buffer >= planner->plan.buffers) {
        planner->plan.buffers = buffer + 1;
    }
    return buffer;
}

/* The slot of a pass: taken by its forward, given back by its backward. */
static int use_slot(struct planner *planner, struct schedule_task task)
{
    int *held = &planner->slots[task.chunk * planner->shape->micro_batches + task.micro_batch];
    int slot = 0;

    if (task.is_backward) {
        planner->slot_used[*held] = false;
        return *held;
    }
    while (planner->slot_used[slot]) {
        slot++;
    }
    planner->slot_used[slot] = !planner->shape->is_forward_only;
    planner->plan.slots = slot >= planner->plan.slots ? slot + 1 : planner->plan.slots;
    *held = slot;
    return slot;
}

static void add_task(struct planner *planner, struct schedule_task task)
{
    int begin = planner->ticks[schedule_index(planner->shape, planner->stage, task)];
    int receive_from;
    struct schedule_task source;

    for (int tick = next_tick(planner, begin - 1); tick != NOT_YET;
         tick = next_tick(planner, begin - 1)) {
        add_exchange(planner, tick, SCHEDULE_NONE, task);
    }
    if (!schedule_source(planner->shape, planner->stage, task, &receive_from, &source)) {
        receive_from = SCHEDULE_NONE;
    }
    add_exchange(planner, begin, receive_from, task);
    struct schedule_op *op = &planner->plan.ops[planner->plan.count++];
    *op = (struct schedule_op){
        .kind = SCHEDULE_COMPUTE,
        .task = task,
        .slot = use_slot(planner, task),
        .receive_from = SCHEDULE_NONE,
        .sends = {{SCHEDULE_NONE, SCHEDULE_NONE}, {SCHEDULE_NONE, SCHEDULE_NONE}}};
    op->buffer = put_output(planner, task);
}

enum status schedule_plan_init(const struct schedule_shape *shape, int stage,
                               struct schedule_plan *out_plan)
{
    enum status st = STATUS_OK;
    struct planner planner = {.shape = shape, .stage = stage};
    size_t count = (size_t)schedule_task_count(shape), passes = (size_t)pass_count(shape);
    struct schedule_task *tasks = NULL, last = {0};
    int *ticks = NULL;

    TRY(st, schedule_play(shape, 1, 1, &ticks), done);
    planner.ticks = ticks;
    TRY(st, mem_alloc(&tasks, count, sizeof(*tasks)), done);
    /* Each task, an exchange for each input and one for each output; one is always begun. */
    TRY(st, mem_alloc(&planner.plan.ops, 3 * count + 1, sizeof(*planner.plan.ops)), done);
    TRY(st, mem_alloc(&planner.waiting, count + 1, sizeof(*planner.waiting)), done);
    TRY(st, mem_alloc(&planner.slots, passes, sizeof(*planner.slots)), done);
    TRY(st, mem_alloc(&planner.slot_used, passes + 1, sizeof(*planner.slot_used)), done);
    schedule_order(shape, stage, tasks);
    for (size_t i = 0; i < count; i++) {
        add_task(&planner, tasks[i]);
        last = tasks[i];
    }
    for (int tick = next_tick(&planner, INT32_MAX); tick != NOT_YET;
         tick = next_tick(&planner, INT32_MAX)) {
        add_exchange(&planner, tick, SCHEDULE_NONE, last);
    }
    *out_plan = planner.plan;
    planner.plan.ops = NULL;
done:
    mem_free(&planner.plan.ops);
    mem_free(&planner.waiting);
    mem_free(&planner.slots);
    mem_free(&planner.slot_used);
    mem_free(&tasks);
    mem_free(&ticks);
    return st;
}

void schedule_plan_deinit(struct schedule_plan *plan)
{
    mem_free(&plan->ops);
}
