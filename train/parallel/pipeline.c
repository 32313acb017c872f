/* 1F1B: pipeline_plan writes the schedule, the runner does what it says. Before it: a step's
 * batches; after it: gpt_forward and gpt_backward.
 *
 * No deadlock: wherever two neighbours both have something for each other, the schedule puts send
 * and receive into one exchange, so neither waits for the other to come out of a send.
 * Memory: one buffer each way is enough. The model copies an input into its slot, and the buffer of
 * an output or gradient is free again when the exchange that sends it returns.
 */
#include "train/parallel/pipeline.h"

#include "ckpt/base/mem.h"

struct pipeline {
    struct pipeline_config config;
    int stage, stages, slots;
    size_t activation_bytes;
    struct pipeline_op *ops;
    size_t op_count;
    float *input;       /* from the stage before; NULL on the first */
    float *output;      /* NULL on the last stage */
    float *grad_output; /* from the next stage; NULL on the last */
    float *grad_input;  /* for the stage before; NULL on the first */
};

/* --- the schedule ------------------------------------------------------------------------- */

struct plan {
    struct pipeline_op *ops;
    size_t count;
    bool is_first, is_last;
};

static void add_compute(struct plan *plan, enum pipeline_op_kind kind, int micro_batch)
{
    plan->ops[plan->count++] = (struct pipeline_op){.kind = kind,
                                                    .micro_batch = micro_batch,
                                                    .recv_forward = PIPELINE_NONE,
                                                    .send_forward = PIPELINE_NONE,
                                                    .recv_backward = PIPELINE_NONE,
                                                    .send_backward = PIPELINE_NONE};
}

/* An exchange without what the ends of the pipeline do not have; nothing left: no exchange. */
static void add_exchange(struct plan *plan, int recv_forward, int send_forward, int recv_backward,
                         int send_backward)
{
    struct pipeline_op op = {.kind = PIPELINE_EXCHANGE,
                             .micro_batch = PIPELINE_NONE,
                             .recv_forward = plan->is_first ? PIPELINE_NONE : recv_forward,
                             .send_forward = plan->is_last ? PIPELINE_NONE : send_forward,
                             .recv_backward = plan->is_last ? PIPELINE_NONE : recv_backward,
                             .send_backward = plan->is_first ? PIPELINE_NONE : send_backward};

    if (op.recv_forward >= 0 || op.send_forward >= 0 || op.recv_backward >= 0 ||
        op.send_backward >= 0) {
        plan->ops[plan->count++] = op;
    }
}

static int warmup_count(int stage, int stages, int micro_batches)
{
    int behind = stages - stage - 1;

    return behind < micro_batches ? behind : micro_batches;
}

int pipeline_slots(int stage, int stages, int micro_batches)
{
    int in_flight = warmup_count(stage, stages, micro_batches) + 1;

    return in_flight < micro_batches ? in_flight : micro_batches;
}

enum status pipeline_plan(int stage, int stages, int micro_batches, struct pipeline_op **out_ops,
                          size_t *out_count)
{
    enum status st = STATUS_OK;
    struct plan plan = {.is_first = stage == 0, .is_last = stage == stages - 1};
    int warmup = warmup_count(stage, stages, micro_batches);
    int steady = micro_batches - warmup;

    CHECK(stage >= 0 && stage < stages && micro_batches > 0);
    /* Forward, backward and at most two exchanges each. */
    TRY(st, mem_alloc(&plan.ops, (size_t)micro_batches * 6, sizeof(*plan.ops)), done);
    for (int m = 0; m < warmup; m++) {
        add_exchange(&plan, m, PIPELINE_NONE, PIPELINE_NONE, PIPELINE_NONE);
        add_compute(&plan, PIPELINE_FORWARD, m);
        add_exchange(&plan, PIPELINE_NONE, m, PIPELINE_NONE, PIPELINE_NONE);
    }
    if (steady > 0) {
        add_exchange(&plan, warmup, PIPELINE_NONE, PIPELINE_NONE, PIPELINE_NONE);
    }
    for (int m = 0; m < steady; m++) {
        int next = m + 1 < steady ? warmup + m + 1 : PIPELINE_NONE;
        add_compute(&plan, PIPELINE_FORWARD, warmup + m);
        add_exchange(&plan, PIPELINE_NONE, warmup + m, m, PIPELINE_NONE);
        add_compute(&plan, PIPELINE_BACKWARD, m);
        add_exchange(&plan, next, PIPELINE_NONE, PIPELINE_NONE, m);
    }
    for (int m = steady; m < micro_batches; m++) {
        add_exchange(&plan, PIPELINE_NONE, PIPELINE_NONE, m, PIPELINE_NONE);
        add_compute(&plan, PIPELINE_BACKWARD, m);
        add_exchange(&plan, PIPELINE_NONE, PIPELINE_NONE, PIPELINE_NONE, m);
    }
    *out_ops = plan.ops;
    *out_count = plan.count;
done:
    return st;
}

/* --- the runner --------------------------------------------------------------------------- */

static enum status alloc_buffers(struct pipeline *pipeline)
{
    enum status st = STATUS_OK;
    struct device *device = pipeline->config.device;
    size_t bytes = pipeline->activation_bytes;

    if (pipeline->stage > 0) {
        TRY(st, device->ops->alloc(device, (void **)&pipeline->input, bytes), done);
        TRY(st, device->ops->alloc(device, (void **)&pipeline->grad_input, bytes), done);
    }
    if (pipeline->stage < pipeline->stages - 1) {
        TRY(st, device->ops->alloc(device, (void **)&pipeline->output, bytes), done);
        TRY(st, device->ops->alloc(device, (void **)&pipeline->grad_output, bytes), done);
    }
done:
    return st;
}

enum status pipeline_create(const struct pipeline_config *config, struct pipeline **out_pipeline)
{
    enum status st = STATUS_OK;
    struct pipeline *pipeline = NULL;

    TRY(st, mem_alloc(&pipeline, 1, sizeof(*pipeline)), done);
    pipeline->config = *config;
    pipeline->stage = config->topology->coords.pp;
    pipeline->stages = config->topology->layout.pp;
    pipeline->slots = pipeline_slots(pipeline->stage, pipeline->stages, config->micro_batches);
    pipeline->activation_bytes = gpt_activation_bytes(config->gpt);
    TRY(st,
        pipeline_plan(pipeline->stage, pipeline->stages, config->micro_batches, &pipeline->ops,
                      &pipeline->op_count),
        done);
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
    device->ops->free(device, pipeline->output);
    device->ops->free(device, pipeline->grad_output);
    device->ops->free(device, pipeline->grad_input);
    mem_free(&pipeline->ops);
    mem_free(address);
}

static enum status exchange(struct pipeline *pipeline, const struct pipeline_op *op)
{
    struct comm_transfer transfers[4];
    int count = 0;
    size_t bytes = pipeline->activation_bytes;

    if (op->send_backward >= 0) {
        transfers[count++] =
            (struct comm_transfer){pipeline->stage - 1, pipeline->grad_input, bytes, 1};
    }
    if (op->recv_forward >= 0) {
        transfers[count++] = (struct comm_transfer){pipeline->stage - 1, pipeline->input, bytes, 0};
    }
    if (op->send_forward >= 0) {
        transfers[count++] =
            (struct comm_transfer){pipeline->stage + 1, pipeline->output, bytes, 1};
    }
    if (op->recv_backward >= 0) {
        transfers[count++] =
            (struct comm_transfer){pipeline->stage + 1, pipeline->grad_output, bytes, 0};
    }
    return comm_exchange(pipeline->config.topology->pp, transfers, count);
}

static void announce(struct pipeline *pipeline, int micro_batch)
{
    if (pipeline->config.on_micro_batch != NULL) {
        pipeline->config.on_micro_batch(pipeline->config.context, micro_batch);
    }
}

static enum status forward(struct pipeline *pipeline, const struct gpt_batch *batches,
                           int micro_batch, double *loss_sum)
{
    enum status st = STATUS_OK;
    double loss = 0;

    announce(pipeline, micro_batch);
    TRY(st,
        gpt_forward(pipeline->config.gpt, micro_batch % pipeline->slots, &batches[micro_batch],
                    pipeline->input, pipeline->output, &loss),
        done);
    *loss_sum += loss;
done:
    return st;
}

enum status pipeline_train(struct pipeline *pipeline, const struct gpt_batch *batches,
                           double *out_loss_sum)
{
    enum status st = STATUS_OK;
    double loss_sum = 0;

    for (size_t i = 0; i < pipeline->op_count; i++) {
        const struct pipeline_op *op = &pipeline->ops[i];
        switch (op->kind) {
        case PIPELINE_FORWARD:
            TRY(st, forward(pipeline, batches, op->micro_batch, &loss_sum), done);
            break;
        case PIPELINE_BACKWARD:
            announce(pipeline, op->micro_batch);
            TRY(st,
                gpt_backward(pipeline->config.gpt, op->micro_batch % pipeline->slots,
                             &batches[op->micro_batch], pipeline->grad_output,
                             pipeline->grad_input),
                done);
            break;
        case PIPELINE_EXCHANGE:
            TRY(st, exchange(pipeline, op), done);
            break;
        }
    }
    *out_loss_sum = loss_sum;
done:
    return st;
}

enum status pipeline_evaluate(struct pipeline *pipeline, const struct gpt_batch *batches,
                              double *out_loss_sum)
{
    enum status st = STATUS_OK;
    double loss_sum = 0;
    struct plan plan = {.is_first = pipeline->stage == 0,
                        .is_last = pipeline->stage == pipeline->stages - 1};

    for (int m = 0; m < pipeline->config.micro_batches; m++) {
        struct pipeline_op ops[2];
        plan.ops = ops;
        plan.count = 0;
        add_exchange(&plan, m, PIPELINE_NONE, PIPELINE_NONE, PIPELINE_NONE);
        if (plan.count > 0) {
            TRY(st, exchange(pipeline, &ops[0]), done);
        }
        TRY(st, forward(pipeline, batches, m, &loss_sum), done);
        plan.count = 0;
        add_exchange(&plan, PIPELINE_NONE, m, PIPELINE_NONE, PIPELINE_NONE);
        if (plan.count > 0) {
            TRY(st, exchange(pipeline, &ops[0]), done);
        }
    }
    *out_loss_sum = loss_sum;
done:
    return st;
}
