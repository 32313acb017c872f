/* The Mersenne Twister of Matsumoto and Nishimura (1998); see mt19937.h. After it: sample_index. */
#include "train/data/mt19937.h"

#include "ckpt/base/status.h"

#define MIDDLE 397
#define MATRIX 0x9908b0dfu
#define UPPER 0x80000000u
#define LOWER 0x7fffffffu

void mt19937_init(struct mt19937 *stream, uint32_t seed)
{
    stream->words[0] = seed;
    for (uint32_t i = 1; i < MT19937_WORDS; i++) {
        uint32_t before = stream->words[i - 1];

        stream->words[i] = 1812433253u * (before ^ (before >> 30)) + i;
    }
    stream->next = MT19937_WORDS;
}

static void renew(struct mt19937 *stream)
{
    uint32_t *words = stream->words;

    for (int i = 0; i < MT19937_WORDS; i++) {
        uint32_t mixed = (words[i] & UPPER) | (words[(i + 1) % MT19937_WORDS] & LOWER);

        words[i] =
            words[(i + MIDDLE) % MT19937_WORDS] ^ (mixed >> 1) ^ ((mixed & 1) != 0 ? MATRIX : 0);
    }
    stream->next = 0;
}

uint32_t mt19937_next(struct mt19937 *stream)
{
    if (stream->next == MT19937_WORDS) {
        renew(stream);
    }
    uint32_t word = stream->words[stream->next++];
    word ^= word >> 11;
    word ^= (word << 7) & 0x9d2c5680u;
    word ^= (word << 15) & 0xefc60000u;
    return word ^ (word >> 18);
}

void mt19937_shuffle(struct mt19937 *stream, uint32_t *values, size_t count)
{
    CHECK(count == 0 || count - 1 <= UINT32_MAX);
    for (size_t i = count; i-- > 1;) {
        /* A uniform draw from 0 .. i: masked to i's bits, drawn again when above i. */
        uint32_t mask = UINT32_MAX >> __builtin_clz((uint32_t)i);
        uint32_t draw = mt19937_next(stream) & mask;

        while (draw > i) {
            draw = mt19937_next(stream) & mask;
        }
        uint32_t kept = values[i];
        values[i] = values[draw];
        values[draw] = kept;
    }
}
