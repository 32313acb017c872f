/* A SentencePiece model, loaded: normalisation, unigram and BPE, byte fallback.
 *
 * Before it: the bytes of a ".model" file. After it: tokenizer_sentencepiece.
 *
 * Ids must be those of Python's sentencepiece, which is this same library (libsentencepiece): the
 * normaliser's tables, the lattice and the order of merges are its own affair, and a reader of our
 * own would be some 1500 lines that could differ in any of them. It has no C interface, so
 * sentencepiece_model.cc is the one C++ file of the tree, and exports what stands here.
 *
 * Threads: once created a model is read-only; any number of threads may use it.
 * Errors: what the library throws or says ends here as a status.
 */
#ifndef TRAIN_DATA_SENTENCEPIECE_MODEL_H
#define TRAIN_DATA_SENTENCEPIECE_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"
#include "train/data/tokenizer.h"

struct sentencepiece_model;

enum sentencepiece_kind {
    SENTENCEPIECE_TEXT, /* its text, with U+2581 for a space */
    SENTENCEPIECE_BYTE, /* spelled <0x0A> */
    SENTENCEPIECE_CONTROL,
    SENTENCEPIECE_UNKNOWN
};

/* `bytes` are copied; `path` is for messages. STATUS_BAD_DATA: the library does not take them. */
enum status sentencepiece_model_create(const char *bytes, size_t count, const char *path,
                                       struct sentencepiece_model **out_model) STATUS_MUST_CHECK;
void sentencepiece_model_destroy(struct sentencepiece_model *model); /* takes NULL */

/* Pieces have the ids 0 .. count - 1. */
int32_t sentencepiece_model_count(const struct sentencepiece_model *model);
/* Ids of the pieces that begin and end a sentence and fill a batch; -1: the model has none. */
int32_t sentencepiece_model_bos(const struct sentencepiece_model *model);
int32_t sentencepiece_model_eos(const struct sentencepiece_model *model);
int32_t sentencepiece_model_pad(const struct sentencepiece_model *model);
enum sentencepiece_kind sentencepiece_model_kind(const struct sentencepiece_model *model,
                                                 int32_t id);
/* The spelling of a piece; it belongs to the model. */
const char *sentencepiece_model_piece(const struct sentencepiece_model *model, int32_t id);
/* The id of the piece spelled so, or -1. */
int32_t sentencepiece_model_find(const struct sentencepiece_model *model, const char *piece);

/* Appends the ids of valid UTF-8. Takes up to 230 bytes of memory for each byte of text. */
enum status sentencepiece_model_encode(const struct sentencepiece_model *model, const char *text,
                                       size_t bytes, struct token_buffer *out_tokens)
    STATUS_MUST_CHECK;

#endif
