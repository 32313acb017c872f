/* Normal numbers for initial weights: a pure function of (seed, tensor name, global element), so
 * that every layout starts from the same weights.
 *
 * Element e takes word pair (e mod 4) / 2 of Philox counter e / 4 under a key of seed and name;
 * Box-Muller gives two normals a pair. Logarithm and cosine are our own, in double by + - * / and
 * sqrt alone, so that the bits depend on no libm.
 */
#ifndef TRAIN_MODEL_RNG_H
#define TRAIN_MODEL_RNG_H

#include <stddef.h>
#include <stdint.h>

/* out[i] = std * normal(element first + i). Any thread. */
void rng_fill_normal(uint64_t seed, const char *name, uint64_t first, size_t count, float std,
                     float *out);

double rng_log(double x); /* natural logarithm of a normal x > 0 */
void rng_cos_sin_turns(double turns /* 0 .. 1 */, double *out_cos, double *out_sin);

#endif
