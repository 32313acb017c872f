/* The schedules: Megatron's order, its closed forms, and that a whole pipeline of such plans runs
 * to its end when sends and receives block. */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/json.h"
#include "ckpt/base/mem.h"
#include "train/parallel/schedule.h"

#define STAGES_MAX 6
#define CHUNKS_MAX 4
#define MICRO_BATCHES_MAX 18
#define TASKS_MAX (2 * CHUNKS_MAX * MICRO_BATCHES_MAX)

static int min(int a, int b)
{
    return a < b ? a : b;
}

static void for_all_shapes(void (*check)(const struct schedule_shape *shape))
{
    for (int stages = 1; stages <= STAGES_MAX; stages++) {
        for (int chunks = 1; chunks <= (stages == 1 ? 1 : CHUNKS_MAX); chunks++) {
            int step = chunks == 1 ? 1 : stages;
            for (int m = step; m <= MICRO_BATCHES_MAX; m += step) {
                for (int forward_only = 0; forward_only < 2; forward_only++) {
                    check(&(struct schedule_shape){stages, chunks, m, forward_only != 0});
                }
            }
        }
    }
}

/* --- the order --- */

static void expect_order(const cJSON *test)
{
    const struct schedule_shape shape = {
        .stages = (int)cJSON_GetObjectItem(test, "stages")->valuedouble,
        .chunks = (int)cJSON_GetObjectItem(test, "chunks")->valuedouble,
        .micro_batches = (int)cJSON_GetObjectItem(test, "micro_batches")->valuedouble};
    const cJSON *orders = cJSON_GetObjectItem(test, "order");
    static struct schedule_task tasks[TASKS_MAX];

    cr_assert_eq(cJSON_GetArraySize(orders), shape.stages);
    for (int s = 0; s < shape.stages; s++) {
        const char *want = cJSON_GetArrayItem(orders, s)->valuestring;
        char have[TASKS_MAX * 8] = "";
        size_t length = 0;

        schedule_order(&shape, s, tasks);
        for (int i = 0; i < schedule_task_count(&shape); i++) {
            length += (size_t)snprintf(have + length, sizeof(have) - length, "%s%c%d.%d",
                                       i > 0 ? " " : "", tasks[i].is_backward ? 'b' : 'f',
                                       tasks[i].micro_batch, tasks[i].chunk);
        }
        cr_assert_str_eq(have, want, "stage %d of %d, %d chunks:\n%s\n%s", s, shape.stages,
                         shape.chunks, have, want);
    }
}

Test(schedule, order_is_megatrons)
{
    char path[FS_PATH_MAX];
    const char *refs = getenv("HOLDFAST_TEST_REFS");
    cJSON *file = NULL;
    const cJSON *test = NULL;
    int tests = 0;

    cr_assert_not_null(refs, "HOLDFAST_TEST_REFS is not set; run the test through ctest");
    snprintf(path, sizeof(path), "%s/sched/interleaved.json", refs);
    cr_assert_eq(json_read_file(fs_posix(), path, &file), STATUS_OK, "%s", status_last()->message);
    cJSON_ArrayForEach(test, cJSON_GetObjectItem(file, "schedules"))
    {
        expect_order(test);
        tests++;
    }
    cr_assert_geq(tests, 12);
    cJSON_Delete(file);
}

/* Slots are used by one pass at a time, and as few as the closed form says. */
static void check_slots(const struct schedule_shape *shape)
{
    int passes = shape->chunks * shape->micro_batches;

    for (int s = 0; s < shape->stages; s++) {
        struct schedule_plan plan;
        int behind = shape->stages - s - 1, used = 0, most = 0, computed = 0;
        int next[2][CHUNKS_MAX] = {{0}};
        bool is_used[TASKS_MAX] = {false};

        cr_assert_eq(schedule_plan_init(shape, s, &plan), STATUS_OK);
        for (size_t i = 0; i < plan.count; i++) {
            const struct schedule_op *op = &plan.ops[i];
            if (op->kind == SCHEDULE_EXCHANGE) {
                continue;
            }
            computed++;
            cr_assert_eq(op->task.micro_batch, next[op->task.is_backward][op->task.chunk]++,
                         "the micro-batches of a chunk are in order");
            if (shape->is_forward_only) {
                cr_assert_eq(op->slot, 0);
                most = 1;
                continue;
            }
            cr_assert_eq(is_used[op->slot], op->task.is_backward, "slot %d", op->slot);
            is_used[op->slot] = !op->task.is_backward;
            used += op->task.is_backward ? -1 : 1;
            most = used > most ? used : most;
        }
        int want =
            shape->chunks == 1 ? behind + 1 : 2 * behind + (shape->chunks - 1) * shape->stages + 1;
        cr_assert_eq(computed, schedule_task_count(shape));
        cr_assert_eq(most, shape->is_forward_only ? 1 : min(want, passes));
        cr_assert_eq(plan.slots, most);
        cr_assert_eq(schedule_slots(shape, s), most);
        schedule_plan_deinit(&plan);
    }
}

Test(schedule, each_pass_has_a_slot_of_its_own_and_few_are_needed)
{
    for_all_shapes(check_slots);
}

/* --- the exchanges --- */

#define BUFFERS_MAX 6

/* A model of blocking transfers: an exchange ends when every one of its transfers has met its other
 * half, which must be the first that its stage's present exchange still wants of this peer; nothing
 * is buffered on the way. A buffer holds the task that its data comes from. */
struct machine {
    const struct schedule_shape *shape;
    struct schedule_plan plans[STAGES_MAX];
    size_t next[STAGES_MAX];
    int now[STAGES_MAX]; /* by the clock of the schedule, with what transfers wait for */
    struct schedule_task data[STAGES_MAX][BUFFERS_MAX];
    int owner[STAGES_MAX][BUFFERS_MAX]; /* the stage that computed it; SCHEDULE_NONE: empty */
    bool met[STAGES_MAX][SCHEDULE_TRANSFERS_MAX];
};

static const struct schedule_op *present(const struct machine *machine, int stage,
                                         enum schedule_op_kind kind)
{
    const struct schedule_plan *plan = &machine->plans[stage];

    if (machine->next[stage] == plan->count || plan->ops[machine->next[stage]].kind != kind) {
        return NULL;
    }
    return &plan->ops[machine->next[stage]];
}

/* The first transfer with `peer` in one direction that has not been met, or SCHEDULE_NONE. */
static int first_wanted(const struct machine *machine, int stage, int peer, bool is_send)
{
    const struct schedule_op *op = present(machine, stage, SCHEDULE_EXCHANGE);

    for (int i = 0; op != NULL && i < op->transfer_count; i++) {
        if (op->transfers[i].peer == peer && op->transfers[i].is_send == is_send &&
            !machine->met[stage][i]) {
            return i;
        }
    }
    return SCHEDULE_NONE;
}

static bool meet(struct machine *machine, int from, int to)
{
    int send = first_wanted(machine, from, to, true);
    int receive = first_wanted(machine, to, from, false);

    if (send == SCHEDULE_NONE || receive == SCHEDULE_NONE) {
        return false;
    }
    int source = present(machine, from, SCHEDULE_EXCHANGE)->transfers[send].buffer;
    int target = present(machine, to, SCHEDULE_EXCHANGE)->transfers[receive].buffer;
    cr_assert_eq(machine->owner[from][source], from);
    cr_assert_eq(machine->owner[to][target], SCHEDULE_NONE, "data is overwritten");
    machine->data[to][target] = machine->data[from][source];
    machine->owner[to][target] = from;
    machine->owner[from][source] = SCHEDULE_NONE;
    machine->met[from][send] = machine->met[to][receive] = true;
    int later = machine->now[from] > machine->now[to] ? machine->now[from] : machine->now[to];
    machine->now[from] = machine->now[to] = later;
    return true;
}

static void compute(struct machine *machine, int stage, const struct schedule_op *op)
{
    int from, to;
    struct schedule_task source, target;
    bool has_source = schedule_source(machine->shape, stage, op->task, &from, &source);
    bool has_target = schedule_target(machine->shape, stage, op->task, &to, &target);

    cr_assert_eq(op->input != SCHEDULE_NONE, has_source);
    cr_assert_eq(op->output != SCHEDULE_NONE, has_target);
    if (has_target) {
        cr_assert_eq(machine->owner[stage][op->output], SCHEDULE_NONE, "data is overwritten");
        machine->data[stage][op->output] = op->task;
        machine->owner[stage][op->output] = stage;
    }
    if (has_source) {
        const struct schedule_task *have = &machine->data[stage][op->input];
        cr_assert_eq(machine->owner[stage][op->input], from);
        cr_assert(have->is_backward == source.is_backward && have->chunk == source.chunk &&
                  have->micro_batch == source.micro_batch);
        machine->owner[stage][op->input] = SCHEDULE_NONE;
    }
    machine->now[stage] += op->task.is_backward ? SCHEDULE_BACKWARD_UNITS : SCHEDULE_FORWARD_UNITS;
}

static bool advance(struct machine *machine, int stage)
{
    const struct schedule_op *op = present(machine, stage, SCHEDULE_COMPUTE);

    if (op != NULL) {
        compute(machine, stage, op);
        machine->next[stage]++;
        return true;
    }
    op = present(machine, stage, SCHEDULE_EXCHANGE);
    for (int i = 0; op != NULL && i < op->transfer_count; i++) {
        if (!machine->met[stage][i]) {
            return false;
        }
    }
    if (op != NULL) {
        cr_assert_gt(op->transfer_count, 0);
        memset(machine->met[stage], 0, sizeof(machine->met[stage]));
        machine->next[stage]++;
    }
    return op != NULL;
}

static void run_machine(struct machine *machine)
{
    int stages = machine->shape->stages;
    bool moved = true;

    while (moved) {
        moved = false;
        for (int s = 0; s < stages; s++) {
            moved |= advance(machine, s);
            for (int peer = 0; peer < stages; peer++) {
                moved |= peer != s && meet(machine, s, peer);
            }
        }
    }
}

/* Though every send waits for its receive, no stage waits longer than the closed form allows:
 * 3 (m v + p - 1) units in all, forward only m v + p - 1. */
static void check_runs(const struct schedule_shape *shape)
{
    static struct machine machine;
    int steps = shape->micro_batches * shape->chunks + shape->stages - 1;

    memset(&machine, 0, sizeof(machine));
    machine.shape = shape;
    for (int s = 0; s < shape->stages; s++) {
        cr_assert_eq(schedule_plan_init(shape, s, &machine.plans[s]), STATUS_OK);
        cr_assert_leq(machine.plans[s].buffers, BUFFERS_MAX, "%d", machine.plans[s].buffers);
        for (int b = 0; b < BUFFERS_MAX; b++) {
            machine.owner[s][b] = SCHEDULE_NONE;
        }
    }
    run_machine(&machine);
    for (int s = 0; s < shape->stages; s++) {
        cr_assert_eq(machine.next[s], machine.plans[s].count,
                     "stage %d of %d hangs at op %zu with %d chunks, %d micro-batches", s,
                     shape->stages, machine.next[s], shape->chunks, shape->micro_batches);
        cr_assert_leq(machine.now[s], steps * (shape->is_forward_only ? 1 : 3));
        for (int b = 0; b < BUFFERS_MAX; b++) {
            cr_assert_eq(machine.owner[s][b], SCHEDULE_NONE);
        }
        schedule_plan_deinit(&machine.plans[s]);
    }
}

Test(schedule, stages_that_block_on_each_other_run_to_the_end_in_the_shortest_time)
{
    for_all_shapes(check_runs);
}
