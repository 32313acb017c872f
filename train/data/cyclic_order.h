/* Megatron's --dataloader-type cyclic: a new permutation of the samples in each epoch.
 *
 * Before it: any data_source that ends. After it: read_ahead, the trainer. Where "single" gives
 * sample n of the index, this gives the one that MegatronPretrainingRandomSampler (megatron/
 * training/datasets/data_samplers.py) draws when n samples are consumed: epoch n / active, where
 * active is the largest multiple of micro-batch x DP in the source, and within it torch.randperm
 * seeded by the number of the epoch; either of a bucket for each DP rank (data sharding), or of all
 * samples, of which the ranks take every DP-th.
 *
 * So the order depends on the micro-batch size and on DP: a training must keep both to its end
 * (train_ckpt sees to it), or samples of an epoch would come twice and others never.
 */
#ifndef TRAIN_DATA_CYCLIC_ORDER_H
#define TRAIN_DATA_CYCLIC_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/base/status.h"
#include "train/data/data_loader.h"

/* From here on torch.randperm draws 64 bits for each number. */
#define CYCLIC_ORDER_SAMPLES_MAX (UINT32_MAX / 20)

struct cyclic_order_config {
    uint64_t micro_batch, dp; /* samples and ranks, at least 1 */
    bool data_sharding;
};

/* torch.manual_seed(seed); torch.randperm(count), on a CPU; count < CYCLIC_ORDER_SAMPLES_MAX. */
void cyclic_order_permute(uint32_t seed, uint32_t *out_order, uint32_t count);

/* Puts itself before `*source`, which it owns from then on (data_loader_close closes both); when it
 * fails, the source is as it was. STATUS_BAD_DATA: too few or too many samples. `get` may be called
 * by several threads; the first one of an epoch makes its permutation while the others wait. */
enum status cyclic_order_open(const struct cyclic_order_config *config, struct data_source *source)
    STATUS_MUST_CHECK;

#endif
