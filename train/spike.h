/* A loss that leaps up: how far, and whether the data of one rank or the weights of all did it.
 *
 * Before it: trainer, after the gradients are summed and before the update. After it: a warning;
 * the training goes on, since most leaps pass. What is high on one rank alone comes from its
 * samples; what is high on all comes from the weights.
 */
#ifndef TRAIN_SPIKE_H
#define TRAIN_SPIKE_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"
#include "train/optim/grads.h"

#define SPIKE_WINDOW 128    /* losses that a new one is compared with, at most */
#define SPIKE_WINDOW_MIN 32 /* and at least */

struct spike_window {
    double losses[SPIKE_WINDOW]; /* a ring */
    uint64_t count;              /* ever added */
};

/* How many standard deviations `loss` is above the mean of the window, which then takes it in; 0
 * while the window has too few. */
double spike_add(struct spike_window *window, double loss);

struct spike_case {
    struct comm *world;
    struct grads *grads;   /* reduced */
    double loss;           /* mean of this rank's own samples; below 0: it has none */
    uint64_t first_sample; /* of this rank */
};

#define SPIKE_TEXT_MAX 512
/* Where the loss comes from, the same text on every rank. Collective. */
enum status spike_explain(const struct spike_case *in, char out_text[SPIKE_TEXT_MAX])
    STATUS_MUST_CHECK;

#endif
