/* Hashes: XXH3 of bytes (chunks, files), and the layout-free hash of a training state.
 *
 * The state hash of a set of tensors is
 *     sum over tensors t, elements i of  bits(t[i]) * (mix64(id(t), i) mod p)   mod p,
 *     p = 2^61 - 1,
 * where i is the element's index in the row-major GLOBAL tensor, id(t) the XXH3-64 of the tensor's
 * name and mix64 the finalizer below. Sums of boxes add up to the tensor's whatever the cut, so
 * the same state has the same hash in every TP/PP/DP layout; boxes may be hashed anywhere, in any
 * order. hash_state_finish binds the step. A changed bit changes the hash for certain; two changed
 * bits cancel with chance about 2^-61.
 * mix64(id, i): z = id + (i + 1) * 0x9e3779b97f4a7c15, then splitmix64's finalizer
 * (z ^= z >> 30; z *= 0xbf58476d1ce4e5b9; z ^= z >> 27; z *= 0x94d049bb133111eb; z ^= z >> 31).
 */
#ifndef CKPT_BASE_HASH_H
#define CKPT_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_DIMS_MAX 4
#define HASH_TEXT_MAX 33 /* 128 bits in hexadecimal and a 0 */

struct hash128 {
    uint64_t high, low;
};

struct hash_stream; /* XXH3-128 of bytes given in pieces */

uint64_t hash_bytes64(const void *bytes, size_t count);        /* XXH3-64, seed 0 */
struct hash128 hash_bytes128(const void *bytes, size_t count); /* XXH3-128, seed 0 */
struct hash_stream *hash_stream_create(void);                  /* NULL: no memory */
void hash_stream_add(struct hash_stream *stream, const void *bytes, size_t count);
struct hash128 hash_stream_get(const struct hash_stream *stream);
void hash_stream_destroy(struct hash_stream *stream);
void hash128_format(struct hash128 hash, char out_text[HASH_TEXT_MAX]);
/* 0, or -1 when `text` is not 32 hexadecimal digits in lower case. */
int hash128_parse(const char *text, struct hash128 *out_hash);

/* The part of one box. `words` are the box's elements as unsigned 32-bit words (a float's bits),
 * row-major and contiguous. offset + extent <= shape in each of `dims` dimensions. Uses the
 * calling thread only; split the first dimension for more. */
uint64_t hash_state_box(const char *tensor_name, int dims, const uint64_t *shape,
                        const uint64_t *offset, const uint64_t *extent, const uint32_t *words);
uint64_t hash_state_add(uint64_t a, uint64_t b); /* mod p */
uint64_t hash_state_finish(uint64_t sum, uint64_t step);

#endif
