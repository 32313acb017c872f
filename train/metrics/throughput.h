/* How much arithmetic a training does, by the two conventions in use.
 *
 * Before it: the model's sizes. After it: trainer (--log-throughput). Counted are the matrix
 * multiplications of forward and backward (three times the forward's, recompute not counted), as
 * Megatron does: attention's products of queries and keys over all positions ("full", PaLM's
 * 6N + 12LCT a token) or over those before a token only ("causal", 6N + 6LCT, Megatron's).
 */
#ifndef TRAIN_METRICS_THROUGHPUT_H
#define TRAIN_METRICS_THROUGHPUT_H

#include "train/model/gpt.h"

struct throughput {
    double causal_flops, full_flops; /* of one sample, forward and backward */
};

struct throughput throughput_of_sample(const struct gpt_config *model, int tp);

#endif
