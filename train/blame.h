/* A step whose loss or gradient is not finite: what was so first, and on which rank.
 *
 * Before it: trainer, before the update (the weights are still those of the step, and its batches
 * are still there). After it: the message that the run ends with. The order of causes is weight,
 * loss, gradient: a bad weight makes a bad loss, and a bad loss makes bad gradients. Data cannot be
 * the first, since the model refuses a token outside the vocabulary. Of gradients the one latest in
 * the model is nearest to the cause: backward passes it on to those before.
 *
 * The step is computed again, so that each rank can look at its own gradients before they are
 * summed. What is finite then was no property of the training: a processor or memory is faulty.
 */
#ifndef TRAIN_BLAME_H
#define TRAIN_BLAME_H

#include <stdbool.h>

#include "ckpt/base/status.h"
#include "train/comm/comm.h"
#include "train/optim/grads.h"
#include "train/parallel/pipeline.h"

enum blame_kind { BLAME_WEIGHT, BLAME_LOSS, BLAME_GRADIENT, BLAME_NOTHING };

struct blame_case {
    struct comm *world;
    struct grads *grads; /* reduced */
    struct pipeline *pipeline;
    const struct gpt_batch *batches; /* of the step */
    double loss_sum;                 /* this rank's */
};

struct blame {
    enum blame_kind kind;
    int rank;
    bool again;                      /* and so it was when computed again */
    char tensor[GPT_PARAM_NAME_MAX]; /* of a weight or gradient */
};

/* The same answer on every rank. Overwrites the gradients. Collective. */
enum status blame_find(const struct blame_case *in, struct blame *out_blame) STATUS_MUST_CHECK;
/* "the weight 'NAME' ..., what to do" for the end of a message. */
void blame_format(const struct blame *blame, char *out_text, size_t bytes);

#endif
