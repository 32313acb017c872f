/* What the files of model/ share: the stage's tensors, activations and scratch memory.
 *
 * Sizes: B samples, T positions, R = B T rows, S = B T_part of them in the residual stream (all;
 * with sequence parallelism those of this TP rank's T_part = T / TP positions), C hidden,
 * F feed-forward, H heads, D = C / H, V vocabulary; a _part is what this TP rank holds of it.
 */
#ifndef TRAIN_MODEL_GPT_STATE_H
#define TRAIN_MODEL_GPT_STATE_H

#include "train/model/gpt.h"

/* In the order of the flat arrays. The tensors of a layer are contiguous, and all layers alike. */
enum gpt_tensor {
    GPT_WORD,
    GPT_POSITION,
    GPT_NORM1_WEIGHT,
    GPT_NORM1_BIAS,
    GPT_QKV_WEIGHT,
    GPT_QKV_BIAS,
    GPT_PROJ_WEIGHT,
    GPT_PROJ_BIAS,
    GPT_NORM2_WEIGHT,
    GPT_NORM2_BIAS,
    GPT_FC1_WEIGHT,
    GPT_FC1_BIAS,
    GPT_FC2_WEIGHT,
    GPT_FC2_BIAS,
    GPT_NORM_WEIGHT,
    GPT_NORM_BIAS,
    GPT_OUTPUT,
    GPT_TENSOR_COUNT
};

/* The table of this stage's tensors. */
struct gpt_table {
    struct gpt_param *params;
    size_t count;
    size_t flat_count;
    size_t begin[GPT_TENSOR_COUNT]; /* of layer_begin's for tensors of layers */
    size_t layer_stride;            /* from one layer's tensor to the next layer's */
};

/* gpt_params.c. The config must be valid. */
enum status gpt_table_build(const struct gpt_config *config, const struct gpt_stage *stage,
                            struct gpt_table *out_table) STATUS_MUST_CHECK;
void gpt_table_deinit(struct gpt_table *table);

struct gpt_sizes {
    int B, T, R, C, D;
    int T_part, S;
    int layers; /* of one chunk */
    int chunks;
    int C_part, F_part, H_part;
    int F_stride;      /* of [R,F_part] arrays */
    int V_part, valid; /* rows of the vocabulary here; those that are not padding */
    int V_stride;      /* of logits */
    int64_t vocab_begin;
    int chunk; /* rows of the head and loss at a time */
    int again; /* a chunk's first layers, whose activations backward makes again ... */
    int group; /* ... as many at a time; at least 1 */
};

/* Layers are counted over all chunks of the stage, from its first: layer / layers is the chunk. A
 * slot has one chunk in it at a time, so the same layer of all chunks has the same memory.
 *
 * What backward needs of one layer. Residual streams: the layer's input is the output of the one
 * before (or the slot's input). Of layers that are made again only what enters a group is the
 * slot's own; the rest is one memory for all groups of all slots, one set for each place in a
 * group. With selective recompute all layers share `stats` and `attention`. */
struct gpt_layer_acts {
    float *norm1, *mean1, *rstd1; /* [S,C] [S] [S] */
    float *qkv;                   /* [B,T,H_part,3,D] */
    float *stats;                 /* [B,H_part,T] */
    float *attention;             /* [R,C_part] */
    float *middle;                /* [S,C] residual after attention */
    float *norm2, *mean2, *rstd2; /* [S,C] [S] [S] */
    float *fc1;                   /* [R,F_part] by F_stride, bias not yet added */
    float *gelu;                  /* [R,F_part] by F_stride */
    float *output;                /* [S,C] residual after the MLP */
};

struct gpt_slot {
    int32_t *tokens, *labels;      /* [R] first stage; last stage */
    float *mask;                   /* [R] last stage */
    int32_t *position_starts;      /* [R] first stage */
    int32_t *attention_starts;     /* [R] */
    float *input;                  /* [S,C] embedding or the output of the model before it */
    struct gpt_layer_acts *layers; /* [chunks layers] */
    float *norm, *mean, *rstd;     /* [S,C] [S] [S] final norm: last stage */
    float *losses;                 /* [R] */
    float *dnorm;                  /* [S,C] gradient of `norm`, taken by forward */
};

struct gpt {
    struct gpt_config config;
    struct gpt_stage stage;
    struct gpt_sizes sizes;
    struct device *device;
    struct gpt_table table;
    float *params, *grads; /* flat, device */
    struct gpt_slot *slots;
    int slot_count;
    struct gpt_layer_acts *again; /* [sizes.group] what the slots share */
    char *arena;                  /* device: activations of all slots and scratch */
    float *host_losses;           /* [R] host */
    size_t *part_counts;          /* [tp_size] of a sample: elements of each rank's positions */
    size_t *part_bytes;           /* [tp_size] the same in bytes */

    /* Scratch of the running call, device. */
    float *branch;         /* [R,C] forward: what joins the residual stream;
                                         * backward: its gradient where dropout changed it */
    float *gathered;       /* [R,C] gpt_gather_rows; NULL without sequence parallelism */
    float *dresidual;      /* [S,C] gradient of the residual stream */
    float *dinput;         /* [R,C] gradient of a norm's output */
    float *dattention;     /* [R,C_part] */
    float *wide;           /* [R,3 C_part] or [R,F_part] by F_stride */
    float *logits;         /* [chunk,V_part] by V_stride; last stage */
    float *row_max, *sums; /* [chunk] [2,chunk] */
};

/* gpt.c */
float *gpt_param_of(const struct gpt *gpt, enum gpt_tensor tensor, int layer);
float *gpt_grad_of(const struct gpt *gpt, enum gpt_tensor tensor, int layer);
/* The output matrix: the word embedding, its copy or a tensor of its own. */
enum gpt_tensor gpt_output_tensor(const struct gpt *gpt);
/* Whether the embedding comes before this chunk, the final norm and the output behind it. */
bool gpt_begins(const struct gpt *gpt, int chunk);
bool gpt_ends(const struct gpt *gpt, int chunk);
const float *gpt_layer_input(const struct gpt *gpt, const struct gpt_slot *slot, int layer);
/* What leaves the chunk: its input where it has no layers. */
const float *gpt_chunk_output(const struct gpt *gpt, const struct gpt_slot *slot, int chunk);
/* Whether backward has to make the group of layers again that ends with this one. */
bool gpt_ends_group(const struct gpt_sizes *sizes, int layer);
struct device_dropout gpt_dropout(const struct gpt *gpt, const struct gpt_batch *batch, int layer,
                                  enum gpt_site site);

/* gpt_tp.c */
/* In place over the TP group; nothing for one rank. */
enum status gpt_sum_over_tp(struct gpt *gpt, float *data, size_t count) STATUS_MUST_CHECK;

/* Before an operation whose weights are cut over the TP group: all rows of own[S,C], valid until
 * the next call; they are `own` itself without sequence parallelism. */
enum status gpt_gather_rows(struct gpt *gpt, const float *own, const float **out_rows)
    STATUS_MUST_CHECK;
/* After one: sums data[R,C] over the TP group and moves this rank's rows to its first S. */
enum status gpt_sum_rows(struct gpt *gpt, float *data) STATUS_MUST_CHECK;

/* gpt_forward.c, for recompute: the attention of a layer from acts->qkv, and what backward needs of
 * the layers of a group from the group's input, as gpt_forward made them. */
enum status gpt_attend(struct gpt *gpt, const struct gpt_slot *slot, const struct gpt_batch *batch,
                       int layer) STATUS_MUST_CHECK;
enum status gpt_make_again(struct gpt *gpt, const struct gpt_slot *slot,
                           const struct gpt_batch *batch, int layer_begin, int layer_end)
    STATUS_MUST_CHECK;

/* gpt_head.c: output matrix, loss and (in training) their gradients for slot->norm. */
enum status gpt_head_run(struct gpt *gpt, struct gpt_slot *slot, const struct gpt_batch *batch,
                         double *out_loss_sum) STATUS_MUST_CHECK;

#endif
