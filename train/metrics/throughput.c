/* Floating-point operations of a sample. Before it: gpt_config; after it: trainer. */
#include "train/metrics/throughput.h"

struct throughput throughput_of_sample(const struct gpt_config *model, int tp)
{
    double C = model->hidden, F = model->ffn_hidden, L = model->layers, T = model->sequence;
    int64_t multiple = (int64_t)model->vocab_divisor * tp;
    double V =
        (double)((model->vocab + multiple - 1) / multiple * multiple); /* as it is computed */
    double weights = L * (4 * C * C + 2 * C * F) + C * V;

    return (struct throughput){.causal_flops = T * (6 * weights + 6 * L * C * T),
                               .full_flops = T * (6 * weights + 12 * L * C * T)};
}
