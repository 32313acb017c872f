/* NumPy's RandomState: the Mersenne Twister seeded by one integer, and its shuffle.
 *
 * Megatron shuffles its indices by numpy.random.RandomState(seed).shuffle; this draws the same
 * permutation. A stream belongs to one thread.
 */
#ifndef TRAIN_DATA_MT19937_H
#define TRAIN_DATA_MT19937_H

#include <stddef.h>
#include <stdint.h>

#define MT19937_WORDS 624

struct mt19937 {
    uint32_t words[MT19937_WORDS];
    int next; /* the first word not yet given out */
};

void mt19937_init(struct mt19937 *stream, uint32_t seed);
uint32_t mt19937_next(struct mt19937 *stream);
/* Permutes `values` (of int32 or uint32; count <= 2^32) as RandomState.shuffle does. */
void mt19937_shuffle(struct mt19937 *stream, uint32_t *values, size_t count);

#endif
