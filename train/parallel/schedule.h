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
 * When data moves: all stages are played in thought, where a forward of a chunk takes one unit of
 * time, a backward two and a transfer none. An output goes at the first instant at which both its
 * stages are between two tasks, so that in step with this clock nobody waits but for data that does
 * not exist yet, though no transfer is buffered on its way.
 *
 * No deadlock, even where sends wait for their receives and whatever time tasks really take: a
 * stage does its tasks and exchanges in the order of that clock, and all its transfers of one
 * instant are one exchange. Take the earliest instant that an unfinished exchange belongs to:
 * whoever takes part has none before it and computes without waiting, so all of them come to it,
 * and it ends. Messages from one stage to another, of one instant too, go in the order in which
 * their tasks began, on both sides; so two stages may be neighbours in both directions (p = 2).
 */
#ifndef TRAIN_PARALLEL_SCHEDULE_H
#define TRAIN_PARALLEL_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/base/status.h"

#define SCHEDULE_NONE (-1)
#define SCHEDULE_TRANSFERS_MAX 8 /* of one exchange */
#define SCHEDULE_FORWARD_UNITS 1
#define SCHEDULE_BACKWARD_UNITS 2

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

struct schedule_transfer {
    bool is_send;
    int peer; /* stage */
    int buffer;
};

/* One thing a stage does. Inputs and outputs are in buffers of one kind, from the exchange that
 * receives to the task that reads, and from the task that writes to the exchange that sends. */
struct schedule_op {
    enum schedule_op_kind kind;
    struct schedule_task task; /* of COMPUTE */
    int slot;                  /* where its activations wait between forward and backward */
    int input, output;         /* its buffers, or SCHEDULE_NONE */
    struct schedule_transfer transfers[SCHEDULE_TRANSFERS_MAX]; /* of EXCHANGE, all at once */
    int transfer_count;
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

/* The played schedule: [stages, schedule_task_count], a stage's tasks by schedule_index. */
struct schedule_times {
    int *begins; /* of each task */
    int *sent;   /* when its output goes to the stage that needs it; SCHEDULE_NONE: nobody does */
    int units;   /* of the whole step */
};

enum status schedule_play(const struct schedule_shape *shape, struct schedule_times *out_times)
    STATUS_MUST_CHECK;
void schedule_times_deinit(struct schedule_times *times);
size_t schedule_index(const struct schedule_shape *shape, int stage, struct schedule_task task);

/* All that a stage does, with its exchanges. */
enum status schedule_plan_init(const struct schedule_shape *shape, int stage,
                               struct schedule_plan *out_plan) STATUS_MUST_CHECK;
void schedule_plan_deinit(struct schedule_plan *plan);

#endif
