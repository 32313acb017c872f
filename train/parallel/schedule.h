/* In which order a pipeline's stages run their micro-batches, and when they exchange data: 1F1B and
 * Megatron's interleaved 1F1B, as data.
 *
 * Before it: the layout and the micro-batches of a step. After it: pipeline (does what the plan
 * says), schedule_view (draws it). All of it is pure.
 *
 * A stage holds `chunks` chunks of layers. In the model's order chunk 0 of all stages comes first,
 * then chunk 1 of all stages, and so on: forward data goes from stage to stage and from the last
 * stage to the first one's next chunk, backward data the other way.
 *
 * The order is Megatron's (forward_backward_pipelining_with_interleaving; Narayanan et al. 2021,
 * section 2.2). Stage s of p with v chunks and m micro-batches runs min(m v, 2 (p - s - 1) +
 * (v - 1) p) forwards to warm up (v = 1: min(m, p - s - 1)), then one forward and one backward in
 * turn, then the remaining backwards. Forward k is that of chunk (k / p) mod v: p micro-batches
 * pass a chunk, the same p the next one, so m must divide by p when v > 1; backwards take the
 * chunks from the last to the first. Each chunk sees its micro-batches in the order 0, 1, 2 ...,
 * which makes the sums of gradients independent of the layout's timing.
 *
 * No deadlock, even where sends wait for their receives: a thought clock lets every task take one
 * tick, and a transfer belongs to the tick in which its receiver begins the task that needs it, on
 * both sides. All transfers of a stage in one tick are one exchange, and every stage goes through
 * its ticks in order. Take the earliest tick that an unfinished exchange belongs to: whoever takes
 * part has none before it and computes without waiting, so all of them come to it, and it ends. A
 * stage begins one task in a tick, so that it receives at most once and each peer gets at most one
 * message: two stages that are both neighbours of each other (p = 2) need no further order.
 */
#ifndef TRAIN_PARALLEL_SCHEDULE_H
#define TRAIN_PARALLEL_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/base/status.h"

#define SCHEDULE_NONE (-1)
#define SCHEDULE_SENDS_MAX 2 /* of one exchange: one to each neighbour */

struct schedule_shape {
    int stages, chunks, micro_batches; /* several chunks: several stages that divide the last */
    bool is_forward_only;              /* validation */
};

/* Forward or backward of one micro-batch through one chunk of one stage. */
struct schedule_task {
    bool is_backward;
    int micro_batch, chunk;
};

enum schedule_op_kind { SCHEDULE_COMPUTE, SCHEDULE_EXCHANGE };

struct schedule_send {
    int peer;   /* stage, or SCHEDULE_NONE */
    int buffer; /* free again after the exchange */
};

/* One thing a stage does. Transfers of an EXCHANGE happen at once; what it receives is the input of
 * the task that follows. */
struct schedule_op {
    enum schedule_op_kind kind;
    struct schedule_task task; /* of COMPUTE; of EXCHANGE: the one that it receives for */
    int slot;                  /* COMPUTE: where activations wait between forward and backward */
    int buffer;                /* COMPUTE: for the output, or SCHEDULE_NONE */
    int receive_from;          /* EXCHANGE: stage, or SCHEDULE_NONE */
    struct schedule_send sends[SCHEDULE_SENDS_MAX];
};

struct schedule_plan {
    struct schedule_op *ops;
    size_t count;
    int slots, buffers; /* that the ops use */
};

int schedule_task_count(const struct schedule_shape *shape); /* of each stage */
/* A stage's tasks in their order: [schedule_task_count]. */
void schedule_order(const struct schedule_shape *shape, int stage, struct schedule_task *out_tasks);
/* The stage and task whose output is the input of `task`; false: it needs none. */
bool schedule_source(const struct schedule_shape *shape, int stage, struct schedule_task task,
                     int *out_stage, struct schedule_task *out_task);
/* The stage and task whose input is the output of `task`; false: there is none. */
bool schedule_target(const struct schedule_shape *shape, int stage, struct schedule_task task,
                     int *out_stage, struct schedule_task *out_task);
/* Tasks whose activations a stage holds at once at most: those of the warm-up and one more. */
int schedule_slots(const struct schedule_shape *shape, int stage);

/* When each task begins if a forward takes `forward_units`, a backward `backward_units` and
 * transfers nothing: [stages, schedule_task_count], a stage's tasks by schedule_index; freed by
 * mem_free. */
enum status schedule_play(const struct schedule_shape *shape, int forward_units, int backward_units,
                          int **out_begins) STATUS_MUST_CHECK;
size_t schedule_index(const struct schedule_shape *shape, int stage, struct schedule_task task);

/* All that a stage does, with its exchanges. */
enum status schedule_plan_init(const struct schedule_shape *shape, int stage,
                               struct schedule_plan *out_plan) STATUS_MUST_CHECK;
void schedule_plan_deinit(struct schedule_plan *plan);

#endif
