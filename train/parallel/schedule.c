/* Megatron's order of tasks, its clock, and the plan of one stage. See schedule.h. */
#include "train/parallel/schedule.h"

#include <stdlib.h>

#include "ckpt/base/mem.h"

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

/* All stages at one instant. */
struct play {
    const struct schedule_shape *shape;
    struct schedule_times times;
    struct schedule_task *tasks; /* [stages,count] in the stages' orders */
    int *next;                   /* [stages] the task that a stage begins next */
    int *unsent;                 /* [stages] all tasks before this one have sent their output */
    int *end;                    /* [stages] of the task that a stage is at */
};

static const struct schedule_task *task_of(const struct play *play, int stage, int position)
{
    return &play->tasks[(size_t)stage * (size_t)schedule_task_count(play->shape) +
                        (size_t)position];
}

/* Sends what has waited for an instant at which its receiver is between two tasks too. */
static void send_outputs(struct play *play, int stage, int now)
{
    struct schedule_task target;
    int peer;

    for (int i = play->unsent[stage]; i < play->next[stage]; i++) {
        struct schedule_task task = *task_of(play, stage, i);
        int *sent = &play->times.sent[schedule_index(play->shape, stage, task)];
        bool goes = schedule_target(play->shape, stage, task, &peer, &target);
        if (goes && *sent == SCHEDULE_NONE && play->end[peer] <= now) {
            *sent = now;
        }
        if (i == play->unsent[stage] && (!goes || *sent != SCHEDULE_NONE)) {
            play->unsent[stage]++;
        }
    }
}

/* False: there is none, or its input is not there. */
static bool begin_next(struct play *play, int stage, int now)
{
    const struct schedule_shape *shape = play->shape;
    struct schedule_task source;
    int from;

    if (play->next[stage] == schedule_task_count(shape)) {
        return false;
    }
    struct schedule_task task = *task_of(play, stage, play->next[stage]);
    if (schedule_source(shape, stage, task, &from, &source) &&
        play->times.sent[schedule_index(shape, from, source)] == SCHEDULE_NONE) {
        return false;
    }
    play->times.begins[schedule_index(shape, stage, task)] = now;
    play->end[stage] = now + (task.is_backward ? SCHEDULE_BACKWARD_UNITS : SCHEDULE_FORWARD_UNITS);
    if (play->end[stage] > play->times.units) {
        play->times.units = play->end[stage];
    }
    play->next[stage]++;
    return true;
}

static void run_play(struct play *play)
{
    int stages = play->shape->stages;
    int left = stages * schedule_task_count(play->shape);

    for (int now = 0; left > 0; now++) {
        CHECK(now <= play->times.units); /* else all stages wait */
        for (int s = 0; s < stages; s++) {
            if (play->end[s] <= now) {
                send_outputs(play, s, now);
            }
        }
        for (int s = 0; s < stages; s++) {
            if (play->end[s] <= now && begin_next(play, s, now)) {
                left--;
            }
        }
    }
}

enum status schedule_play(const struct schedule_shape *shape, struct schedule_times *out_times)
{
    enum status st = STATUS_OK;
    struct play play = {.shape = shape};
    size_t stages = (size_t)shape->stages, count = (size_t)schedule_task_count(shape);

    TRY(st, mem_alloc(&play.tasks, stages * count, sizeof(*play.tasks)), done);
    TRY(st, mem_alloc(&play.times.begins, stages * count, sizeof(int)), done);
    TRY(st, mem_alloc(&play.times.sent, stages * count, sizeof(int)), done);
    TRY(st, mem_alloc(&play.next, stages, sizeof(int)), done);
    TRY(st, mem_alloc(&play.unsent, stages, sizeof(int)), done);
    TRY(st, mem_alloc(&play.end, stages, sizeof(int)), done);
    for (size_t i = 0; i < stages * count; i++) {
        play.times.sent[i] = SCHEDULE_NONE;
    }
    for (int s = 0; s < shape->stages; s++) {
        schedule_order(shape, s, &play.tasks[(size_t)s * count]);
    }
    run_play(&play);
done:
    if (st != STATUS_OK) {
        schedule_times_deinit(&play.times);
    }
    *out_times = play.times;
    mem_free(&play.tasks);
    mem_free(&play.next);
    mem_free(&play.unsent);
    mem_free(&play.end);
    return st;
}

void schedule_times_deinit(struct schedule_times *times)
{
    mem_free(&times->begins);
    mem_free(&times->sent);
}

/* --- the plan of one stage ---------------------------------------------------------------- */

/* A transfer that this stage takes part in. */
struct event {
    int time;
    int begin; /* of the task whose output it is */
    int peer;
    bool is_send;
    size_t task; /* own one, that writes or reads the data: by index among the stage's */
};

struct planner {
    const struct schedule_shape *shape;
    int stage;
    const struct schedule_times *times;
    struct schedule_plan plan;
    struct event *events; /* in the order of the clock */
    size_t event_count, next_event;
    int *inputs, *outputs; /* [count] buffers of the stage's tasks, by index */
    int *slots;            /* [passes] of each between its forward and its backward */
    bool *buffer_used, *slot_used;
};

static int compare_events(const void *left, const void *right)
{
    const struct event *a = left, *b = right;

    if (a->time != b->time) {
        return a->time < b->time ? -1 : 1;
    }
    return a->begin != b->begin ? (a->begin < b->begin ? -1 : 1) : a->peer - b->peer;
}

static int take_lowest(bool *is_used, int *most)
{
    int index = 0;

    while (is_used[index]) {
        index++;
    }
    is_used[index] = true;
    *most = index >= *most ? index + 1 : *most;
    return index;
}

static size_t own_index(const struct planner *planner, struct schedule_task task)
{
    return schedule_index(planner->shape, 0, task);
}

static void find_events(struct planner *planner, const struct schedule_task *tasks)
{
    const struct schedule_shape *shape = planner->shape;
    struct schedule_task other;
    int peer;

    for (int i = 0; i < schedule_task_count(shape); i++) {
        size_t own = schedule_index(shape, planner->stage, tasks[i]);
        if (schedule_source(shape, planner->stage, tasks[i], &peer, &other)) {
            size_t from = schedule_index(shape, peer, other);
            planner->events[planner->event_count++] =
                (struct event){planner->times->sent[from], planner->times->begins[from], peer,
                               false, own_index(planner, tasks[i])};
        }
        if (schedule_target(shape, planner->stage, tasks[i], &peer, &other)) {
            planner->events[planner->event_count++] =
                (struct event){planner->times->sent[own], planner->times->begins[own], peer, true,
                               own_index(planner, tasks[i])};
        }
    }
    qsort(planner->events, planner->event_count, sizeof(*planner->events), compare_events);
}

/* All transfers of the next instant. */
static void add_exchange(struct planner *planner)
{
    struct schedule_op *op = &planner->plan.ops[planner->plan.count++];
    int time = planner->events[planner->next_event].time;

    *op = (struct schedule_op){.kind = SCHEDULE_EXCHANGE,
                               .slot = SCHEDULE_NONE,
                               .input = SCHEDULE_NONE,
                               .output = SCHEDULE_NONE};
    for (; planner->next_event < planner->event_count &&
           planner->events[planner->next_event].time == time;
         planner->next_event++) {
        const struct event *event = &planner->events[planner->next_event];
        int *buffer =
            event->is_send ? &planner->outputs[event->task] : &planner->inputs[event->task];
        if (!event->is_send) {
            *buffer = take_lowest(planner->buffer_used, &planner->plan.buffers);
        }
        CHECK(op->transfer_count < SCHEDULE_TRANSFERS_MAX);
        op->transfers[op->transfer_count++] =
            (struct schedule_transfer){event->is_send, event->peer, *buffer};
    }
    for (int i = 0; i < op->transfer_count; i++) {
        if (op->transfers[i].is_send) {
            planner->buffer_used[op->transfers[i].buffer] = false;
        }
    }
}

static void add_exchanges(struct planner *planner, int until)
{
    while (planner->next_event < planner->event_count &&
           planner->events[planner->next_event].time <= until) {
        add_exchange(planner);
    }
}

/* The slot of a pass: taken by its forward, given back by its backward. */
static int use_slot(struct planner *planner, struct schedule_task task)
{
    int *held = &planner->slots[task.chunk * planner->shape->micro_batches + task.micro_batch];

    if (!task.is_backward) {
        *held = take_lowest(planner->slot_used, &planner->plan.slots);
    }
    if (task.is_backward || planner->shape->is_forward_only) {
        planner->slot_used[*held] = false;
    }
    return *held;
}

static void add_task(struct planner *planner, struct schedule_task task)
{
    const struct schedule_shape *shape = planner->shape;
    size_t index = own_index(planner, task);
    struct schedule_task other;
    int peer, input = SCHEDULE_NONE, output = SCHEDULE_NONE;

    add_exchanges(planner, planner->times->begins[schedule_index(shape, planner->stage, task)]);
    if (schedule_source(shape, planner->stage, task, &peer, &other)) {
        input = planner->inputs[index];
    }
    if (schedule_target(shape, planner->stage, task, &peer, &other)) {
        output = take_lowest(planner->buffer_used, &planner->plan.buffers);
        planner->outputs[index] = output;
    }
    if (input != SCHEDULE_NONE) {
        planner->buffer_used[input] = false;
    }
    planner->plan.ops[planner->plan.count++] = (struct schedule_op){.kind = SCHEDULE_COMPUTE,
                                                                    .task = task,
                                                                    .slot = use_slot(planner, task),
                                                                    .input = input,
                                                                    .output = output};
}

static enum status alloc_planner(struct planner *planner)
{
    enum status st = STATUS_OK;
    size_t count = (size_t)schedule_task_count(planner->shape);

    /* Each task, its input and its output; that many things are never held at once. */
    TRY(st, mem_alloc(&planner->plan.ops, 3 * count, sizeof(*planner->plan.ops)), done);
    TRY(st, mem_alloc(&planner->events, 2 * count, sizeof(*planner->events)), done);
    TRY(st, mem_alloc(&planner->inputs, count, sizeof(int)), done);
    TRY(st, mem_alloc(&planner->outputs, count, sizeof(int)), done);
    TRY(st, mem_alloc(&planner->slots, count, sizeof(int)), done);
    TRY(st, mem_alloc(&planner->buffer_used, 2 * count, sizeof(bool)), done);
    TRY(st, mem_alloc(&planner->slot_used, count, sizeof(bool)), done);
done:
    return st;
}

enum status schedule_plan_init(const struct schedule_shape *shape, int stage,
                               struct schedule_plan *out_plan)
{
    enum status st = STATUS_OK;
    struct schedule_times times = {0};
    struct planner planner = {.shape = shape, .stage = stage, .times = &times};
    struct schedule_task *tasks = NULL;
    int count = schedule_task_count(shape);

    TRY(st, schedule_play(shape, &times), done);
    TRY(st, mem_alloc(&tasks, (size_t)count, sizeof(*tasks)), done);
    TRY(st, alloc_planner(&planner), done);
    schedule_order(shape, stage, tasks);
    find_events(&planner, tasks);
    for (int i = 0; i < count; i++) {
        add_task(&planner, tasks[i]);
    }
    add_exchanges(&planner, times.units);
    *out_plan = planner.plan;
    planner.plan.ops = NULL;
done:
    mem_free(&planner.plan.ops);
    mem_free(&planner.events);
    mem_free(&planner.inputs);
    mem_free(&planner.outputs);
    mem_free(&planner.slots);
    mem_free(&planner.buffer_used);
    mem_free(&planner.slot_used);
    mem_free(&tasks);
    schedule_times_deinit(&times);
    return st;
}

void schedule_plan_deinit(struct schedule_plan *plan)
{
    mem_free(&plan->ops);
}
