/* See rng.h. Compiled without contraction of a * b + c. */
#include "train/model/rng.h"

#include <math.h>
#include <string.h>

#include "ckpt/base/hash.h"
#include "train/device/philox.h"

#define LN2 0.69314718055994530942
#define TAU 6.28318530717958647693
#define INIT_STREAM 0x696e6974u /* "init": apart from every dropout stream */

/* x = 2^k m, m in [sqrt(1/2), sqrt(2)); ln m = 2 artanh t, t = (m - 1) / (m + 1), |t| < 0.1716. */
double rng_log(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof(bits));
    int k = (int)(bits >> 52) - 1023;
    bits = (bits & 0x000fffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &bits, sizeof(m));
    if (m > 1.41421356237309504880) {
        m *= 0.5;
        k++;
    }
    double t = (m - 1.0) / (m + 1.0);
    double t2 = t * t;
    double sum = 0.0;
    for (int n = 19; n >= 1; n -= 2) {
        sum = sum * t2 + 1.0 / n;
    }
    return (double)k * LN2 + 2.0 * t * sum;
}

/* A quarter turn at a time; Taylor series on [-pi/4, pi/4]. */
void rng_cos_sin_turns(double turns, double *out_cos, double *out_sin)
{
    int quarter = (int)(turns * 4.0 + 0.5);
    double r = (turns - quarter * 0.25) * TAU;
    double r2 = r * r;
    double c = 1.0, s = 1.0;

    for (int n = 18; n >= 2; n -= 2) {
        c = 1.0 - c * r2 / (double)(n * (n - 1));
        s = 1.0 - s * r2 / (double)(n * (n + 1));
    }
    s *= r;
    switch (quarter & 3) {
    case 0:
        *out_cos = c;
        *out_sin = s;
        break;
    case 1:
        *out_cos = -s;
        *out_sin = c;
        break;
    case 2:
        *out_cos = -c;
        *out_sin = -s;
        break;
    default:
        *out_cos = s;
        *out_sin = -c;
        break;
    }
}

/* Two words to two normals; a word of 0 is moved by half a step, so the logarithm exists. */
static void box_muller(uint32_t a, uint32_t b, double out_normals[2])
{
    double radius = sqrt(-2.0 * rng_log(((double)a + 0.5) * 0x1p-32));
    double c, s;

    rng_cos_sin_turns(((double)b + 0.5) * 0x1p-32, &c, &s);
    out_normals[0] = radius * c;
    out_normals[1] = radius * s;
}

void rng_fill_normal(uint64_t seed, const char *name, uint64_t first, size_t count, float std,
                     float *out)
{
    uint32_t key[2];

    philox_key(seed, INIT_STREAM, hash_bytes64(name, strlen(name)), 0, key);
    for (uint64_t block = first / 4; block * 4 < first + count; block++) {
        const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), 0, 0};
        uint32_t words[4];
        double normals[4];

        philox_4x32(counter, key, words);
        box_muller(words[0], words[1], normals);
        box_muller(words[2], words[3], normals + 2);
        for (uint64_t lane = 0; lane < 4; lane++) {
            uint64_t element = block * 4 + lane;

            if (element >= first && element < first + count) {
                out[element - first] = (float)((double)std * normals[lane]);
            }
        }
    }
}
