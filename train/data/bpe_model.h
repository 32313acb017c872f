/* The tables of GPT-2's byte-level BPE, from vocab.json and merges.txt.
 *
 * Before it: the two files. After it: tokenizer_bpe. Read-only once loaded; any thread may read.
 */
#ifndef TRAIN_DATA_BPE_MODEL_H
#define TRAIN_DATA_BPE_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"

#define BPE_END_OF_TEXT "<|endoftext|>"

struct bpe_merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: a free slot */
    uint32_t rank; /* line in merges.txt; lower ones merge first */
    int32_t result;
};

struct bpe_model {
    int32_t vocab_size;
    int32_t end_of_text;
    int32_t byte_ids[256];
    uint32_t *starts; /* [vocab_size + 1]: of each id's bytes in `bytes` */
    char *bytes;
    struct bpe_merge *merges; /* [merge_slots]: open addressing */
    size_t merge_slots;       /* a power of two */
};

/* Other files, ids with holes, missing bytes or end of text are STATUS_BAD_DATA and name the file
 * and the token or line. */
enum status bpe_model_load(const char *vocab_path, const char *merges_path,
                           struct bpe_model *out_model) STATUS_MUST_CHECK;
/* Takes a zeroed model. */
void bpe_model_deinit(struct bpe_model *model);
/* NULL when the two never merge. */
const struct bpe_merge *bpe_model_find_merge(const struct bpe_model *model, int32_t left,
                                             int32_t right);

#endif
