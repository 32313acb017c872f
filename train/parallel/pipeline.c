/* The runner of a stage's plan. Before it: schedule; after it: gpt_forward and gpt_backward.
 *
 * Memory: one buffer for what comes in, since the model copies an input into its slot, and a few
 * for what waits to go out (schedule_plan.buffers), for both directions alike.
 */
#include "train/parallel/pipeline.h"

#include "ckpt/base/mem.h"
#include "train/parallel/schedule.h"

struct pipeline {
    struct pipeline_config config;
    size_t activation_bytes;
    struct schedule_plan train, evaluate;
    float *input;    /* of the next task; NULL where there is one stage */
    float **outputs; /* [output_count] */
    int output_count;
};

static enum status alloc_buffers(struct pipeline *pipeline)
{
    enum status st = STATUS_OK;
    struct device *device = pipeline->config.device;
    size_t bytes = pipeline->activation_bytes;
    int train = pipeline->train.buffers, evaluate = pipeline->evaluate.buffers;

    pipeline->output_count = train > evaluate ? train : evaluate;
    TRY(st,
        mem_alloc(&pipeline->outputs, (size_t)pipeline->output_count, sizeof(*pipeline->outputs)),
        done);
    for (int i = 0; i < pipeline->output_count; i++) {
        TRY(st, device->ops->alloc(device, (void **)&pipeline->outputs[i], bytes), done);
    }
    if (pipeline->config.topology->layout.pp > 1) {
        TRY(st, device->ops->alloc(device, (void **)&pipeline->input, bytes), done);
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
    device->ops->free(device, pipeline->input);
    for (int i = 0; pipeline->outputs != NULL && i < pipeline->output_count; i++) {
        device->ops->free(device, pipeline->outputs[i]);
    }
    mem_free(&pipeline->outputs);
    schedule_plan_deinit(&pipeline->train);
    schedule_plan_deinit(&pipeline->evaluate);
    mem_free(address);
}

static enum status exchange(struct pipeline *pipeline, const struct schedule_op *op)
{
    struct comm_transfer transfers[1 + SCHEDULE_SENDS_MAX];
    int count = 0;
    size_t bytes = pipeline->activation_bytes;

    for (int i = 0; i < SCHEDULE_SENDS_MAX; i++) {
        if (op->sends[i].peer != SCHEDULE_NONE) {
            transfers[count++] = (struct comm_transfer){
                op->sends[i].peer, pipeline->outputs[op->sends[i].buffer], bytes, 1};
        }
    }
    if (op->receive_from != SCHEDULE_NONE) {
        transfers[count++] = (struct comm_transfer){op->receive_from, pipeline->input, bytes, 0};
    }
    return comm_exchange(pipeline->config.topology->pp, transfers, count);
}

static enum status compute(struct pipeline *pipeline, const struct schedule_op *op,
                           const struct gpt_batch *batches, double *loss_sum)
{
    const struct schedule_task *task = &op->task;
    const struct gpt_batch *batch = &batches[task->micro_batch];
    float *output = op->buffer == SCHEDULE_NONE ? NULL : pipeline->outputs[op->buffer];
    enum status st = STATUS_OK;
    double loss = 0;

    if (pipeline->config.on_micro_batch != NULL) {
        pipeline->config.on_micro_batch(pipeline->config.context, task->micro_batch);
    }
    if (task->is_backward) {
        return gpt_backward(pipeline->config.gpt, task->chunk, op->slot, batch, pipeline->input,
                            output);
    }
    TRY(st,
        gpt_forward(pipeline->config.gpt, task->chunk, op->slot, batch, pipeline->input, output,
                    &loss),
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
