/* AdamW on this rank's slices (ZeRO-1), then the new parameters to all DP ranks.
 *
 * Before it: grads (reduced slices, clip factor), lr_schedule. After it: train_state (the moments
 * are state), and the next step's forward. The moments exist only for the rows that this rank owns;
 * a tensor's part is at its segment's moment_begin.
 */
#ifndef TRAIN_OPTIM_OPTIMIZER_H
#define TRAIN_OPTIM_OPTIMIZER_H

#include <stdint.h>

#include "ckpt/base/status.h"
#include "train/optim/grads.h"

struct optimizer_config {
    double beta1, beta2, epsilon;
};

struct optimizer {
    struct grads *grads; /* plan, device, model and groups */
    struct optimizer_config config;
    float *exp_avg, *exp_avg_sq; /* device memory, [grads->plan.moment_count] each */
    size_t *byte_counts;         /* [dp] scratch */
};

enum status optimizer_init(struct optimizer *optimizer, struct grads *grads,
                           const struct optimizer_config *config) STATUS_MUST_CHECK;
void optimizer_deinit(struct optimizer *optimizer); /* takes zeroed storage */
/* Update number `update` (1 is the first). Decay is for the tensors whose row says so. */
enum status optimizer_step(struct optimizer *optimizer, uint64_t update, double learning_rate,
                           double weight_decay, float grad_scale) STATUS_MUST_CHECK;
/* Every DP rank gets every slice of the parameters. Collective. */
enum status optimizer_gather_params(struct optimizer *optimizer) STATUS_MUST_CHECK;

#endif
