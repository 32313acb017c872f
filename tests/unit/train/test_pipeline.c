/* The 1F1B schedule: its closed form, and that a whole pipeline of such schedules runs to its end
 * when sends and receives block. */
#include <criterion/criterion.h>

#include "ckpt/base/mem.h"
#include "train/parallel/pipeline.h"

#define STAGES_MAX 6
#define MICRO_BATCHES_MAX 9

static int min(int a, int b)
{
    return a < b ? a : b;
}

static void for_all_shapes(void (*check)(int stages, int micro_batches))
{
    for (int stages = 1; stages <= STAGES_MAX; stages++) {
        for (int micro_batches = 1; micro_batches <= MICRO_BATCHES_MAX; micro_batches++) {
            check(stages, micro_batches);
        }
    }
}

static void check_order(int stages, int micro_batches)
{
    for (int stage = 0; stage < stages; stage++) {
        struct pipeline_op *ops = NULL;
        size_t count = 0;
        int forwards = 0, backwards = 0, warmup = 0, most = 0;
        cr_assert_eq(pipeline_plan(stage, stages, micro_batches, &ops, &count), STATUS_OK);
        for (size_t i = 0; i < count; i++) {
            if (ops[i].kind == PIPELINE_FORWARD) {
                cr_assert_eq(ops[i].micro_batch, forwards++, "forwards are in order");
                warmup += backwards == 0 ? 1 : 0;
            } else if (ops[i].kind == PIPELINE_BACKWARD) {
                cr_assert_eq(ops[i].micro_batch, backwards++, "backwards are in order");
                cr_assert_leq(backwards, forwards, "a backward follows its forward");
            }
            most = forwards - backwards > most ? forwards - backwards : most;
        }
        cr_assert_eq(forwards, micro_batches);
        cr_assert_eq(backwards, micro_batches);
        /* The last forward of the warm-up is the first of the steady phase. */
        cr_assert_eq(warmup, min(min(stages - stage - 1, micro_batches) + 1, micro_batches));
        cr_assert_eq(most, min(stages - stage, micro_batches));
        cr_assert_eq(most, pipeline_slots(stage, stages, micro_batches));
        mem_free(&ops);
    }
}

Test(pipeline, runs_each_micro_batch_forward_then_backward_with_few_in_flight)
{
    for_all_shapes(check_order);
}

/* A model of blocking transfers: an exchange ends when every one of its transfers has met its other
 * half, in the order of each direction; nothing is buffered. */
struct machine {
    struct pipeline_op *ops[STAGES_MAX];
    size_t count[STAGES_MAX], next[STAGES_MAX];
    int forward_done[STAGES_MAX], backward_done[STAGES_MAX];
    bool met[STAGES_MAX][4];
};

enum half { RECV_FORWARD, SEND_FORWARD, RECV_BACKWARD, SEND_BACKWARD };

static int wanted(const struct machine *machine, int stage, enum half half)
{
    if (machine->next[stage] == machine->count[stage] ||
        machine->ops[stage][machine->next[stage]].kind != PIPELINE_EXCHANGE ||
        machine->met[stage][half]) {
        return PIPELINE_NONE;
    }
    const struct pipeline_op *op = &machine->ops[stage][machine->next[stage]];
    return half == RECV_FORWARD    ? op->recv_forward
           : half == SEND_FORWARD  ? op->send_forward
           : half == RECV_BACKWARD ? op->recv_backward
                                   : op->send_backward;
}

static bool meet(struct machine *machine, int from, enum half send, int to, enum half recv)
{
    int sent = wanted(machine, from, send), received = wanted(machine, to, recv);

    if (sent < 0 || received < 0) {
        return false;
    }
    cr_assert_eq(sent, received, "stage %d sends %d, stage %d wants %d", from, sent, to, received);
    machine->met[from][send] = true;
    machine->met[to][recv] = true;
    return true;
}

static bool advance(struct machine *machine, int stage)
{
    if (machine->next[stage] == machine->count[stage]) {
        return false;
    }
    const struct pipeline_op *op = &machine->ops[stage][machine->next[stage]];
    if (op->kind == PIPELINE_EXCHANGE) {
        for (int half = 0; half < 4; half++) {
            if (wanted(machine, stage, (enum half)half) >= 0) {
                return false;
            }
        }
        for (int half = 0; half < 4; half++) {
            machine->met[stage][half] = false;
        }
    } else if (op->kind == PIPELINE_FORWARD) {
        machine->forward_done[stage]++;
    } else {
        machine->backward_done[stage]++;
    }
    machine->next[stage]++;
    return true;
}

static void check_runs(int stages, int micro_batches)
{
    struct machine machine = {0};
    bool moved = true;

    for (int stage = 0; stage < stages; stage++) {
        cr_assert_eq(
            pipeline_plan(stage, stages, micro_batches, &machine.ops[stage], &machine.count[stage]),
            STATUS_OK);
    }
    while (moved) {
        moved = false;
        for (int stage = 0; stage < stages; stage++) {
            moved |= advance(&machine, stage);
            if (stage + 1 < stages) {
                moved |= meet(&machine, stage, SEND_FORWARD, stage + 1, RECV_FORWARD);
                moved |= meet(&machine, stage + 1, SEND_BACKWARD, stage, RECV_BACKWARD);
            }
        }
    }
    for (int stage = 0; stage < stages; stage++) {
        cr_assert_eq(machine.next[stage], machine.count[stage],
                     "stage %d of %d hangs at op %zu with %d micro-batches", stage, stages,
                     machine.next[stage], micro_batches);
        cr_assert_eq(machine.forward_done[stage], micro_batches);
        cr_assert_eq(machine.backward_done[stage], micro_batches);
        mem_free(&machine.ops[stage]);
    }
}

Test(pipeline, stages_that_block_on_each_other_run_to_the_end)
{
    for_all_shapes(check_runs);
}
