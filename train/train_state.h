/* Everything that must survive a crash: the one table, both ways.
 *
 * Before it: model and optimizer (where the tensors live), trainer (the scalars). After it:
 * ckpt/ckpt.h, which writes and reads the boxes; the state hash; the manifest's `state` object.
 *
 * Tensors: "param/NAME" (the whole part of this rank; each DP rank answers for its slice),
 * "exp_avg/NAME" and "exp_avg_sq/NAME" (this rank's slice only). Of replicas (TP-replicated
 * tensors, the last stage's copy of a tied embedding) one rank answers, so that every element is
 * stored and hashed once. Not here, since it follows: gradients, vocabulary padding, and random
 * numbers, which are functions of (seed, step, sample, element).
 */
#ifndef TRAIN_TRAIN_STATE_H
#define TRAIN_TRAIN_STATE_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"
#include "ckpt/ckpt.h"
#include "train/optim/optimizer.h"

/* Name and meaning of each scalar; all are counts below 2^53. */
#define TRAIN_STATE_SCALARS(X)                                                                     \
    X(step)                   /* optimizer steps completed */                                      \
    X(consumed_samples)       /* position in the training data */                                  \
    X(consumed_valid_samples) /* position in the validation data */                                \
    X(lr_samples)             /* position of the learning rate's schedule */                       \
    X(optimizer_updates)      /* Adam's bias correction */                                         \
    X(seed)                   /* of all random numbers */

struct train_scalars {
#define TRAIN_STATE_FIELD(name) uint64_t name;
    TRAIN_STATE_SCALARS(TRAIN_STATE_FIELD)
#undef TRAIN_STATE_FIELD
};

struct train_state_item;

struct train_state {
    struct train_scalars scalars;
    const struct topology *topology;
    struct ckpt_tensor *tensors;    /* views; they live as long as model and optimizer */
    struct train_state_item *items; /* [count] names and who holds replicas */
    size_t count;
    size_t param_count; /* the parameters come first */
};

/* Lists the tensors of this rank. CPU memory: a device of its own memory needs copies here. */
enum status train_state_init(struct train_state *state, struct optimizer *optimizer)
    STATUS_MUST_CHECK;
void train_state_deinit(struct train_state *state); /* takes zeroed storage */

/* The scalars as the manifest's `state`, and back; `where` names the source in errors. In an import
 * (step 0) those that it does not know stay as they are. */
enum status train_state_to_json(const struct train_state *state, cJSON **out_object)
    STATUS_MUST_CHECK;
enum status train_state_from_json(struct train_state *state, const cJSON *object, uint64_t step,
                                  const char *where) STATUS_MUST_CHECK;

/* The hash of the live state, the same number on every rank and in every layout. Collective. */
enum status train_state_hash(const struct train_state *state, uint64_t *out_hash) STATUS_MUST_CHECK;
/* All replicas must be the same bits; STATUS_NUMERIC names tensor and ranks. Collective. */
enum status train_state_check_replicas(const struct train_state *state) STATUS_MUST_CHECK;

#endif
