/* A small GPT-like state whose every bit follows from tensor name and global element: what ranks of
 * any layout hold of it, own of it, and must have after a load.
 *
 * Rows of the vocabulary are cut unevenly (50257 is prime), row-parallel weights by columns, stages
 * hold uneven counts of layers, replicated tensors are held by all tensor ranks and owned by one,
 * the word embedding is held by the last stage too. Data-parallel ranks hold all of "param", and
 * own row slices; small tensors belong to one of them and are empty slices of the others.
 */
#ifndef TESTS_UNIT_CKPT_SMALL_MODEL_H
#define TESTS_UNIT_CKPT_SMALL_MODEL_H

#include "ckpt/ckpt.h"
#include "ckpt/meta/layout.h"

struct small_model_shape {
    uint64_t vocab, hidden, layers;
};

/* The global tensors. */
struct small_model {
    struct ckpt_tensor *tensors; /* box and owned are the whole; data is the truth */
    size_t count;
    struct small_model_shape shape;
};

/* What one rank holds: zeroed memory until it is filled. */
struct small_part {
    struct ckpt_tensor *tensors;
    size_t count;
};

void small_model_init(struct small_model *model, struct small_model_shape shape);
void small_model_deinit(struct small_model *model);
/* Boxes of a rank, with memory of their own; names are the model's. */
void small_part_init(struct small_part *part, const struct small_model *model, struct layout layout,
                     struct coords coords);
void small_part_deinit(struct small_part *part);
void small_part_fill(struct small_part *part, const struct small_model *model);
/* Whether all bytes, of replicas too, are the model's; names the first tensor that is not. */
bool small_part_is_right(const struct small_part *part, const struct small_model *model,
                         const char **out_name);

#endif
