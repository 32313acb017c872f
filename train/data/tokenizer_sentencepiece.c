/* SentencePieceTokenizer, GPTSentencePieceTokenizer and Llama2Tokenizer: Megatron's rules over
 * sentencepiece_model; see tokenizer.h.
 *
 * Rules as in Megatron's megatron/core/tokenizers/text/libraries/sentencepiece_tokenizer.py; with
 * `legacy` as in its older megatron/training/tokenizer/tokenizer.py, which lets the spellings of
 * special tokens in a text become their ids.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/mem.h"
#include "train/data/sentencepiece_check.h"
#include "train/data/sentencepiece_model.h"
#include "train/data/tokenizer.h"

/* Models of 256,000 pieces have 4 MB. */
#define MODEL_BYTES_MAX ((size_t)64 << 20)
/* The library's memory for one text, 230 times as much, must fit. */
#define TEXT_BYTES_MAX ((size_t)64 << 20)
#define SPECIAL_TOKENS_MAX 7

struct special_token {
    const char *text; /* belongs to the model or is static */
    int32_t id;
};

struct sentencepiece_tokenizer {
    struct tokenizer base;
    struct sentencepiece_model *model;
    struct special_token specials[SPECIAL_TOKENS_MAX]; /* that a text may spell */
    int special_count;
    int32_t first;  /* the id that begins each text, or -1 */
    size_t *starts; /* [vocab_size + 1]: of each id's bytes in `bytes` */
    char *bytes;
};

static enum status load_model(const char *path, struct sentencepiece_model **out_model)
{
    enum status st = STATUS_OK;
    char *bytes = NULL;
    size_t count = 0;

    TRY(st, fs_read_file(fs_posix(), path, MODEL_BYTES_MAX, &bytes, &count), done);
    TRY(st, sentencepiece_check(path, bytes, count), done);
    TRY(st, sentencepiece_model_create(bytes, count, path, out_model), done);
done:
    mem_free(&bytes);
    return st;
}

/* Gives `text` the next id, unless it is a piece, and makes texts that spell it become that id. */
static int32_t add_special(struct sentencepiece_tokenizer *tokenizer, const char *text)
{
    int32_t id = sentencepiece_model_find(tokenizer->model, text);

    for (int i = 0; i < tokenizer->special_count; i++) {
        if (strcmp(tokenizer->specials[i].text, text) == 0) {
            return tokenizer->specials[i].id;
        }
    }
    if (id < 0) {
        id = (int32_t)tokenizer->base.vocab_size++;
    }
    tokenizer->specials[tokenizer->special_count++] = (struct special_token){text, id};
    return id;
}

/* Megatron's older SentencePieceTokenizer, in the order in which it gives ids. */
static void add_legacy_specials(struct sentencepiece_tokenizer *tokenizer)
{
    const struct sentencepiece_model *model = tokenizer->model;
    const struct {
        int32_t id;
        const char *otherwise;
    } of_model[] = {
        {sentencepiece_model_pad(model), "<PAD>"},
        {sentencepiece_model_bos(model), "<BOS>"},
        {sentencepiece_model_eos(model), "<EOS>"},
    };

    (void)add_special(tokenizer, "<CLS>");
    (void)add_special(tokenizer, "<SEP>");
    tokenizer->base.end_of_document = add_special(tokenizer, "<EOD>");
    (void)add_special(tokenizer, "<MASK>");
    for (size_t i = 0; i < sizeof of_model / sizeof of_model[0]; i++) {
        (void)add_special(tokenizer, of_model[i].id < 0
                                         ? of_model[i].otherwise
                                         : sentencepiece_model_piece(model, of_model[i].id));
    }
}

static enum status apply_type(struct sentencepiece_tokenizer *tokenizer,
                              const struct tokenizer_config *config)
{
    tokenizer->base.vocab_size = sentencepiece_model_count(tokenizer->model);
    tokenizer->base.end_of_document = sentencepiece_model_eos(tokenizer->model);
    tokenizer->first = -1;
    if (config->legacy && strcmp(config->type, "SentencePieceTokenizer") == 0) {
        add_legacy_specials(tokenizer);
    }
    if (config->legacy && strcmp(config->type, "Llama2Tokenizer") == 0) {
        tokenizer->first = sentencepiece_model_bos(tokenizer->model);
        if (tokenizer->first < 0) {
            return FAIL(STATUS_BAD_DATA,
                        "Llama2Tokenizer with --legacy-tokenizer begins each text with the id that "
                        "begins a sentence, and SentencePiece model '%s' has none",
                        config->model_path);
        }
    }
    return STATUS_OK;
}

/* Writes the bytes that a piece stands for, never more than its spelling has; returns how many. */
static size_t spell_piece(const struct sentencepiece_model *model, int32_t id, char *out_bytes)
{
    static const char space[] = "\xe2\x96\x81";
    const char *piece = sentencepiece_model_piece(model, id);
    size_t count = 0;
    unsigned byte = 0;

    switch (sentencepiece_model_kind(model, id)) {
    case SENTENCEPIECE_CONTROL:
        return 0;
    case SENTENCEPIECE_BYTE:
        out_bytes[0] = sscanf(piece, "<0x%2X>", &byte) == 1 ? (char)byte : 0;
        return 1;
    case SENTENCEPIECE_TEXT:
    case SENTENCEPIECE_UNKNOWN:
        break;
    }
    while (*piece != 0) {
        bool is_space = strncmp(piece, space, sizeof space - 1) == 0;

        out_bytes[count++] = is_space ? ' ' : *piece;
        piece += is_space ? sizeof space - 1 : 1;
    }
    return count;
}

/* The text of each id, for tokenizer_piece; special tokens that the model lacks have none. */
static enum status fill_pieces(struct sentencepiece_tokenizer *tokenizer)
{
    enum status st = STATUS_OK;
    int32_t count = sentencepiece_model_count(tokenizer->model);
    size_t room = 0, used = 0;

    for (int32_t id = 0; id < count; id++) {
        room += strlen(sentencepiece_model_piece(tokenizer->model, id));
    }
    TRY(st, mem_alloc(&tokenizer->bytes, room, 1), done);
    TRY(st,
        mem_alloc(&tokenizer->starts, (size_t)tokenizer->base.vocab_size + 1,
                  sizeof *tokenizer->starts),
        done);
    for (int32_t id = 0; id < tokenizer->base.vocab_size; id++) {
        tokenizer->starts[id] = used;
        used += id < count ? spell_piece(tokenizer->model, id, tokenizer->bytes + used) : 0;
    }
    tokenizer->starts[tokenizer->base.vocab_size] = used;
done:
    return st;
}

/* The first special token from `at` on, the first of the list where two begin alike. `next` holds
 * where each was seen last (NULL: nowhere in the rest), so that a text is searched once. */
static const struct special_token *find_special(const struct sentencepiece_tokenizer *tokenizer,
                                                const char *at, const char *end,
                                                const char *next[SPECIAL_TOKENS_MAX],
                                                const char **out_found)
{
    const struct special_token *first = NULL;

    for (int i = 0; i < tokenizer->special_count; i++) {
        const struct special_token *special = &tokenizer->specials[i];

        if (next[i] != NULL && next[i] < at) {
            next[i] = memmem(at, (size_t)(end - at), special->text, strlen(special->text));
        }
        if (next[i] != NULL && (first == NULL || next[i] < *out_found)) {
            first = special;
            *out_found = next[i];
        }
    }
    return first;
}

static enum status sentencepiece_encode(const struct tokenizer *base,
                                        struct tokenizer_scratch *scratch, const char *text,
                                        size_t bytes, struct token_buffer *out_tokens)
{
    const struct sentencepiece_tokenizer *tokenizer = (const struct sentencepiece_tokenizer *)base;
    const struct special_token *special = NULL;
    const char *at = text, *end = text + bytes, *found = NULL;
    const char *next[SPECIAL_TOKENS_MAX];
    enum status st = STATUS_OK;

    (void)scratch;
    if (bytes > TEXT_BYTES_MAX) {
        return FAIL(STATUS_BAD_DATA,
                    "text of %zu bytes is longer than %zu, the most for a SentencePiece model; cut "
                    "the document",
                    bytes, TEXT_BYTES_MAX);
    }
    if (tokenizer->first >= 0) {
        TRY(st, token_buffer_append(out_tokens, &tokenizer->first, 1), done);
    }
    for (int i = 0; i < tokenizer->special_count; i++) {
        const char *piece = tokenizer->specials[i].text;

        next[i] = memmem(text, bytes, piece, strlen(piece));
    }
    while ((special = find_special(tokenizer, at, end, next, &found)) != NULL) {
        TRY(st, sentencepiece_model_encode(tokenizer->model, at, (size_t)(found - at), out_tokens),
            done);
        TRY(st, token_buffer_append(out_tokens, &special->id, 1), done);
        at = found + strlen(special->text);
    }
    TRY(st, sentencepiece_model_encode(tokenizer->model, at, (size_t)(end - at), out_tokens), done);
done:
    return st;
}

static const char *sentencepiece_piece(const struct tokenizer *base, int32_t id, size_t *out_bytes)
{
    const struct sentencepiece_tokenizer *tokenizer = (const struct sentencepiece_tokenizer *)base;

    *out_bytes = tokenizer->starts[id + 1] - tokenizer->starts[id];
    return tokenizer->bytes + tokenizer->starts[id];
}

static void sentencepiece_destroy(struct tokenizer *base)
{
    struct sentencepiece_tokenizer *tokenizer = (struct sentencepiece_tokenizer *)base;

    sentencepiece_model_destroy(tokenizer->model);
    mem_free(&tokenizer->starts);
    mem_free(&tokenizer->bytes);
    mem_free(&tokenizer);
}

enum status tokenizer_sentencepiece_create(const struct tokenizer_config *config,
                                           struct tokenizer **out_tokenizer)
{
    static const struct tokenizer_ops ops = {tokenizer_create_no_scratch,
                                             tokenizer_destroy_no_scratch, sentencepiece_encode,
                                             sentencepiece_piece, sentencepiece_destroy};
    enum status st = STATUS_OK;
    struct sentencepiece_tokenizer *tokenizer = NULL;

    TRY(st, mem_alloc(&tokenizer, 1, sizeof *tokenizer), done);
    tokenizer->base.ops = &ops;
    TRY(st, load_model(config->model_path, &tokenizer->model), done);
    TRY(st, apply_type(tokenizer, config), done);
    TRY(st, fill_pieces(tokenizer), done);
    *out_tokenizer = &tokenizer->base;
done:
    if (st != STATUS_OK && tokenizer != NULL) {
        sentencepiece_destroy(&tokenizer->base);
    }
    return st;
}
