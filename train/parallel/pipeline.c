/* The runner of a stage's plan. Before it: schedule; after it: gpt_forward and gpt_backward.
 *
 * Memory: beside the model's slots a few buffers (schedule_plan.buffers) for what has come in and
 * for what waits to go out, forward and backward alike.
 */
#include "train/parallel/pipeline.h"

#include "ckpt/base/mem.h"
#include "train/parallel/schedule.h"

struct pipeline {
    struct pipeline_config config;
    size_t activation_bytes;
    struct schedule_plan train, evaluate;
    float **buffers; /* [buffer_count] */
    int buffer_count;
};

static enum status alloc_buffers(struct pipeline *pipeline)
{
    enum status st = STATUS_OK;
    struct device *device = pipeline->config.device;
    size_t bytes = pipeline->activation_bytes;
    int train = pipeline->train.buffers, evaluate = pipeline->evaluate.buffers;

    pipeline->buffer_count = train > evaluate ? train : evaluate;
    TRY(st,
        mem_alloc(&pipeline->buffers, (size_t)pipeline->buffer_count, sizeof(*pipeline->buffers)),
        done);
    for (int i = 0; i < pipeline->buffer_count; i++) {
        TRY(st, device->ops->alloc(device, (void **)&pipeline->buffers[i], bytes), done);
    }
done:
    return st;
}

enum status pipeline_create(const struct pipeline_config *config, struct pipeline **out_pipeline)
{
    enum status st = STATUS_OK;
    struct pipeline *pipeline = NULL;
    int stage = config->topology->coords.pp;
    struct schedule_shape shape = {.stages = config->topology->layout.pp,
                                   .chunks = config->chunks,
                                   .micro_batches = config->micro_batches};

    TRY(st, mem_alloc(&pipeline, 1, sizeof(*pipeline)), done);
    pipeline->config = *config;
    pipeline->activation_bytes = gpt_activation_bytes(config->gpt);
    TRY(st, schedule_plan_init(&shape, stage, &pipeline->train), done);
    shape.is_forward_only = true;
    TRY(st, schedule_plan_init(&shape, stage, &pipeline->evaluate), done);
    TRY(st, alloc_buffers(pipeline), done);
done:
    if (st != STATUS_OK) {
        pipeline_destroy(&pipeline);
    }
    *out_pipeline = pipeline;
    return st;
}

void pipeline_destroy(struct pipeline **address)
{
    struct pipeline *pipeline = *address;

    if (pipeline == NULL) {
        return;
    }
    struct device *device = pipeline->config.device;
    for (int i = 0; pipeline->buffers != NULL && i < pipeline->buffer_count; i++) {
        device->ops->free(device, pipeline->buffers[i]);
    }
    mem_free(&pipeline->buffers);
    schedule_plan_deinit(&pipeline->train);
    schedule_plan_deinit(&pipeline->evaluate);
    mem_free(address);
}

static enum status exchange(struct pipeline *pipeline, const struct schedule_op *op)
{
    struct comm_transfer transfers[SCHEDULE_TRANSFERS_MAX];

    for (int i = 0; i < op->transfer_count; i++) {
        const struct schedule_transfer *transfer = &op->transfers[i];
        transfers[i] =
            (struct comm_transfer){transfer->peer, pipeline->buffers[transfer->buffer],
                                   pipeline->activation_bytes, transfer->is_send ? 1 : 0};
    }
    return comm_exchange(pipeline->config.topology->pp, transfers, op->transfer_count);
}

static float *buffer_at(const struct pipeline *pipeline, int index)
{
    return index == SCHEDULE_NONE ? NULL : pipeline->buffers[index];
}

static enum status compute(struct pipeline *pipeline, const struct schedule_op *op,
                           const struct gpt_batch *batches, double *loss_sum)
{
    const struct schedule_task *task = &op->task;
    const struct gpt_batch *batch = &batches[task->micro_batch];
    const float *input = buffer_at(pipeline, op->input);
    float *output = buffer_at(pipeline, op->output);
    enum status st = STATUS_OK;
    double loss = 0;

    if (pipeline->config.on_micro_batch != NULL) {
        pipeline->config.on_micro_batch(pipeline->config.context, task->micro_batch);
    }
    if (task->is_backward) {
        return gpt_backward(pipeline->config.gpt, task->chunk, op->slot, batch, input, output);
    }
    TRY(st, gpt_forward(pipeline->config.gpt, task->chunk, op->slot, batch, input, output, &loss),
        done);
    *loss_sum += loss;
done:
    return st;
}

static enum status run(struct pipeline *pipeline, const struct schedule_plan *plan,
                       const struct gpt_batch *batches, double *out_loss_sum)
{
    enum status st = STATUS_OK;
    double loss_sum = 0;

    for (size_t i = 0; i < plan->count; i++) {
        const struct schedule_op *op = &plan->ops[i];
        if (op->kind == SCHEDULE_EXCHANGE) {
            TRY(st, exchange(pipeline, op), done);
        } else {
            TRY(st, compute(pipeline, op, batches, &loss_sum), done);
        }
    }
    *out_loss_sum = loss_sum;
done:
    return st;
}

enum status pipeline_train(struct pipeline *pipeline, const struct gpt_batch *batches,
                           double *out_loss_sum)
{
    return run(pipeline, &pipeline->train, batches, out_loss_sum);
}

enum status pipeline_evaluate(struct pipeline *pipeline, const struct gpt_batch *batches,
                              double *out_loss_sum)
{
    return run(pipeline, &pipeline->evaluate, batches, out_loss_sum);
}
