/* Claims of codec.h: what goes in comes out, and what is damaged does not. */
#include "ckpt/codec.h"

#include <stdint.h>
#include <string.h>
#include <zstd.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "tests/unit/meta/meta_support.h"

#define BYTES_MAX ((size_t)3 << 20)

static void quiet(void)
{
    log_init(LOG_LEVEL_ERROR, "");
}

TestSuite(codec, .init = quiet);

enum content { CONTENT_RANDOM, CONTENT_CONSTANT, CONTENT_WEIGHTS, CONTENT_COUNT };

static void fill(unsigned char *raw, size_t bytes, enum content content, uint64_t *random)
{
    for (size_t i = 0; i < bytes; i++) {
        raw[i] = content == CONTENT_CONSTANT ? 0x3c : (unsigned char)support_random(random);
    }
    for (size_t i = 3; content == CONTENT_WEIGHTS && i < bytes; i += 4) {
        raw[i] = (unsigned char)(0x3c + (raw[i] & 0x81)); /* sign and exponent */
    }
}

/* Encodes and decodes; gives the frame, freed by mem_free. */
static unsigned char *round_trip(struct codec *codec, const unsigned char *raw, size_t bytes,
                                 size_t element, size_t *out_bytes)
{
    unsigned char *frame = NULL, *back = NULL;

    assert_ok(mem_alloc(&frame, codec_bound(bytes), 1));
    assert_ok(mem_alloc(&back, bytes, 1));
    assert_ok(codec_encode(codec, raw, bytes, element, frame, out_bytes));
    cr_assert(*out_bytes <= codec_bound(bytes));
    assert_ok(codec_decode(codec, frame, *out_bytes, element, back, bytes));
    cr_assert(memcmp(raw, back, bytes) == 0, "%zu bytes of elements of %zu", bytes, element);
    mem_free(&back);
    return frame;
}

Test(codec, every_content_size_and_element_comes_back_bit_for_bit)
{
    static const size_t counts[] = {1, 2, 3, 17, 4095, 65536, 262145};
    static const size_t elements[] = {1, 2, 4, 8};
    uint64_t random = (uint64_t)clock_wall_ns();
    struct codec *codec = NULL;
    unsigned char *raw = NULL;
    size_t encoded;

    cr_log_info("seed %llu", (unsigned long long)random);
    assert_ok(mem_alloc(&raw, BYTES_MAX, 1));
    assert_ok(codec_create(&codec));
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        for (size_t e = 0; e < sizeof elements / sizeof *elements; e++) {
            for (int content = 0; content < CONTENT_COUNT; content++) {
                fill(raw, counts[c] * elements[e], (enum content)content, &random);
                unsigned char *frame =
                    round_trip(codec, raw, counts[c] * elements[e], elements[e], &encoded);
                mem_free(&frame);
            }
        }
    }
    codec_destroy(&codec);
    mem_free(&raw);
}

Test(codec, weights_shrink_and_constants_shrink_much_more)
{
    uint64_t random = 1;
    struct codec *codec = NULL;
    unsigned char *raw = NULL;
    size_t weights, constants;

    assert_ok(mem_alloc(&raw, BYTES_MAX, 1));
    assert_ok(codec_create(&codec));
    fill(raw, BYTES_MAX, CONTENT_WEIGHTS, &random);
    unsigned char *frame = round_trip(codec, raw, BYTES_MAX, 4, &weights);
    mem_free(&frame);
    fill(raw, BYTES_MAX, CONTENT_CONSTANT, &random);
    frame = round_trip(codec, raw, BYTES_MAX, 4, &constants);
    mem_free(&frame);
    cr_assert(weights < BYTES_MAX * 85 / 100, "%zu of %zu", weights, BYTES_MAX);
    cr_assert(constants < BYTES_MAX / 100, "%zu of %zu", constants, BYTES_MAX);
    codec_destroy(&codec);
    mem_free(&raw);
}

/* Bit 2 of the frame header's descriptor says that a checksum follows the blocks (RFC 8878). */
Test(codec, a_frame_is_the_only_one_and_has_content_size_and_checksum)
{
    uint64_t random = 2;
    struct codec *codec = NULL;
    unsigned char raw[4096];
    size_t encoded;

    assert_ok(codec_create(&codec));
    fill(raw, sizeof raw, CONTENT_WEIGHTS, &random);
    unsigned char *frame = round_trip(codec, raw, sizeof raw, 4, &encoded);
    cr_assert(codec_frame_bytes(frame, encoded) == sizeof raw);
    cr_assert((frame[4] & 4) != 0);
    cr_assert(ZSTD_findFrameCompressedSize(frame, encoded) == encoded);
    cr_assert(codec_frame_bytes(raw, sizeof raw) == 0);
    mem_free(&frame);
    codec_destroy(&codec);
}

Test(codec, a_damaged_cut_or_foreign_frame_is_refused)
{
    uint64_t random = (uint64_t)clock_wall_ns();
    struct codec *codec = NULL;
    unsigned char raw[8192], back[sizeof raw + 4];
    size_t encoded;

    cr_log_info("seed %llu", (unsigned long long)random);
    assert_ok(codec_create(&codec));
    fill(raw, sizeof raw, CONTENT_WEIGHTS, &random);
    unsigned char *frame = round_trip(codec, raw, sizeof raw, 4, &encoded);
    for (int i = 0; i < 2000; i++) {
        size_t at = support_random(&random) % encoded;
        unsigned char bit = (unsigned char)(1 << support_random(&random) % 8);
        frame[at] ^= bit;
        enum status st = codec_decode(codec, frame, encoded, 4, back, sizeof raw);
        /* Some bits of the header say nothing about the content: then it must be right. */
        cr_assert(st == STATUS_CORRUPT || (st == STATUS_OK && memcmp(raw, back, sizeof raw) == 0),
                  "bit %d of byte %zu", bit, at);
        frame[at] ^= bit;
    }
    for (size_t bytes = 0; bytes < encoded; bytes += 1 + bytes / 8) {
        assert_status(codec_decode(codec, frame, bytes, 4, back, sizeof raw), STATUS_CORRUPT);
    }
    assert_status(codec_decode(codec, frame, encoded, 4, back, sizeof raw - 4), STATUS_CORRUPT);
    assert_status(codec_decode(codec, frame, encoded, 4, back, sizeof raw + 4), STATUS_CORRUPT);
    assert_status(codec_decode(codec, raw, sizeof raw, 4, back, sizeof raw), STATUS_CORRUPT);
    assert_ok(codec_decode(codec, frame, encoded, 4, back, sizeof raw));
    mem_free(&frame);
    codec_destroy(&codec);
}

Test(codec, every_allocation_may_fail)
{
    unsigned char raw[256] = {0}, frame[1024];
    size_t encoded;
    int failures = 0;

    for (uint64_t n = 1; n < 10; n++) {
        struct codec *codec = NULL;
        mem_fail_at(n);
        enum status st = codec_create(&codec);
        st = st == STATUS_OK ? codec_encode(codec, raw, sizeof raw, 4, frame, &encoded) : st;
        mem_fail_at(0);
        cr_assert(st == STATUS_OK || st == STATUS_NO_MEMORY);
        failures += st == STATUS_NO_MEMORY;
        codec_destroy(&codec);
    }
    cr_assert(failures == 2);
}
