/* Tokenizers: text to token ids and back, one vtable for every kind.
 *
 * Before it: preprocess, `holdfast sample`. After it: token_file, the model's embedding.
 *
 * ByteTokenizer: ids 0 .. 255 are the bytes, 256 ends a document; needs no files, takes any bytes.
 * GPT2BPETokenizer: OpenAI's byte-level BPE from vocab.json (encoder.json) and merges.txt
 * (vocab.bpe). "<|endoftext|>" ends a document, and where it stands in a text it becomes that id
 * too, as in the peers (transformers, tiktoken with special tokens allowed): a text can cut its
 * own document. Texts must be valid UTF-8 (tokenizer_find_invalid_utf8).
 * SentencePieceTokenizer, GPTSentencePieceTokenizer, Llama2Tokenizer: a SentencePiece ".model". In
 * today's Megatron they are one and the same: the ids are the pieces, the model's end of sentence
 * ends a document, and <s> in a text is text. Its releases of before 0.14 differed, and so does
 * `legacy`: SentencePieceTokenizer then adds <CLS>, <SEP>, <EOD>, <MASK>, <PAD> and what else the
 * model lacks behind its pieces, ends documents with <EOD> and takes these spellings in a text for
 * the ids; Llama2Tokenizer begins each text with the model's begin of sentence.
 *
 * Threads: a tokenizer is read-only once created; each thread has its own scratch.
 */
#ifndef TRAIN_DATA_TOKENIZER_H
#define TRAIN_DATA_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"

/* "--tokenizer-type" choices, as an option table writes them. */
#define TOKENIZER_TYPES                                                                            \
    "ByteTokenizer|GPT2BPETokenizer|SentencePieceTokenizer|GPTSentencePieceTokenizer|"             \
    "Llama2Tokenizer"

struct token_buffer { /* grows; zeroed is empty */
    int32_t *ids;
    size_t count, capacity;
};

struct tokenizer;
struct tokenizer_scratch; /* one thread's working memory and cache */

struct tokenizer_ops {
    enum status (*create_scratch)(const struct tokenizer *tokenizer,
                                  struct tokenizer_scratch **out_scratch);
    void (*destroy_scratch)(struct tokenizer_scratch *scratch);
    enum status (*encode)(const struct tokenizer *tokenizer, struct tokenizer_scratch *scratch,
                          const char *text, size_t bytes, struct token_buffer *out_tokens);
    const char *(*piece)(const struct tokenizer *tokenizer, int32_t id, size_t *out_bytes);
    void (*destroy)(struct tokenizer *tokenizer);
};

struct tokenizer { /* the first member of each kind */
    const struct tokenizer_ops *ops;
    int64_t vocab_size;      /* ids are 0 .. vocab_size - 1 */
    int32_t end_of_document; /* -1: the model has no piece for it */
};

struct tokenizer_config {
    const char *type;       /* one of TOKENIZER_TYPES */
    const char *vocab_path; /* these two for GPT2BPETokenizer */
    const char *merges_path;
    const char *model_path; /* these two for the types of SentencePiece */
    bool legacy;
};

/* Another type is STATUS_USAGE; so are missing file names of a type that needs them (NULL or "").
 * Files that are no such vocabulary are STATUS_BAD_DATA and named. */
enum status tokenizer_create(const struct tokenizer_config *config,
                             struct tokenizer **out_tokenizer) STATUS_MUST_CHECK;
void tokenizer_destroy(struct tokenizer *tokenizer); /* takes NULL */

enum status tokenizer_create_scratch(const struct tokenizer *tokenizer,
                                     struct tokenizer_scratch **out_scratch) STATUS_MUST_CHECK;
void tokenizer_destroy_scratch(const struct tokenizer *tokenizer,
                               struct tokenizer_scratch *scratch); /* takes NULL */
/* Appends the ids of `text`; no end of document is added. */
enum status tokenizer_encode(const struct tokenizer *tokenizer, struct tokenizer_scratch *scratch,
                             const char *text, size_t bytes, struct token_buffer *out_tokens)
    STATUS_MUST_CHECK;
/* The bytes of one id (maybe a part of a character, none for a mark); NULL for an id outside the
 * vocabulary. They belong to the tokenizer. */
const char *tokenizer_piece(const struct tokenizer *tokenizer, int32_t id, size_t *out_bytes);

enum status token_buffer_append(struct token_buffer *buffer, const int32_t *ids, size_t count)
    STATUS_MUST_CHECK;
void token_buffer_deinit(struct token_buffer *buffer);

/* The offset of the first byte that is not UTF-8 (overlong forms, surrogates and numbers above
 * U+10FFFF are not); `bytes` when all is well. */
size_t tokenizer_find_invalid_utf8(const char *text, size_t bytes);

/* Used by tokenizer_create only. */
enum status tokenizer_bpe_create(const char *vocab_path, const char *merges_path,
                                 struct tokenizer **out_tokenizer) STATUS_MUST_CHECK;
enum status tokenizer_sentencepiece_create(const struct tokenizer_config *config,
                                           struct tokenizer **out_tokenizer) STATUS_MUST_CHECK;
/* For kinds with nothing to keep: the scratch is a valid pointer and no more. */
enum status tokenizer_create_no_scratch(const struct tokenizer *tokenizer,
                                        struct tokenizer_scratch **out_scratch) STATUS_MUST_CHECK;
void tokenizer_destroy_no_scratch(struct tokenizer_scratch *scratch);

#endif
