/* A model's outermost fields and its normaliser's tables; see sentencepiece_check.h. */
#include "train/data/sentencepiece_check.h"

#include <stdbool.h>
#include <stdint.h>

enum wire { WIRE_VARINT = 0, WIRE_64_BITS = 1, WIRE_BYTES = 2, WIRE_32_BITS = 5 };

/* Fields of ModelProto, and of its two NormalizerSpec. */
enum model_field {
    FIELD_PIECES = 1,
    FIELD_TRAINER = 2,
    FIELD_NORMALIZER = 3,
    FIELD_DENORMALIZER = 5
};
enum normalizer_field { FIELD_CHARSMAP = 2 };

struct span {
    const unsigned char *at, *end;
};

struct field {
    uint64_t number;
    struct span bytes; /* of WIRE_BYTES, else empty */
};

static bool read_varint(struct span *span, uint64_t *out_value)
{
    *out_value = 0;
    for (int shift = 0; span->at < span->end && shift < 64; shift += 7) {
        unsigned char byte = *span->at++;

        *out_value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            return true;
        }
    }
    return false;
}

/* Takes a field off the beginning; false when there is no whole one. */
static bool read_field(struct span *span, struct field *out_field)
{
    uint64_t tag = 0, bytes = 0;

    *out_field = (struct field){0};
    if (!read_varint(span, &tag)) {
        return false;
    }
    out_field->number = tag >> 3;
    switch (tag & 7) {
    case WIRE_VARINT:
        return read_varint(span, &bytes);
    case WIRE_64_BITS:
        bytes = 8;
        break;
    case WIRE_32_BITS:
        bytes = 4;
        break;
    case WIRE_BYTES:
        if (!read_varint(span, &bytes)) {
            return false;
        }
        break;
    default:
        return false;
    }
    if (bytes > (uint64_t)(span->end - span->at)) {
        return false;
    }
    if ((tag & 7) == WIRE_BYTES) {
        out_field->bytes = (struct span){span->at, span->at + bytes};
    }
    span->at += bytes;
    return true;
}

static uint32_t read_u32(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* A unit: bit 31 says that the others are a value; else bits 0 to 7 are the label, bit 8 says that
 * a value follows, bit 9 that the offset, from bit 10 on, counts blocks. From unit i a walk goes on
 * in the block of 256 around i ^ offset, and finds the value at i ^ offset itself. */
static bool is_sound_trie(const unsigned char *units, uint64_t count, uint64_t text_bytes)
{
    for (uint64_t i = 0; i < count; i++) {
        uint32_t unit = read_u32(units + 4 * i);
        uint64_t next = i ^ (uint64_t)(unit >> 10) << ((unit & 1U << 9) >> 6);

        if ((unit & 1U << 31) != 0) {
            continue; /* no walk goes on from a value */
        }
        if ((next | 255) >= count) {
            return false;
        }
        if ((unit & 1U << 8) != 0 && (read_u32(units + 4 * next) & ~(1U << 31)) >= text_bytes) {
            return false;
        }
    }
    return count > 0;
}

/* u32 size of the trie, the trie, the texts, each with a 0 behind it. */
static bool is_sound_charsmap(struct span map)
{
    uint64_t bytes = (uint64_t)(map.end - map.at);

    if (bytes == 0) {
        return true; /* nothing is normalised */
    }
    if (bytes < 4) {
        return false;
    }
    uint64_t trie_bytes = read_u32(map.at);
    return trie_bytes % 4 == 0 && trie_bytes < bytes - 4 && map.end[-1] == 0 &&
           is_sound_trie(map.at + 4, trie_bytes / 4, bytes - 4 - trie_bytes);
}

static bool is_sound_normalizer(struct span spec)
{
    struct field field;

    while (spec.at < spec.end) {
        if (!read_field(&spec, &field) ||
            (field.number == FIELD_CHARSMAP && !is_sound_charsmap(field.bytes))) {
            return false;
        }
    }
    return true;
}

enum status sentencepiece_check(const char *path, const char *bytes, size_t count)
{
    const unsigned char *begin = (const unsigned char *)bytes;
    struct span rest = {begin, begin + count};
    struct field field;
    size_t pieces = 0;
    bool trainer = false, normalizer = false;

    while (rest.at < rest.end) {
        size_t at = (size_t)(rest.at - begin);

        if (!read_field(&rest, &field)) {
            return FAIL(STATUS_BAD_DATA,
                        "'%s' is no SentencePiece model, or only a part of one: there is no whole "
                        "field at byte %zu of %zu",
                        path, at, count);
        }
        pieces += field.number == FIELD_PIECES;
        trainer |= field.number == FIELD_TRAINER;
        normalizer |= field.number == FIELD_NORMALIZER;
        if ((field.number == FIELD_NORMALIZER || field.number == FIELD_DENORMALIZER) &&
            !is_sound_normalizer(field.bytes)) {
            return FAIL(STATUS_BAD_DATA,
                        "SentencePiece model '%s' is damaged: the tables of its normaliser, at "
                        "byte %zu, lead out of themselves",
                        path, at);
        }
    }
    if (pieces == 0 || !trainer || !normalizer) {
        return FAIL(STATUS_BAD_DATA,
                    "'%s' is no SentencePiece model, or only a part of one: its %zu bytes hold %zu "
                    "pieces, %s settings of the trainer, %s of the normaliser",
                    path, count, pieces, trainer ? "the" : "no", normalizer ? "those" : "none");
    }
    return STATUS_OK;
}
