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

/* A model of blocking transfers: an exchange ends when every one of its transfers has met its other
 * half, which must be that stage's present exchange too; nothing is buffered. Buffers hold the
 * place in the model that their data comes from. */
struct machine {
    const struct schedule_shape *shape;
    struct schedule_plan plans[STAGES_MAX];
    size_t next[STAGES_MAX];
    struct schedule_task outputs[STAGES_MAX][TASKS_MAX];
    bool is_full[STAGES_MAX][TASKS_MAX];
    struct schedule_task input[STAGES_MAX];
    int input_from[STAGES_MAX]; /* SCHEDULE_NONE: nothing there */
    bool sent[STAGES_MAX][SCHEDULE_SENDS_MAX], received[STAGES_MAX];
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

static bool meet(struct machine *machine, int stage)
{
    const struct schedule_op *op = present(machine, stage, SCHEDULE_EXCHANGE);
    bool moved = false;

    for (int i = 0; op != NULL && i < SCHEDULE_SENDS_MAX; i++) {
        int peer = op->sends[i].peer, buffer = op->sends[i].buffer;
        const struct schedule_op *other =
            peer == SCHEDULE_NONE ? NULL : present(machine, peer, SCHEDULE_EXCHANGE);
        if (other == NULL || machine->sent[stage][i] || other->receive_from != stage ||
            machine->received[peer]) {
            continue;
        }
        cr_assert(machine->is_full[stage][buffer]);
        cr_assert_eq(machine->input_from[peer], SCHEDULE_NONE, "an input is overwritten");
        machine->is_full[stage][buffer] = false;
        machine->input[peer] = machine->outputs[stage][buffer];
        machine->input_from[peer] = stage;
        machine->sent[stage][i] = machine->received[peer] = moved = true;
    }
    return moved;
}

static void compute(struct machine *machine, int stage, const struct schedule_op *op)
{
    int from, to;
    struct schedule_task source, target;
    bool has_source = schedule_source(machine->shape, stage, op->task, &from, &source);

    cr_assert_eq(machine->input_from[stage], has_source ? from : SCHEDULE_NONE);
    if (has_source) {
        const struct schedule_task *have = &machine->input[stage];
        cr_assert(have->is_backward == source.is_backward && have->chunk == source.chunk &&
                  have->micro_batch == source.micro_batch);
    }
    machine->input_from[stage] = SCHEDULE_NONE;
    cr_assert_eq(op->buffer != SCHEDULE_NONE,
                 schedule_target(machine->shape, stage, op->task, &to, &target));
    if (op->buffer != SCHEDULE_NONE) {
        cr_assert_lt(op->buffer, machine->plans[stage].buffers);
        cr_assert_not(machine->is_full[stage][op->buffer], "an output is overwritten");
        machine->is_full[stage][op->buffer] = true;
        machine->outputs[stage][op->buffer] = op->task;
    }
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
    if (op == NULL || machine->received[stage] != (op->receive_from != SCHEDULE_NONE)) {
        return false;
    }
    for (int i = 0; i < SCHEDULE_SENDS_MAX; i++) {
        if (machine->sent[stage][i] != (op->sends[i].peer != SCHEDULE_NONE)) {
            return false;
        }
    }
    memset(machine->sent[stage], 0, sizeof(machine->sent[stage]));
    machine->received[stage] = false;
    machine->next[stage]++;
    return true;
}

static void check_runs(const struct schedule_shape *shape)
{
    static struct machine machine;
    bool moved = true;

    memset(&machine, 0, sizeof(machine));
    machine.shape = shape;
    for (int s = 0; s < shape->stages; s++) {
        machine.input_from[s] = SCHEDULE_NONE;
        cr_assert_eq(schedule_plan_init(shape, s, &machine.plans[s]), STATUS_OK);
    }
    while (moved) {
        moved = false;
        for (int s = 0; s < shape->stages; s++) {
            moved |= meet(&machine, s);
            moved |= advance(&machine, s);
        }
    }
    for (int s = 0; s < shape->stages; s++) {
        cr_assert_eq(machine.next[s], machine.plans[s].count,
                     "stage %d of %d hangs at op %zu with %d chunks, %d micro-batches", s,
                     shape->stages, machine.next[s], shape->chunks, shape->micro_batches);
        for (int b = 0; b < machine.plans[s].buffers; b++) {
            cr_assert_not(machine.is_full[s][b]);
        }
        cr_assert_leq(machine.plans[s].buffers, 3, "%d buffers for outputs",
                      machine.plans[s].buffers);
        schedule_plan_deinit(&machine.plans[s]);
    }
}

Test(schedule, stages_that_block_on_each_other_run_to_the_end)
{
    for_all_shapes(check_runs);
}
