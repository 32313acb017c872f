/* The device: memory and the mathematics of one rank, as a vtable.
 *
 * Before it: model/ and optim/ (which operation, which shape). The only implementation so far is
 * device_cpu (oneDNN for matrix products, OpenMP and vectors for the rest); CUDA is a second one
 * behind the same slots. Pointers are device pointers: on a GPU the host may not read them.
 * Every operation is stream-ordered on the device's one stream; on the CPU it runs at once.
 * Numbers are float32. Results depend on the values and the thread count only, never on timing.
 * Shapes stand beside the arguments; row-major; R = rows (B x T of a micro-batch).
 * "=" overwrites, "+=" adds. No slot is NULL: an absent operation returns STATUS_UNSUPPORTED.
 */
#ifndef TRAIN_DEVICE_DEVICE_H
#define TRAIN_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"

/* Where a dropout mask comes from: a pure function of these, so it is the same in every layout.
 * The mask of row r, channel c is drawn for position `position` + (r mod T) of global sample
 * first_sample + r / T; that of a probability for (global head head_offset + h, query, key) of the
 * sample. philox.h fixes which number of which counter that is. */
struct device_dropout {
    float probability; /* 0: off, nothing is drawn; below 1 */
    uint64_t seed;
    uint64_t step;
    uint32_t layer, site; /* global layer; which dropout of the layer (enum gpt_site) */
    uint64_t first_sample;
    int T;                /* rows of a sample */
    uint32_t position;    /* of a sample's first row; not attention */
    uint32_t head_offset; /* attention only */
};

struct adamw_args {
    float learning_rate, beta1, beta2, epsilon, weight_decay;
    float grad_scale; /* clip coefficient, multiplies the gradient */
    int64_t step;     /* 1 for the first update: bias correction */
};

struct device {
    const struct device_ops *ops;
};

struct device_ops {
    const char *name; /* "cpu" */
    void (*close)(struct device *device);

    /* Memory: zeroed, 64-byte aligned. `copy` is within the device. */
    enum status (*alloc)(struct device *device, void **out, size_t bytes);
    void (*free)(struct device *device, void *memory);
    enum status (*copy_in)(struct device *device, void *to_device, const void *from_host,
                           size_t bytes);
    enum status (*copy_out)(struct device *device, void *to_host, const void *from_device,
                            size_t bytes);
    enum status (*copy)(struct device *device, void *to, const void *from, size_t bytes);
    enum status (*fill_zero)(struct device *device, void *memory, size_t bytes);
    enum status (*synchronize)(struct device *device);

    /* out[R,C] = word[token - vocab_begin] (0 outside the part) + position[r mod T - starts[r]].
     * `position` is NULL on all but the first TP rank, so that a sum over TP is the embedding.
     * `starts` NULL: all 0. */
    enum status (*embed_forward)(struct device *device, float *out /* [R,C] */,
                                 const int32_t *tokens /* [R] */,
                                 const float *word /* [V_part,C] */,
                                 const float *position /* [T_max,C] or NULL */,
                                 const int32_t *starts /* [R] or NULL */, int R, int T, int C,
                                 int64_t vocab_begin, int64_t vocab_end);
    /* dword[token] += dout, dposition[r mod T - starts[r]] += dout; in row order, deterministic. */
    enum status (*embed_backward)(struct device *device, float *dword, float *dposition,
                                  const float *dout /* [R,C] */, const int32_t *tokens,
                                  const int32_t *starts, int R, int T, int C, int64_t vocab_begin,
                                  int64_t vocab_end);
    /* out[R,C] = mask * x / (1 - p): activations forward, gradients backward; out may be x. */
    enum status (*dropout)(struct device *device, float *out /* [R,C] */, const float *x, int R,
                           int C, const struct device_dropout *dropout);

    /* out = (x - mean) * rstd * weight + bias; mean and rstd [R] are kept for backward. */
    enum status (*layernorm_forward)(struct device *device, float *out /* [R,C] */, float *mean,
                                     float *rstd, const float *x /* [R,C] */, const float *weight,
                                     const float *bias, int R, int C, float epsilon);
    /* residual_out = residual + dropout(x + x_bias); out = layernorm(residual_out). x_bias may be
     * NULL. `residual_out` may be `residual`. `out` NULL: no norm follows; mean, rstd, weight and
     * bias are not used. */
    enum status (*residual_layernorm_forward)(struct device *device,
                                              float *residual_out /* [R,C] */,
                                              float *out /* [R,C] */, float *mean, float *rstd,
                                              const float *residual, const float *x,
                                              const float *x_bias, const float *weight,
                                              const float *bias, int R, int C, float epsilon,
                                              const struct device_dropout *dropout);
    /* dx += gradient through the norm; dweight, dbias += . */
    enum status (*layernorm_backward)(struct device *device, float *dx /* [R,C] */, float *dweight,
                                      float *dbias, const float *dout, const float *x,
                                      const float *weight, const float *mean, const float *rstd,
                                      int R, int C);

    /* out[R,N] = x[R,K] weight[N,K]^T + bias[N] (bias may be NULL). Rows of activations may lie
     * further apart than they are long: a stride of a power of two makes them share few lines of
     * the cache. */
    enum status (*linear_forward)(struct device *device, float *out, int out_stride, const float *x,
                                  int x_stride, const float *weight, const float *bias, int R,
                                  int K, int N);
    /* dx[R,K] = dout weight (dx may be NULL); dweight += dout^T x; dbias += column sums (may be
     * NULL). */
    enum status (*linear_backward)(struct device *device, float *dx, int dx_stride, float *dweight,
                                   float *dbias, const float *dout /* [R,N] */, int dout_stride,
                                   const float *x, int x_stride, const float *weight, int R, int K,
                                   int N);
    /* out[R,N] = gelu(x + bias), tanh form as Megatron's and GPT-2's gelu_new. The sum with the
     * bias is not kept: backward takes it again. All arrays of R rows have the same stride. */
    enum status (*gelu_forward)(struct device *device, float *out, const float *x /* [R,N] */,
                                int stride, const float *bias /* [N] */, int R, int N);
    /* dx = dout * gelu'(x + bias); dbias += column sums of dx; dx may be dout. */
    enum status (*gelu_backward)(struct device *device, float *dx /* [R,N] */, float *dbias,
                                 const float *dout /* [R,N] */, const float *x, int stride,
                                 const float *bias, int R, int N);

    /* Causal self-attention. qkv[B,T,H,3,D] (head by head, as Megatron's fused matrix), out
     * [B,T,H,D], scale 1/sqrt(D). `stats` [B,H,T] (log-sum-exp) is kept for backward. Dropout on
     * the probabilities is keyed by (global head head_offset + h, query, key). Query t of a sample
     * sees keys starts[t] .. t; `starts` NULL: all 0. */
    enum status (*attention_forward)(struct device *device, float *out, float *stats,
                                     const float *qkv, const int32_t *starts /* [B,T] or NULL */,
                                     int B, int T, int H, int D,
                                     const struct device_dropout *dropout);
    enum status (*attention_backward)(struct device *device, float *dqkv /* = */, const float *dout,
                                      const float *out, const float *stats, const float *qkv,
                                      const int32_t *starts, int B, int T, int H, int D,
                                      const struct device_dropout *dropout);

    /* Vocabulary-parallel softmax cross-entropy in the three steps between which TP reduces.
     * logits[R,V_part] (V_part is also the stride); labels are global ids; columns at or beyond
     * `valid` are padding and never enter. */
    enum status (*loss_max)(struct device *device, float *row_max /* [R] */, const float *logits,
                            int R, int V_part, int valid);
    /* sums[0,r] = sum exp(logit - max), sums[1,r] = logit of the label - max if it is here else 0;
     * logits = exp(logit - max). */
    enum status (*loss_sums)(struct device *device, float *sums /* [2,R] */, float *logits,
                             const float *row_max, const int32_t *labels, int R, int V_part,
                             int valid, int64_t vocab_begin);
    /* losses[r] = mask[r] * (log(sum) - label logit). With `want_gradient` the logits become the
     * gradient (softmax - onehot) * mask[r] * scale, padding columns 0. `mask` NULL: all ones. */
    enum status (*loss_finish)(struct device *device, float *losses /* [R] */, float *logits,
                               const float *sums, const int32_t *labels, const float *mask,
                               float scale, bool want_gradient, int R, int V_part, int valid,
                               int64_t vocab_begin);
    /* The three steps at once, for a vocabulary that is whole on this rank. Without
     * `want_gradient` the logits stay as they are. */
    enum status (*loss_whole)(struct device *device, float *losses /* [R] */, float *logits,
                              const int32_t *labels, const float *mask, float scale,
                              bool want_gradient, int R, int V_part, int valid);

    /* y += x; y *= a. */
    enum status (*add)(struct device *device, float *y, const float *x, size_t count);
    enum status (*scale)(struct device *device, float *y, float a, size_t count);
    /* The sum of squares in double, the same whatever the thread count. */
    enum status (*sum_of_squares)(struct device *device, const float *x, size_t count,
                                  double *out_sum);
    /* Decoupled weight decay, as torch.optim.AdamW and Megatron's fused Adam:
     *     p -= lr * wd * p;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
     *     p -= lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps),   g = grad * grad_scale */
    enum status (*adamw)(struct device *device, float *param, float *exp_avg, float *exp_avg_sq,
                         const float *grad, size_t count, const struct adamw_args *args);
};

/* `name` is "cpu"; thread_count 0: as many as the processors this process may use. A device belongs
 * to the thread that opened it (OpenMP's thread count is a property of the calling thread).
 * STATUS_UNSUPPORTED lists the devices there are. */
enum status device_open(const char *name, int thread_count, struct device **out_device)
    STATUS_MUST_CHECK;
void device_close(struct device **device);

#endif
