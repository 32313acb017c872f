/* The pipeline: runs a step's micro-batches through this rank's stage as its plan says.
 *
 * Before it: the batches of a step, schedule (the plan), topology (the other stages). After it:
 * model (forward, backward), then grads.
 */
#ifndef TRAIN_PARALLEL_PIPELINE_H
#define TRAIN_PARALLEL_PIPELINE_H

#include "ckpt/base/status.h"
#include "train/device/device.h"
#include "train/model/gpt.h"
#include "train/parallel/topology.h"

struct pipeline;

struct pipeline_config {
    struct gpt *gpt; /* with as many chunks, and the slots of schedule_slots */
    struct device *device;
    const struct topology *topology;
    int chunks; /* of each stage */
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
