/* The GPT-2 of transformers, tensor by tensor beside ours: one table for import and export.
 *
 * Their Conv1D weights are [in, out], ours [out, in]; their fused QKV is q of all heads, then k,
 * then v, ours head by head (q, k, v of head 0, then of head 1 ...), as Megatron's. Source of their
 * names: transformers, models/gpt2/modeling_gpt2.py. Pure arithmetic.
 */
#ifndef CKPT_GPT2_MAP_H
#define CKPT_GPT2_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPT2_LAYERS_MAX 10000
#define GPT2_NUMBER_MAX 100000000  /* of every other size */
#define GPT2_PREFIX "transformer." /* of all names but lm_head's; some files leave it out */
#define GPT2_LAYER_PATTERN "h.%d."
#define GPT2_NAME_MAX 128

struct gpt2_config {
    uint64_t layers, hidden, heads, ffn, vocab, positions;
    double norm_epsilon;
    bool untied;
};

/* How a tensor of theirs becomes one of ours. */
enum gpt2_turn {
    GPT2_TURN_NONE,
    GPT2_TURN_TRANSPOSE,     /* Conv1D */
    GPT2_TURN_QKV_TRANSPOSE, /* Conv1D, then rows head by head */
    GPT2_TURN_QKV            /* bias, head by head */
};

/* One row a tensor; %d is the layer. Rows and columns name sizes of struct gpt2_config by a letter:
 * H hidden, Q three times hidden, F ffn, V vocab, P positions, 1 none; ours is rows x columns. */
struct gpt2_mapping {
    const char *theirs, *ours;
    char rows, columns;
    enum gpt2_turn turn;
};

#define GPT2_OUTER_COUNT 4
#define GPT2_INNER_COUNT 12
extern const struct gpt2_mapping gpt2_outer[GPT2_OUTER_COUNT]; /* once */
extern const struct gpt2_mapping gpt2_inner[GPT2_INNER_COUNT]; /* for each layer */
/* Only there when it is not tied to wte; then without the prefix. */
extern const struct gpt2_mapping gpt2_lm_head;

/* Both return the number of dimensions. */
int gpt2_our_shape(const struct gpt2_config *config, const struct gpt2_mapping *mapping,
                   uint64_t out_shape[2]);
int gpt2_their_shape(const struct gpt2_config *config, const struct gpt2_mapping *mapping,
                     uint64_t out_shape[2]);
/* A table's name with its %d filled in: at most one, and only in rows of layers. */
void gpt2_name(char out_name[GPT2_NAME_MAX], const char *pattern, int layer);
/* Fills our tensor from theirs, or theirs from ours. */
void gpt2_turn_to_ours(const struct gpt2_config *config, const struct gpt2_mapping *mapping,
                       const float *theirs, float *out_ours);
void gpt2_turn_to_theirs(const struct gpt2_config *config, const struct gpt2_mapping *mapping,
                         const float *ours, float *out_theirs);

#endif
