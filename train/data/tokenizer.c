/* The choice of a tokenizer, the byte tokenizer, and what all kinds share; see tokenizer.h. */
#include "train/data/tokenizer.h"

#include <string.h>

#include "ckpt/base/mem.h"

#define BYTE_IDS 256

struct byte_tokenizer {
    struct tokenizer base;
    char pieces[BYTE_IDS];
};

enum status tokenizer_create_no_scratch(const struct tokenizer *tokenizer,
                                        struct tokenizer_scratch **out_scratch)
{
    (void)tokenizer;
    return mem_alloc(out_scratch, 0, 1);
}

void tokenizer_destroy_no_scratch(struct tokenizer_scratch *scratch)
{
    mem_free(&scratch);
}

static enum status byte_encode(const struct tokenizer *tokenizer, struct tokenizer_scratch *scratch,
                               const char *text, size_t bytes, struct token_buffer *out_tokens)
{
    enum status st = STATUS_OK;

    (void)tokenizer;
    (void)scratch;
    TRY(st,
        mem_grow((void **)&out_tokens->ids, &out_tokens->capacity, out_tokens->count + bytes,
                 sizeof *out_tokens->ids),
        done);
    for (size_t i = 0; i < bytes; i++) {
        out_tokens->ids[out_tokens->count++] = (unsigned char)text[i];
    }
done:
    return st;
}

static const char *byte_piece(const struct tokenizer *tokenizer, int32_t id, size_t *out_bytes)
{
    const struct byte_tokenizer *byte = (const struct byte_tokenizer *)tokenizer;

    *out_bytes = id == tokenizer->end_of_document ? 0 : 1;
    return &byte->pieces[id % BYTE_IDS];
}

static void byte_destroy(struct tokenizer *tokenizer)
{
    mem_free(&tokenizer);
}

static enum status byte_create(struct tokenizer **out_tokenizer)
{
    static const struct tokenizer_ops ops = {tokenizer_create_no_scratch,
                                             tokenizer_destroy_no_scratch, byte_encode, byte_piece,
                                             byte_destroy};
    enum status st = STATUS_OK;
    struct byte_tokenizer *tokenizer = NULL;

    TRY(st, mem_alloc(&tokenizer, 1, sizeof *tokenizer), done);
    tokenizer->base = (struct tokenizer){&ops, BYTE_IDS + 1, BYTE_IDS};
    for (int i = 0; i < BYTE_IDS; i++) {
        tokenizer->pieces[i] = (char)i;
    }
    *out_tokenizer = &tokenizer->base;
done:
    return st;
}

static bool is_named(const char *path)
{
    return path != NULL && *path != 0;
}

static bool is_sentencepiece(const char *type)
{
    return strcmp(type, "SentencePieceTokenizer") == 0 ||
           strcmp(type, "GPTSentencePieceTokenizer") == 0 || strcmp(type, "Llama2Tokenizer") == 0;
}

enum status tokenizer_create(const struct tokenizer_config *config,
                             struct tokenizer **out_tokenizer)
{
    *out_tokenizer = NULL;
    if (strcmp(config->type, "ByteTokenizer") == 0) {
        return byte_create(out_tokenizer);
    }
    if (is_sentencepiece(config->type)) {
        return is_named(config->model_path)
                   ? tokenizer_sentencepiece_create(config, out_tokenizer)
                   : FAIL(STATUS_USAGE, "%s needs --tokenizer-model (SentencePiece's .model)",
                          config->type);
    }
    if (strcmp(config->type, "GPT2BPETokenizer") != 0) {
        return FAIL(STATUS_USAGE, "unknown tokenizer '%s', wanted " TOKENIZER_TYPES, config->type);
    }
    if (!is_named(config->vocab_path) || !is_named(config->merges_path)) {
        return FAIL(STATUS_USAGE, "GPT2BPETokenizer needs --vocab-file (vocab.json) and "
                                  "--merge-file (merges.txt)");
    }
    return tokenizer_bpe_create(config->vocab_path, config->merges_path, out_tokenizer);
}

void tokenizer_destroy(struct tokenizer *tokenizer)
{
    if (tokenizer != NULL) {
        tokenizer->ops->destroy(tokenizer);
    }
}

enum status tokenizer_create_scratch(const struct tokenizer *tokenizer,
                                     struct tokenizer_scratch **out_scratch)
{
    *out_scratch = NULL;
    return tokenizer->ops->create_scratch(tokenizer, out_scratch);
}

void tokenizer_destroy_scratch(const struct tokenizer *tokenizer, struct tokenizer_scratch *scratch)
{
    if (scratch != NULL) {
        tokenizer->ops->destroy_scratch(scratch);
    }
}

enum status tokenizer_encode(const struct tokenizer *tokenizer, struct tokenizer_scratch *scratch,
                             const char *text, size_t bytes, struct token_buffer *out_tokens)
{
    return tokenizer->ops->encode(tokenizer, scratch, text, bytes, out_tokens);
}

const char *tokenizer_piece(const struct tokenizer *tokenizer, int32_t id, size_t *out_bytes)
{
    *out_bytes = 0;
    if (id < 0 || id >= tokenizer->vocab_size) {
        return NULL;
    }
    return tokenizer->ops->piece(tokenizer, id, out_bytes);
}

enum status token_buffer_append(struct token_buffer *buffer, const int32_t *ids, size_t count)
{
    enum status st = STATUS_OK;

    TRY(st,
        mem_grow((void **)&buffer->ids, &buffer->capacity, buffer->count + count,
                 sizeof *buffer->ids),
        done);
    if (count > 0) {
        memcpy(buffer->ids + buffer->count, ids, count * sizeof *ids);
    }
    buffer->count += count;
done:
    return st;
}

void token_buffer_deinit(struct token_buffer *buffer)
{
    mem_free(&buffer->ids);
    *buffer = (struct token_buffer){0};
}

/* Bytes of the valid character at `at`, of at most `left` bytes; 0 when there is none. */
static size_t utf8_length(const unsigned char *at, size_t left)
{
    /* Bounds of the second byte keep out overlong forms, surrogates and numbers too large. */
    unsigned char first = at[0], low = 0x80, high = 0xbf;
    size_t length = 0;

    if (first < 0x80) {
        return 1;
    }
    if (first >= 0xc2 && first <= 0xdf) {
        length = 2;
    } else if (first >= 0xe0 && first <= 0xef) {
        length = 3;
        low = first == 0xe0 ? 0xa0 : low;
        high = first == 0xed ? 0x9f : high;
    } else if (first >= 0xf0 && first <= 0xf4) {
        length = 4;
        low = first == 0xf0 ? 0x90 : low;
        high = first == 0xf4 ? 0x8f : high;
    }
    if (length == 0 || length > left || at[1] < low || at[1] > high) {
        return 0;
    }
    for (size_t i = 2; i < length; i++) {
        if (at[i] < 0x80 || at[i] > 0xbf) {
            return 0;
        }
    }
    return length;
}

size_t tokenizer_find_invalid_utf8(const char *text, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t done = 0;

    while (done < bytes) {
        uint64_t eight = 0;

        if (bytes - done >= sizeof eight) {
            memcpy(&eight, at + done, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                done += sizeof eight;
                continue;
            }
        }
        size_t length = utf8_length(at + done, bytes - done);
        if (length == 0) {
            break;
        }
        done += length;
    }
    return done;
}
