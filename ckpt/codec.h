/* The codec: chunks of a shard as bytes, raw or shuffled and compressed. The only user of zstd.
 *
 * Before it: writer (a chunk of a tensor's rows). After it: shard (a file). Encoded form: HDF5's
 * byte shuffle (filter 2: all first bytes of the elements, then all second bytes ...), then one
 * zstd frame with content size and checksum (filter 32015), so that any HDF5 reader with the two
 * filters decodes it and notices a flipped bit. float32 weights are close to random but for the
 * exponent byte, so match search gains nothing: the fastest level with Huffman-coded literals is
 * within 1 % of the best ratio.
 * Threads: a struct codec per thread.
 */
#ifndef CKPT_CODEC_H
#define CKPT_CODEC_H

#include <stddef.h>

#include "ckpt/base/status.h"

#define CODEC_ZSTD_LEVEL (-50)
#define CODEC_ZSTD_LEVEL_FALLBACK 1

struct codec; /* contexts and scratch memory of one thread */

enum status codec_create(struct codec **out_codec) STATUS_MUST_CHECK;
void codec_destroy(struct codec **codec);

/* Bytes that an encoded chunk may take at most. */
size_t codec_bound(size_t raw_bytes);
/* raw_bytes is a multiple of element_bytes; `out` has room for codec_bound(raw_bytes). */
enum status codec_encode(struct codec *codec, const void *raw, size_t raw_bytes,
                         size_t element_bytes, void *out, size_t *out_bytes) STATUS_MUST_CHECK;
/* Fills `out` with exactly raw_bytes; anything else is STATUS_CORRUPT. */
enum status codec_decode(struct codec *codec, const void *encoded, size_t encoded_bytes,
                         size_t element_bytes, void *out, size_t raw_bytes) STATUS_MUST_CHECK;

/* The zstd part alone, for HDF5's filter pipeline (which shuffles by itself). The content size of
 * a frame; 0 when it is none, or of a size that no chunk has. */
size_t codec_frame_bytes(const void *frame, size_t frame_bytes);
enum status codec_unframe(struct codec *codec, const void *frame, size_t frame_bytes, void *out,
                          size_t raw_bytes) STATUS_MUST_CHECK;

#endif
