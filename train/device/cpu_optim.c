/* What the optimizer needs: the norm's sum of squares, and AdamW in one pass over memory. */
#include <math.h>
#include <omp.h>

#include "train/device/device_cpu.h"

#define SQUARES_BLOCK 65536 /* elements of one partial sum, whatever the thread count */

CPU_KERNEL static double sum_block(const float *x, size_t count)
{
    double sum = 0.0;

#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < count; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    return sum;
}

enum status cpu_sum_of_squares(struct device *device, const float *x, size_t count, double *out_sum)
{
    int threads = cpu_threads(device, count);
    size_t blocks = (count + SQUARES_BLOCK - 1) / SQUARES_BLOCK;
    float *memory = NULL;
    double sum = 0.0;
    enum status st = STATUS_OK;

    TRY(st, cpu_workspace(device, blocks * sizeof(double), &memory), done);
    double *partial = (double *)(void *)memory;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (size_t block = 0; block < blocks; block++) {
        size_t begin = block * SQUARES_BLOCK;
        size_t left = count - begin;
        partial[block] = sum_block(x + begin, left < SQUARES_BLOCK ? left : SQUARES_BLOCK);
    }
    for (size_t block = 0; block < blocks; block++) {
        sum += partial[block];
    }
    *out_sum = sum;
done:
    return st;
}

/* The step's constants, folded as torch folds them. */
struct adamw_step {
    float keep; /* 1 - lr * weight decay */
    float beta1, beta2;
    float step_size;         /* lr / (1 - beta1^t) */
    float rsqrt_correction2; /* 1 / sqrt(1 - beta2^t) */
    float epsilon;
    float grad_scale;
};

CPU_KERNEL static void adamw_part(float *restrict param, float *restrict exp_avg,
                                  float *restrict exp_avg_sq, const float *restrict grad,
                                  size_t count, const struct adamw_step *step)
{
    const struct adamw_step s = *step;

#pragma omp simd
    for (size_t i = 0; i < count; i++) {
        float g = grad[i] * s.grad_scale;
        float m = exp_avg[i] + (1.0f - s.beta1) * (g - exp_avg[i]);
        float v = s.beta2 * exp_avg_sq[i] + (1.0f - s.beta2) * g * g;

        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        param[i] =
            param[i] * s.keep - s.step_size * m / (sqrtf(v) * s.rsqrt_correction2 + s.epsilon);
    }
}

/* base^n by squaring: no libm, so the same bits everywhere. */
static double power(double base, int64_t n)
{
    double result = 1.0;

    for (; n > 0; n >>= 1) {
        if (n & 1) {
            result *= base;
        }
        base *= base;
    }
    return result;
}

enum status cpu_adamw(struct device *device, float *param, float *exp_avg, float *exp_avg_sq,
                      const float *grad, size_t count, const struct adamw_args *args)
{
    int threads = cpu_threads(device, count);
    double correction1 = 1.0 - power((double)args->beta1, args->step);
    double correction2 = 1.0 - power((double)args->beta2, args->step);
    struct adamw_step step = {
        .keep = (float)(1.0 - (double)args->learning_rate * (double)args->weight_decay),
        .beta1 = args->beta1,
        .beta2 = args->beta2,
        .step_size = (float)((double)args->learning_rate / correction1),
        .rsqrt_correction2 = (float)(1.0 / sqrt(correction2)),
        .epsilon = args->epsilon,
        .grad_scale = args->grad_scale,
    };

    CHECK(args->step >= 1);
#pragma omp parallel num_threads(threads)
    {
        struct cpu_range part = cpu_share(count, 16, omp_get_thread_num(), omp_get_num_threads());
        adamw_part(param + part.begin, exp_avg + part.begin, exp_avg_sq + part.begin,
                   grad + part.begin, part.end - part.begin, &step);
    }
    return STATUS_OK;
}
