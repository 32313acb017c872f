/* What the files of the CPU device share: the device itself, its threads, its operations.
 *
 * An operation is two functions: a kernel over a part of the rows or elements, compiled several
 * times for different vector units (CPU_KERNEL), and the slot of the vtable, which shares the work
 * among the threads. Kernels hold no OpenMP region: an outlined region would lose the clone's
 * vector unit. Partial sums go by fixed blocks of rows (CPU_SUM_BLOCKS), not by thread, so that
 * only oneDNN's products may depend on the thread count.
 */
#ifndef TRAIN_DEVICE_DEVICE_CPU_H
#define TRAIN_DEVICE_DEVICE_CPU_H

#include "train/device/device.h"

/* Vector units by CPUID at load time. Sanitizers are initialised after the resolvers run, so they
 * get the plain version. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CPU_KERNEL __attribute__((noinline, target_clones("avx512f", "fma", "default")))
#else
#define CPU_KERNEL __attribute__((noinline))
#endif
#define CPU_INLINE static inline __attribute__((always_inline))

#define CPU_SUM_BLOCKS 32      /* partial sums of a gradient over rows */
#define CPU_PARALLEL_MIN 16384 /* fewer elements than this are not worth a second thread */

struct device_cpu {
    struct device base;
    int thread_count;
    void *workspace; /* of the running operation */
    size_t workspace_bytes;
};

struct cpu_range {
    size_t begin, end;
};

enum status device_cpu_open(int thread_count, struct device **out_device) STATUS_MUST_CHECK;

CPU_INLINE struct device_cpu *cpu_of(struct device *device)
{
    return (struct device_cpu *)device;
}

/* Memory for the running operation, contents undefined, valid until the next call. */
enum status cpu_workspace(struct device *device, size_t bytes, float **out) STATUS_MUST_CHECK;
/* Threads for an operation on `elements` numbers. */
int cpu_threads(const struct device *device, size_t elements);
/* Part `index` of `parts` of 0 .. count, cut at multiples of `align`. */
struct cpu_range cpu_share(size_t count, size_t align, int index, int parts);

/* cpu_dropout.c: factors[0 .. count) of one row are 0 or 1 / (1 - p). `head` is 0 for hidden
 * states. */
void cpu_dropout_row(float *factors, const struct device_dropout *dropout, uint64_t sample,
                     uint32_t head, uint32_t position, int count);
enum status cpu_dropout(struct device *device, float *out, const float *x, int R, int C,
                        const struct device_dropout *dropout);

/* cpu_embed.c */
enum status cpu_embed_forward(struct device *device, float *out, const int32_t *tokens,
                              const float *word, const float *position, const int32_t *starts,
                              int R, int T, int C, int64_t vocab_begin, int64_t vocab_end);
enum status cpu_embed_backward(struct device *device, float *dword, float *dposition,
                               const float *dout, const int32_t *tokens, const int32_t *starts,
                               int R, int T, int C, int64_t vocab_begin, int64_t vocab_end);

/* cpu_norm.c */
enum status cpu_layernorm_forward(struct device *device, float *out, float *mean, float *rstd,
                                  const float *x, const float *weight, const float *bias, int R,
                                  int C, float epsilon);
enum status cpu_residual_layernorm_forward(struct device *device, float *residual_out, float *out,
                                           float *mean, float *rstd, const float *residual,
                                           const float *x, const float *x_bias, const float *weight,
                                           const float *bias, int R, int C, float epsilon,
                                           const struct device_dropout *dropout);
enum status cpu_layernorm_backward(struct device *device, float *dx, float *dweight, float *dbias,
                                   const float *dout, const float *x, const float *weight,
                                   const float *mean, const float *rstd, int R, int C);

/* cpu_matmul.c: C[M,N] = alpha op(A) op(B) + beta C, row-major, op by 'N' or 'T'. */
enum status cpu_gemm(char op_a, char op_b, int M, int N, int K, float alpha, const float *a,
                     int a_stride, const float *b, int b_stride, float beta, float *c, int c_stride)
    STATUS_MUST_CHECK;
enum status cpu_linear_forward(struct device *device, float *out, int out_stride, const float *x,
                               int x_stride, const float *weight, const float *bias, int R, int K,
                               int N);
enum status cpu_linear_backward(struct device *device, float *dx, int dx_stride, float *dweight,
                                float *dbias, const float *dout, int dout_stride, const float *x,
                                int x_stride, const float *weight, int R, int K, int N);

/* cpu_attention.c */
enum status cpu_attention_forward(struct device *device, float *out, float *stats, const float *qkv,
                                  const int32_t *starts, int B, int T, int H, int D,
                                  const struct device_dropout *dropout);
enum status cpu_attention_backward(struct device *device, float *dqkv, const float *dout,
                                   const float *out, const float *stats, const float *qkv,
                                   const int32_t *starts, int B, int T, int H, int D,
                                   const struct device_dropout *dropout);

/* cpu_loss.c */
enum status cpu_loss_max(struct device *device, float *row_max, const float *logits, int R,
                         int V_part, int valid);
enum status cpu_loss_sums(struct device *device, float *sums, float *logits, const float *row_max,
                          const int32_t *labels, int R, int V_part, int valid, int64_t vocab_begin);
enum status cpu_loss_finish(struct device *device, float *losses, float *logits, const float *sums,
                            const int32_t *labels, const float *mask, float scale,
                            bool want_gradient, int R, int V_part, int valid, int64_t vocab_begin);
enum status cpu_loss_whole(struct device *device, float *losses, float *logits,
                           const int32_t *labels, const float *mask, float scale,
                           bool want_gradient, int R, int V_part, int valid);

/* cpu_pointwise.c */
enum status cpu_gelu_forward(struct device *device, float *out, const float *x, int stride,
                             const float *bias, int R, int N);
enum status cpu_gelu_backward(struct device *device, float *dx, float *dbias, const float *dout,
                              const float *x, int stride, const float *bias, int R, int N);
enum status cpu_add(struct device *device, float *y, const float *x, size_t count);
enum status cpu_scale(struct device *device, float *y, float a, size_t count);

/* cpu_optim.c */
enum status cpu_sum_of_squares(struct device *device, const float *x, size_t count,
                               double *out_sum);
enum status cpu_adamw(struct device *device, float *param, float *exp_avg, float *exp_avg_sq,
                      const float *grad, size_t count, const struct adamw_args *args);

#endif
