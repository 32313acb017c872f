/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a counter and
 * a key give four 32-bit numbers. The one definition for initial weights (model/rng.c) and for
 * dropout masks (cpu_dropout.c), and for any further device.
 *
 * Dropout: the key is philox_key(seed, step, (layer, site), head); one row is a channel or key
 * index c = 0, 1, 2 ... in groups of PHILOX_ROW_GROUP. c takes word (c mod 64) / 16 of counter
 *     { c / 64 * 16 + c mod 16, position, sample low, sample high },
 * so that 16 counters side by side fill a group without a shuffle.
 */
#ifndef TRAIN_DEVICE_PHILOX_H
#define TRAIN_DEVICE_PHILOX_H

#include <stdint.h>

#define PHILOX_ROUNDS 10
#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u

#define PHILOX_LANES 16
#define PHILOX_ROW_GROUP (4 * PHILOX_LANES)

static inline void philox_4x32(const uint32_t counter[4], const uint32_t key[2],
                               uint32_t out_words[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];

    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c0;
        uint64_t p1 = (uint64_t)PHILOX_M1 * c2;

        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    out_words[0] = c0;
    out_words[1] = c1;
    out_words[2] = c2;
    out_words[3] = c3;
}

/* splitmix64's finalizer: one bit in changes half the bits out. */
static inline uint64_t philox_mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The key of one stream of a run: `a` and `b` say which. */
static inline void philox_key(uint64_t seed, uint64_t step, uint64_t a, uint64_t b,
                              uint32_t out_key[2])
{
    uint64_t z = philox_mix(philox_mix(philox_mix(philox_mix(seed) ^ step) ^ a) ^ b);

    out_key[0] = (uint32_t)z;
    out_key[1] = (uint32_t)(z >> 32);
}

#endif
