/* Shuffle and zstd; see codec.h. */
#include "ckpt/codec.h"

#include <stdint.h>
#include <string.h>

#define ZSTD_STATIC_LINKING_ONLY /* for the literals' mode */
#include <zstd.h>

#include "ckpt/base/mem.h"

#define CHUNK_BYTES_MAX ((size_t)1 << 31)

struct codec {
    ZSTD_CCtx *compress;
    ZSTD_DCtx *decompress;
    unsigned char *scratch;
    size_t scratch_bytes;
};

static enum status fail_zstd(const char *what, size_t code)
{
    return FAIL(STATUS_FAILED, "cannot %s: %s", what, ZSTD_getErrorName(code));
}

/* The literals' mode is an experimental parameter: a library may refuse it. Level 1 has the same
 * ratio at two thirds of the speed. */
static enum status set_level(ZSTD_CCtx *context)
{
    size_t refused =
        ZSTD_CCtx_setParameter(context, ZSTD_c_literalCompressionMode, (int)ZSTD_lcm_huffman);
    int level = ZSTD_isError(refused) ? CODEC_ZSTD_LEVEL_FALLBACK : CODEC_ZSTD_LEVEL;
    size_t code = ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);

    if (!ZSTD_isError(code)) {
        code = ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    }
    return ZSTD_isError(code) ? fail_zstd("set up zstd", code) : STATUS_OK;
}

enum status codec_create(struct codec **out_codec)
{
    enum status st = STATUS_OK;
    struct codec *codec = NULL;

    *out_codec = NULL;
    TRY(st, mem_alloc(&codec, 1, sizeof *codec), done);
    codec->compress = ZSTD_createCCtx();
    codec->decompress = ZSTD_createDCtx();
    if (codec->compress == NULL || codec->decompress == NULL) {
        st = FAIL(STATUS_NO_MEMORY, "cannot allocate a zstd context");
        goto done;
    }
    TRY(st, set_level(codec->compress), done);
    *out_codec = codec;
    codec = NULL;
done:
    codec_destroy(&codec);
    return st;
}

void codec_destroy(struct codec **codec)
{
    if (*codec != NULL) {
        (void)ZSTD_freeCCtx((*codec)->compress);
        (void)ZSTD_freeDCtx((*codec)->decompress);
        mem_free(&(*codec)->scratch);
        mem_free(codec);
    }
}

size_t codec_bound(size_t raw_bytes)
{
    return ZSTD_compressBound(raw_bytes);
}

/* Four-byte elements are nearly all there are; the constant stride lets the compiler vectorise. */
static void shuffle(unsigned char *to, const unsigned char *from, size_t count, size_t size)
{
    if (size == 4) {
        unsigned char *b0 = to, *b1 = to + count, *b2 = to + 2 * count, *b3 = to + 3 * count;
        for (size_t i = 0; i < count; i++) {
            uint32_t word;
            memcpy(&word, from + 4 * i, sizeof word);
            b0[i] = (unsigned char)word;
            b1[i] = (unsigned char)(word >> 8);
            b2[i] = (unsigned char)(word >> 16);
            b3[i] = (unsigned char)(word >> 24);
        }
        return;
    }
    for (size_t b = 0; b < size; b++) {
        for (size_t i = 0; i < count; i++) {
            to[b * count + i] = from[i * size + b];
        }
    }
}

static void unshuffle(unsigned char *to, const unsigned char *from, size_t count, size_t size)
{
    if (size == 4) {
        const unsigned char *b0 = from, *b1 = from + count, *b2 = from + 2 * count,
                            *b3 = from + 3 * count;
        for (size_t i = 0; i < count; i++) {
            uint32_t word = (uint32_t)b0[i] | (uint32_t)b1[i] << 8 | (uint32_t)b2[i] << 16 |
                            (uint32_t)b3[i] << 24;
            memcpy(to + 4 * i, &word, sizeof word);
        }
        return;
    }
    for (size_t b = 0; b < size; b++) {
        for (size_t i = 0; i < count; i++) {
            to[i * size + b] = from[b * count + i];
        }
    }
}

enum status codec_encode(struct codec *codec, const void *raw, size_t raw_bytes,
                         size_t element_bytes, void *out, size_t *out_bytes)
{
    enum status st = STATUS_OK;

    CHECK(raw_bytes % element_bytes == 0 && raw_bytes <= CHUNK_BYTES_MAX);
    TRY(st, mem_reserve((void **)&codec->scratch, &codec->scratch_bytes, raw_bytes), done);
    shuffle(codec->scratch, raw, raw_bytes / element_bytes, element_bytes);
    size_t code =
        ZSTD_compress2(codec->compress, out, codec_bound(raw_bytes), codec->scratch, raw_bytes);
    if (ZSTD_isError(code)) {
        return fail_zstd("compress a chunk", code);
    }
    *out_bytes = code;
done:
    return st;
}

size_t codec_frame_bytes(const void *frame, size_t frame_bytes)
{
    unsigned long long size = ZSTD_getFrameContentSize(frame, frame_bytes);

    if (size == ZSTD_CONTENTSIZE_UNKNOWN || size == ZSTD_CONTENTSIZE_ERROR ||
        size > CHUNK_BYTES_MAX) {
        return 0;
    }
    return (size_t)size;
}

enum status codec_unframe(struct codec *codec, const void *frame, size_t frame_bytes, void *out,
                          size_t raw_bytes)
{
    size_t code = ZSTD_decompressDCtx(codec->decompress, out, raw_bytes, frame, frame_bytes);

    if (ZSTD_isError(code)) {
        return FAIL(STATUS_CORRUPT, "a zstd frame is damaged: %s", ZSTD_getErrorName(code));
    }
    if (code != raw_bytes) {
        return FAIL(STATUS_CORRUPT, "a zstd frame holds %zu bytes, not %zu", code, raw_bytes);
    }
    return STATUS_OK;
}

enum status codec_decode(struct codec *codec, const void *encoded, size_t encoded_bytes,
                         size_t element_bytes, void *out, size_t raw_bytes)
{
    enum status st = STATUS_OK;

    CHECK(raw_bytes % element_bytes == 0);
    TRY(st, mem_reserve((void **)&codec->scratch, &codec->scratch_bytes, raw_bytes), done);
    TRY(st, codec_unframe(codec, encoded, encoded_bytes, codec->scratch, raw_bytes), done);
    unshuffle(out, codec->scratch, raw_bytes / element_bytes, element_bytes);
done:
    return st;
}
