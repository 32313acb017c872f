/* Megatron's GPTDataset indices, byte for byte: which tokens make up global sample n of a split.
 *
 * Before it: token_file (the lengths of the sequences). After it: index_cache, data_loader.
 *
 * The sequences of a split, repeated for as many epochs as the samples asked for need, are
 * shuffled (documents), laid end to end and cut into samples of sequence_length + 1 tokens, each
 * starting at the last token of the one before (samples); the samples are shuffled again
 * (shuffle). When the last epoch gives less than 80 % of its samples, it is shuffled apart from
 * the others, so that no sample of it comes early. All draws are from one RandomState(seed), in
 * that order. Megatron calls sequences documents here, and so do the names.
 *
 * Invariants: every entry fits 32 bits; all three arrays together take at most
 * SAMPLE_INDEX_BYTES_MAX (which implies the former), else the index is refused before anything
 * is allocated.
 * Threads: a built index is read-only.
 */
#ifndef TRAIN_DATA_SAMPLE_INDEX_H
#define TRAIN_DATA_SAMPLE_INDEX_H

#include <stdint.h>

#include "ckpt/base/status.h"
#include "train/data/array_file.h"
#include "train/data/data_loader.h"
#include "train/data/token_file.h"

#define SAMPLE_INDEX_BYTES_MAX ((uint64_t)8 << 30)

struct sample_range { /* the sequences of a split: begin .. end - 1 */
    uint64_t begin, end;
};

enum sample_array { SAMPLE_DOCUMENTS, SAMPLE_SAMPLES, SAMPLE_SHUFFLE, SAMPLE_ARRAY_COUNT };

struct sample_index {
    struct sample_range range;
    uint64_t epoch_count;
    uint64_t document_count;  /* sequences x epochs */
    uint64_t sample_count;    /* at least those asked for */
    uint64_t final_sequences; /* shuffled apart at the end; 0: none */
    uint64_t final_samples;
    struct array_file arrays[SAMPLE_ARRAY_COUNT]; /* the memory of the three below */
    const int32_t *documents; /* [document_count]: a sequence's number in the file */
    /* [sample_count + 1]: where a sample starts: index into documents, token in that sequence. */
    const int32_t (*samples)[2];
    const uint32_t *shuffle; /* [sample_count]: index into samples */
};

const char *sample_split_name(enum data_split split); /* "train", "valid", "test" */

/* Cuts the sequences by ratios as "969,30,1" or "0.9,0.1" (missing ones are 0; any scale), at
 * the cumulative ratios rounded half to even, as Megatron does. Text that is no such list is
 * STATUS_USAGE. */
enum status sample_index_split(const char *text, uint64_t sequence_count,
                               struct sample_range out_ranges[DATA_SPLIT_COUNT]) STATUS_MUST_CHECK;

/* The sizes of the index of `range` for at least `samples` samples, or, for 0, as many as one epoch
 * has (maybe none), without its arrays; then either fill makes them, or index_cache maps them and
 * attach looks into them. STATUS_BAD_DATA, with the numbers: a range without sequences or tokens
 * that is asked for samples; a sample count or an index beyond the bounds above. `name` (a split's)
 * stands in the messages. */
enum status sample_index_plan(const struct token_file *file, struct sample_range range,
                              int64_t sequence_length, uint64_t samples, const char *name,
                              struct sample_index *out_index) STATUS_MUST_CHECK;
/* STATUS_USAGE: a seed beyond 2^32 - 1 (NumPy's limit). */
enum status sample_index_fill(struct sample_index *index, const struct token_file *file,
                              int64_t sequence_length, uint64_t seed) STATUS_MUST_CHECK;
void sample_index_attach(struct sample_index *index);
/* Takes a zeroed index. */
void sample_index_deinit(struct sample_index *index);

/* Writes the sequence_length + 1 tokens of global sample `sample` (< sample_count). An index that
 * leads out of the file (a mapped one that somebody changed) is STATUS_CORRUPT. */
enum status sample_index_read(const struct sample_index *index, const struct token_file *file,
                              int64_t sequence_length, uint64_t sample, int32_t *out_tokens)
    STATUS_MUST_CHECK;

#endif
