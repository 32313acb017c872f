/* GPT as Megatron builds it: pre-norm blocks, learned positions, biases, tanh GELU, tied output.
 *
 * Before it: data/ (tokens), parallel/pipeline (which micro-batch, forward or backward). After it:
 * optim/grads. A struct gpt is the part of the model that one rank holds: the layers of its
 * pipeline stage, in one chunk or several, cut by tensor parallelism. It owns two flat float32
 * arrays, parameters and gradients, of equal layout; each tensor starts on a multiple of
 * GPT_PARAM_ALIGN elements.
 *
 * Tensor parallelism: column-parallel QKV (by heads) and fc1, row-parallel projection and fc2
 * (outputs summed over TP, biases added after the sum), vocabulary-parallel embedding and
 * cross-entropy; LayerNorm and row-parallel biases are replicated and get equal gradients on all TP
 * ranks. With sequence parallelism (Korthikanti et al. 2022, section 4.2.2) a TP rank keeps the
 * residual stream and the norms of T / TP positions only: their rows are gathered before each
 * column-parallel matrix, and the sum after each row-parallel one leaves a rank its own. Dropout
 * masks follow the positions, so the model computes the same. The vocabulary is padded to a
 * multiple of (divisor x TP); padding rows are zero, get no gradient, never enter the softmax, and
 * are in no box.
 */
#ifndef TRAIN_MODEL_GPT_H
#define TRAIN_MODEL_GPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"
#include "ckpt/meta/shard_map.h"
#include "train/comm/comm.h"
#include "train/device/device.h"

#define GPT_PARAM_ALIGN 64
#define GPT_PARAM_NAME_MAX 120

/* Which activations backward makes again instead of keeping them. The results are the same bits:
 * every operation gives them, and dropout masks are functions of their place. */
enum gpt_recompute {
    GPT_RECOMPUTE_NONE,
    GPT_RECOMPUTE_SELECTIVE, /* the attention between its QKV and its projection */
    GPT_RECOMPUTE_UNIFORM,   /* all layers, in groups of recompute_layers: kept is what enters a
                              * group, and the activations of one group at a time */
    GPT_RECOMPUTE_BLOCK      /* the stage's first recompute_layers layers, each by itself */
};

struct gpt_config {
    int layers, hidden, heads, ffn_hidden;
    int64_t vocab;     /* true size */
    int vocab_divisor; /* --make-vocab-size-divisible-by */
    int max_positions;
    int sequence;    /* T of every micro-batch */
    int micro_batch; /* B */
    bool untied;     /* separate output layer */
    float attention_dropout, hidden_dropout;
    float layernorm_epsilon;
    float init_std;
    uint64_t seed;
    bool sequence_parallel; /* nothing for one TP rank */
    enum gpt_recompute recompute;
    int recompute_layers; /* of UNIFORM and BLOCK, at least 1 */
};

/* Which part of the model this rank holds: `chunks` chunks of layers, of equal sizes and distances.
 * The first stage has the embedding before its first chunk, the last one the final norm and the
 * output behind its last. */
struct gpt_stage {
    int layer_begin, layer_end; /* of the first chunk: global layer numbers */
    int chunks;                 /* 0: one */
    int chunk_stride;           /* from a layer to the same one of the next chunk */
    bool is_first, is_last;
    int tp_rank, tp_size;
    struct comm *tp; /* may be NULL for tp_size 1 */
};

/* The dropouts of a layer; the embedding's counts as layer 0. Part of each mask's key, so the order
 * is fixed. */
enum gpt_site {
    GPT_SITE_EMBEDDING,
    GPT_SITE_ATTENTION_PROBABILITY,
    GPT_SITE_ATTENTION_OUTPUT,
    GPT_SITE_MLP_OUTPUT
};

enum gpt_init { GPT_INIT_ZERO, GPT_INIT_ONE, GPT_INIT_NORMAL, GPT_INIT_NORMAL_SCALED };

/* One row of the parameter table (gpt_params.c is the only list of tensors). */
struct gpt_param {
    char name[GPT_PARAM_NAME_MAX]; /* "decoder.layers.3.mlp.linear_fc1.weight" */
    int dims;                      /* 1 or 2 */
    uint64_t shape[BOX_DIMS_MAX];  /* global, vocabulary unpadded */
    struct box box;                /* the part held here, unpadded */
    size_t begin;                  /* first element in the flat arrays */
    size_t rows, columns;          /* local memory, padding included; columns 1 for 1-D */
    enum gpt_init init;
    bool decay;         /* 2-D weights and embeddings, not biases and norms */
    bool tp_replicated; /* same values on every TP rank: counted and stored once */
    bool tied_copy;     /* last stage's copy of the word embedding (PP > 1): the first
                                     * stage's is the one counted and stored */
};

/* One micro-batch of B sequences of T. The arrays are host memory and used by gpt_forward alone. */
struct gpt_batch {
    const int32_t *tokens;  /* [B,T]; first stage */
    const int32_t *labels;  /* [B,T]; last stage */
    const float *loss_mask; /* [B,T] or NULL; last stage */
    /* For each token the place in its row where its document begins; [B,T] or NULL: places count
     * from 0 in every row (first stage); a token sees the whole row before it (all stages). */
    const int32_t *position_starts, *attention_starts;
    float loss_scale;      /* d(total)/d(token loss): 1 / (tokens x micro-batches x ...) */
    uint64_t first_sample; /* global sample number of row 0; rows are consecutive */
    uint64_t step;         /* for dropout */
    bool is_training;      /* false: no dropout, no backward */
};

struct gpt;

/* `slots` micro-batches may be in flight (forward done, backward not), each in a chunk of its own
 * choice: 1 without a pipeline. Allocates everything once. */
enum status gpt_create(const struct gpt_config *config, const struct gpt_stage *stage,
                       struct device *device, int slots, struct gpt **out_gpt) STATUS_MUST_CHECK;
void gpt_destroy(struct gpt **gpt);
/* Bytes that gpt_create would take: parameters, gradients, activations of all slots, which
 * recompute makes fewer. */
uint64_t gpt_memory_bytes(const struct gpt_config *config, const struct gpt_stage *stage,
                          int slots);

size_t gpt_param_count(const struct gpt *gpt);
const struct gpt_param *gpt_params(const struct gpt *gpt);
float *gpt_param_data(struct gpt *gpt); /* flat, [gpt_flat_count] */
float *gpt_grad_data(struct gpt *gpt);
size_t gpt_flat_count(const struct gpt *gpt); /* elements, padding included */
/* Fills the parameters from (seed, name, global element): equal in every layout. Padding is 0. */
enum status gpt_init_params(struct gpt *gpt) STATUS_MUST_CHECK;

/* Activations between stages are [B,T,C] float32 device memory, of this rank's positions with
 * sequence parallelism: gpt_activation_bytes each. */
size_t gpt_activation_bytes(const struct gpt *gpt);
/* Runs a chunk of the stage on one micro-batch and keeps what backward needs in `slot`. `input` is
 * the output of the model before it (not read where the model begins); `out_activation` the memory
 * for its own output (not written where the model ends). There *out_loss_sum is the sum of masked
 * token losses, the same on every TP rank; elsewhere it is 0.
 * The logits are never whole: head, loss and the head's gradients go by chunks of rows, so in
 * training the output matrix's gradient (tied: the word embedding's) is added here already, and
 * only the gradient of the last hidden states waits in the slot for gpt_backward.
 * A token or label outside the vocabulary is STATUS_BAD_DATA. */
enum status gpt_forward(struct gpt *gpt, int chunk, int slot, const struct gpt_batch *batch,
                        const float *input, float *out_activation, double *out_loss_sum)
    STATUS_MUST_CHECK;
/* Adds to the gradients; `chunk` and `batch` as in gpt_forward of the slot. `grad_output` is
 * d/d(out_activation) (not read where the model ends); `out_grad_input` takes d/d(input) (not
 * written where it begins). */
enum status gpt_backward(struct gpt *gpt, int chunk, int slot, const struct gpt_batch *batch,
                         const float *grad_output, float *out_grad_input) STATUS_MUST_CHECK;

/* To be called once after the last backward of a step: with sequence parallelism sums the gradients
 * of the norms, which each rank has of its own positions, over the TP group. */
enum status gpt_sum_gradients(struct gpt *gpt) STATUS_MUST_CHECK;

/* Of the micro-batch last run in `slot` on the last stage: the B x T masked token losses, and the
 * logits of rows row_begin .. row_begin + row_count into host memory [row_count, columns], columns
 * being the part of the unpadded vocabulary that this TP rank holds (gpt_vocab_part). With sequence
 * parallelism gpt_logits is collective over the TP group. */
enum status gpt_token_losses(struct gpt *gpt, int slot, float *out_losses) STATUS_MUST_CHECK;
enum status gpt_logits(struct gpt *gpt, int slot, int row_begin, int row_count, float *out_logits)
    STATUS_MUST_CHECK;
void gpt_vocab_part(const struct gpt *gpt, int64_t *out_begin, int64_t *out_end);

#endif
