/* Functions of one float that the compiler can turn into vectors; libm's cannot. Errors are below
 * 2e-7 relative to the exact value. */
#ifndef TRAIN_DEVICE_CPU_MATH_H
#define TRAIN_DEVICE_CPU_MATH_H

#include <stdint.h>
#include <string.h>

#include "train/device/device_cpu.h"

/* e^x for |x| up to 87; the ends are clamped (so no result is 0, infinite or subnormal); a NaN
 * stays one. x = k ln 2 + r, a polynomial in r (Cephes), and 2^k by its bits. */
CPU_INLINE float cpu_exp(float x)
{
    const float round = 12582912.0f; /* 1.5 * 2^23: adding it leaves an integer in the low bits */

    x = x < -87.0f ? -87.0f : x;
    x = x > 87.0f ? 87.0f : x;

    float k = x * 1.44269504088896341f + round;
    k -= round;
    float r = x - k * 0.693359375f;
    r -= k * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;

    uint32_t bits = ((uint32_t)(int32_t)k + 127u) << 23;
    float power;
    memcpy(&power, &bits, sizeof(power));
    return p * power;
}

/* gelu(x) = x s(x), s = 1 / (1 + exp(-2 z)), z = sqrt(2 / pi) (x + 0.044715 x^3): the tanh form,
 * since (1 + tanh z) / 2 = s. */
#define CPU_GELU_2A 1.5957691216057308f /* 2 sqrt(2 / pi) */
#define CPU_GELU_CUBE 0.044715f

CPU_INLINE float cpu_gelu(float x)
{
    return x / (1.0f + cpu_exp(-CPU_GELU_2A * (x + CPU_GELU_CUBE * x * x * x)));
}

CPU_INLINE float cpu_gelu_slope(float x)
{
    float s = 1.0f / (1.0f + cpu_exp(-CPU_GELU_2A * (x + CPU_GELU_CUBE * x * x * x)));
    float dz2 = CPU_GELU_2A * (1.0f + 3.0f * CPU_GELU_CUBE * x * x);

    return s + x * s * (1.0f - s) * dz2;
}

#endif
