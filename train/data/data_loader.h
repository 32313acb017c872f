/* The data loader: from token files and Megatron's indices to the tokens of a global sample.
 *
 * Before it: blend (which data sets), data_part (one of them: the mapped .idx/.bin and its index).
 * After it: model/gpt_forward. Data order is a pure function of (seed, split, sequence length,
 * blend, global sample number); the position of a run is its count of consumed samples, so no
 * change of DP size or batch skips or repeats a sample.
 * Threads: data_source_get may be called from any thread.
 */
#ifndef TRAIN_DATA_DATA_LOADER_H
#define TRAIN_DATA_DATA_LOADER_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"

/* Any source of samples: an indexed data set, mock data, or a test's own. */
struct data_source {
    void *context;
    /* Writes the sequence_length + 1 tokens of global sample `sample` (0, 1, 2 ...). The first
     * sequence_length are the input, the last sequence_length the labels. */
    enum status (*get)(void *context, uint64_t sample, int32_t *out_tokens);
    void (*close)(void *context); /* may be NULL */
    uint64_t count;               /* samples that it has; of mock data those asked for */
};

enum data_split { DATA_TRAIN, DATA_VALID, DATA_TEST, DATA_SPLIT_COUNT };

struct data_config {
    /* NULL: mock data. Else the prefix of PREFIX.idx and PREFIX.bin, or several, or weights and
     * prefixes in turn (blend.h). With weights each data set repeats as often as its weight needs;
     * without, each of several gives every sample at most once. */
    const char *path;
    const char *split; /* "969,30,1"; NULL: the whole of `path` is this split's */
    int64_t sequence_length;
    uint64_t seed;
    int64_t vocab_size; /* true size; a token id beyond it is STATUS_BAD_DATA */
    /* Where indices are kept (index_cache.h), made if need be; NULL: nowhere. */
    const char *cache_folder;
    /* How many each split must give (train-iters x global batch, ...); 0: it is not opened. */
    uint64_t samples[DATA_SPLIT_COUNT];
};

/* Mock data: sample n counts from a start drawn from (seed, split, n) by a stride of 1, 2 or 3,
 * drawn alike, modulo min(vocab_size, 256). A model learns it within some hundred steps: first
 * the few ids in use, then, from two tokens on, each next one. It never runs out of samples. */

/* Opens one split. Missing or damaged files, an empty split that is asked for samples, data sets
 * without weights that have too few, and ids past the vocabulary are refused here, before the first
 * step, with file and numbers (the split's ids are scanned once, by all threads). A split that is
 * asked for 0 samples gives STATUS_OK and a zeroed source. */
enum status data_loader_open(const struct data_config *config, enum data_split split,
                             struct data_source *out_source) STATUS_MUST_CHECK;
/* Megatron's --eod-mask-loss: 0 for each of the `count` input tokens that ends a document (what
 * comes after it, nobody can foresee), else 1. Returns how many are 1. */
size_t data_loader_mask_loss(const int32_t *tokens, size_t count, int32_t end_of_document,
                             float *out_mask);
/* For each of the `count` input tokens of one sample the place where its document begins: 0, or the
 * one after the last end of a document before it. */
void data_loader_find_starts(const int32_t *tokens, size_t count, int32_t end_of_document,
                             int32_t *out_starts);
/* Takes a zeroed source. */
void data_loader_close(struct data_source *source);

#endif
