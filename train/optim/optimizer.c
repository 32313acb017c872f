/* The update of the slices and the gathering of the parameters. Before it: grads; after it: the
 * next forward pass.
 */
#include "train/optim/optimizer.h"

#include "ckpt/base/mem.h"

enum status optimizer_init(struct optimizer *optimizer, struct grads *grads,
                           const struct optimizer_config *config)
{
    enum status st = STATUS_OK;
    struct device *device = grads->device;
    size_t bytes = grads->plan.moment_count * sizeof(float);

    *optimizer = (struct optimizer){.grads = grads, .config = *config};
    TRY(st, device->ops->alloc(device, (void **)&optimizer->exp_avg, bytes), done);
    TRY(st, device->ops->alloc(device, (void **)&optimizer->exp_avg_sq, bytes), done);
    TRY(st,
        mem_alloc(&optimizer->byte_counts, (size_t)grads->topology->layout.dp,
                  sizeof(*optimizer->byte_counts)),
        done);
done:
    if (st != STATUS_OK) {
        optimizer_deinit(optimizer);
    }
    return st;
}

void optimizer_deinit(struct optimizer *optimizer)
{
    if (optimizer->grads == NULL) {
        return;
    }
    struct device *device = optimizer->grads->device;
    device->ops->free(device, optimizer->exp_avg);
    device->ops->free(device, optimizer->exp_avg_sq);
    mem_free(&optimizer->byte_counts);
    optimizer->exp_avg = NULL;
    optimizer->exp_avg_sq = NULL;
}

enum status optimizer_step(struct optimizer *optimizer, uint64_t update, double learning_rate,
                           double weight_decay, float grad_scale)
{
    enum status st = STATUS_OK;
    struct grads *grads = optimizer->grads;
    float *param = gpt_param_data(grads->gpt);
    const float *grad = gpt_grad_data(grads->gpt);
    struct adamw_args args = {.learning_rate = (float)learning_rate,
                              .beta1 = (float)optimizer->config.beta1,
                              .beta2 = (float)optimizer->config.beta2,
                              .epsilon = (float)optimizer->config.epsilon,
                              .grad_scale = grad_scale,
                              .step = (int64_t)update};

    for (size_t i = 0; i < grads->plan.segment_count; i++) {
        const struct grads_segment *segment = &grads->plan.segments[i];
        bool decays = gpt_params(grads->gpt)[segment->param].decay;
        args.weight_decay = decays ? (float)weight_decay : 0.0F;
        TRY(st,
            grads->device->ops->adamw(grads->device, param + segment->begin,
                                      optimizer->exp_avg + segment->moment_begin,
                                      optimizer->exp_avg_sq + segment->moment_begin,
                                      grad + segment->begin, segment->count, &args),
            done);
    }
done:
    return st;
}

enum status optimizer_gather_params(struct optimizer *optimizer)
{
    enum status st = STATUS_OK;
    struct grads *grads = optimizer->grads;
    float *param = gpt_param_data(grads->gpt);
    int dp = grads->topology->layout.dp;

    for (size_t i = 0; i < grads->plan.bucket_count; i++) {
        const struct grads_bucket *bucket = &grads->plan.buckets[i];
        for (int rank = 0; rank < dp; rank++) {
            optimizer->byte_counts[rank] = bucket->counts[rank] * sizeof(float);
        }
        TRY(st, comm_all_gather(grads->topology->dp, param + bucket->begin, optimizer->byte_counts),
            done);
    }
done:
    return st;
}
