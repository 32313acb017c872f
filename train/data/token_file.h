/* Token files: Megatron's .idx/.bin pair, mapped for reading and written whole or not at all.
 *
 * Before it: preprocess (writes), the user's data (reads). After it: sample_index, data_loader.
 *
 * PREFIX.idx, little-endian: 9 bytes "MMIDIDX" and two 0; u64 version 1; u8 type code; u64 count
 * of sequences S; u64 count of document entries D; i32[S] lengths in tokens; i64[S] byte offsets
 * into PREFIX.bin; i64[D] number of the first sequence of each document, and S at the end;
 * optionally i8[S] modes (ignored). PREFIX.bin: the tokens. A document may have no sequence, a
 * sequence no token.
 *
 * Invariants of an open token_file (checked over the whole index at open): lengths >= 0, offsets
 * are their running sum, PREFIX.bin has exactly that size, document entries rise from 0 to S.
 * Threads: an open file may be read from any thread; a writer belongs to one.
 */
#ifndef TRAIN_DATA_TOKEN_FILE_H
#define TRAIN_DATA_TOKEN_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"
#include "train/data/map_file.h"

enum token_type { /* the type codes of the format */
                  TOKEN_UINT8 = 1,
                  TOKEN_INT8 = 2,
                  TOKEN_INT16 = 3,
                  TOKEN_INT32 = 4,
                  TOKEN_INT64 = 5,
                  TOKEN_UINT16 = 8
};

/* Megatron's choice: UINT16 below 65500 entries of the vocabulary, else INT32. */
enum token_type token_type_for_vocab(int64_t vocab_size);
size_t token_type_bytes(enum token_type type);

struct token_file {
    char *prefix;
    enum token_type type;
    uint64_t sequence_count;
    uint64_t document_count;
    uint64_t token_count;
    struct map_file index;  /* PREFIX.idx */
    struct map_file tokens; /* PREFIX.bin */
};

/* Maps and validates the pair. Missing files are STATUS_NOT_FOUND, name both and say what the
 * prefix may have been meant to be; damage and other formats are STATUS_BAD_DATA with what was
 * found and what is wanted. A pair without tokens is valid. */
enum status token_file_open(const char *prefix, struct token_file *out_file) STATUS_MUST_CHECK;
/* Takes a zeroed file. */
void token_file_close(struct token_file *file);

/* Tokens of sequence `sequence` (< sequence_count). */
int32_t token_file_length(const struct token_file *file, uint64_t sequence);
/* Number of the first token of `sequence`; for sequence_count the count of all. */
uint64_t token_file_start(const struct token_file *file, uint64_t sequence);
/* First sequence of `document` (<= document_count). */
uint64_t token_file_document(const struct token_file *file, uint64_t document);
/* Copies tokens first .. first + count - 1 of the whole file; wider ids than 32 bits are cut, so
 * look for them with token_file_range first. */
void token_file_copy(const struct token_file *file, uint64_t first, size_t count,
                     int32_t *out_tokens);
/* The least and greatest of `count` (> 0) tokens. */
void token_file_range(const struct token_file *file, uint64_t first, uint64_t count,
                      int64_t *out_min, int64_t *out_max);

/* Writing: create, then for each document add_sequence (any number) and end_document; finish
 * makes both temporary files whole and durable; publish gives them their names. Until publish
 * nothing under PREFIX.idx or PREFIX.bin changes; publish first takes an old PREFIX.idx away, so
 * that at no moment an index stands beside tokens of another run. destroy before publish removes
 * the temporary files ("PREFIX.bin.PID.partial"), which only a killed process leaves. */
struct token_writer;

enum status token_writer_create(struct fs *fs, const char *prefix, enum token_type type,
                                struct token_writer **out_writer) STATUS_MUST_CHECK;
/* Ids must fit the type (checked: STATUS_BAD_DATA). `count` may be 0. */
enum status token_writer_add_sequence(struct token_writer *writer, const int32_t *tokens,
                                      size_t count) STATUS_MUST_CHECK;
enum status token_writer_end_document(struct token_writer *writer) STATUS_MUST_CHECK;
uint64_t token_writer_token_count(const struct token_writer *writer);
enum status token_writer_finish(struct token_writer *writer) STATUS_MUST_CHECK;
enum status token_writer_publish(struct token_writer *writer) STATUS_MUST_CHECK;
void token_writer_destroy(struct token_writer *writer); /* takes NULL */

#endif
