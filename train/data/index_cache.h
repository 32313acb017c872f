/* The index cache: arrays that are made once and then mapped by every rank and every later run.
 *
 * Before it: data_part, data_loader (what an index depends on, its arrays). After it: array_file.
 * An entry lies in the folder of --data-cache-path as
 *     HASH-CLASS-SPLIT-description.txt   the key: everything that the arrays depend on
 *     HASH-CLASS-SPLIT-NAME.npy          each array, byte for byte as NumPy and Megatron write it
 *     HASH-CLASS-SPLIT-contents.json     the arrays' hashes, and the ids that occur; written last
 * HASH is the XXH3-128 of the key. (Megatron's is an MD5 of a text that holds its tokenizer's
 * settings, which no trainer without one can know.)
 *
 * Invariant: whoever finds contents.json finds whole arrays: each file appears by a rename, synced
 * before. Ranks that make the same entry at the same time write the same bytes, so none has to wait
 * for another. What does not fit its hash is passed over with a warning and made anew.
 */
#ifndef TRAIN_DATA_INDEX_CACHE_H
#define TRAIN_DATA_INDEX_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "ckpt/base/status.h"
#include "train/data/array_file.h"

struct index_ids { /* the least and greatest id that occurs in a data set's split */
    int64_t min, max;
};

struct index_entry {
    const char *class_name; /* "GPTDataset", as Megatron names them */
    const char *split_name;
    const cJSON *key;
    struct array_file *arrays; /* name, type and shape are set */
    int array_count;
    struct index_ids *ids; /* NULL: none belong to it */
};

/* True: every array is mapped and `ids` is set. False: nothing is. */
bool index_cache_load(const char *folder, const struct index_entry *entry);
/* A folder that cannot be written is warned of, nothing else: the arrays are there already. */
void index_cache_store(const char *folder, const struct index_entry *entry);

#endif
