/* The pipeline: in which order a stage runs its micro-batches (1F1B, as data), and the runner.
 *
 * Before it: the batches of a step, topology (neighbours). After it: model (forward, backward),
 * then grads.
 *
 * The schedule of stage s of S with M micro-batches is Megatron's: min(S - s - 1, M) forwards to
 * warm up, then one forward and one backward in turn, then the remaining backwards. So at most
 * min(S - s, M) micro-batches are in flight, and backward runs in the order 0, 1, 2 ..., which
 * makes the sums of gradients independent of the layout's timing.
 */
#ifndef TRAIN_PARALLEL_PIPELINE_H
#define TRAIN_PARALLEL_PIPELINE_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"
#include "train/device/device.h"
#include "train/model/gpt.h"
#include "train/parallel/topology.h"

#define PIPELINE_NONE (-1)

enum pipeline_op_kind { PIPELINE_FORWARD, PIPELINE_BACKWARD, PIPELINE_EXCHANGE };

/* One thing a stage does. The transfers of an EXCHANGE happen at once; each names the micro-batch,
 * or PIPELINE_NONE. Forward data goes from stage s to s + 1, backward data from s to s - 1. */
struct pipeline_op {
    enum pipeline_op_kind kind;
    int micro_batch;                /* of FORWARD and BACKWARD */
    int recv_forward, send_forward; /* of EXCHANGE */
    int recv_backward, send_backward;
};

/* Micro-batches in flight at most: the slots that the stage's model needs. */
int pipeline_slots(int stage, int stages, int micro_batches);
/* The whole schedule of a stage, freed by mem_free. Pure. */
enum status pipeline_plan(int stage, int stages, int micro_batches, struct pipeline_op **out_ops,
                          size_t *out_count) STATUS_MUST_CHECK;

struct pipeline;

struct pipeline_config {
    struct gpt *gpt;
    struct device *device;
    const struct topology *topology;
    int micro_batches;
    /* Called before each forward and backward; may be NULL. */
    void (*on_micro_batch)(void *context, int micro_batch);
    void *context;
};

enum status pipeline_create(const struct pipeline_config *config, struct pipeline **out_pipeline)
    STATUS_MUST_CHECK;
void pipeline_destroy(struct pipeline **pipeline);
/* Forward and backward of batches[micro_batches]: adds to the model's gradients. *out_loss_sum is
 * the sum of the token losses of all micro-batches on the last stage, 0 on the others. */
enum status pipeline_train(struct pipeline *pipeline, const struct gpt_batch *batches,
                           double *out_loss_sum) STATUS_MUST_CHECK;
/* Forward only, for validation. */
enum status pipeline_evaluate(struct pipeline *pipeline, const struct gpt_batch *batches,
                              double *out_loss_sum) STATUS_MUST_CHECK;

#endif
