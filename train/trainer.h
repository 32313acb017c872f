/* The trainer of one rank: from resolved options to the end of the training.
 *
 * Before it: train_main (options, environment, data, communicator). After it: everything of train/
 * and ckpt/. Call order: trainer_create, trainer_run, trainer_destroy; the first two are collective
 * over the world. trainer_step (trainer.c) is one optimizer step on one screen.
 */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"
#include "ckpt/meta/run_env.h"
#include "train/comm/comm.h"
#include "train/data/data_loader.h"
#include "train/train_options.h"

/* Everything stays the caller's and outlives the trainer. */
struct trainer_config {
    const struct train_options *options; /* resolved */
    const struct train_plan *plan;
    const struct run_env *env;
    struct fs *fs;
    struct comm *world;
    struct progress *progress;
    struct data_source train;
    struct data_source valid;       /* zeroed when no validation is asked for */
    struct data_source test;        /* zeroed when there is no test after the training */
    int64_t begin_ns;               /* clock_monotonic_ns of --exit-duration-in-mins */
    const _Atomic int *stop_signal; /* the signal that asks to stop, 0: none yet */
    FILE *out;                      /* Megatron's lines (last rank) */
    int thread_count;               /* of this rank, at least 1 */
    /* May be NULL. Called on every rank after each step with the step's own loss and norm. */
    void (*on_step)(void *context, uint64_t step, double loss, double grad_norm);
    void *on_step_context;
};

struct trainer;

/* Groups, device, model with its initial weights, optimizer. */
enum status trainer_create(const struct trainer_config *config, struct trainer **out_trainer)
    STATUS_MUST_CHECK;
/* Resumes or begins, trains to the end, saves, logs the final state hash (rank 0). STATUS_STOPPED:
 * a signal asked to stop and the state is saved; STATUS_INTERRUPTED: the same without --save. Other
 * failures: see comm.h, ckpt.h; STATUS_NUMERIC names step and rank of a loss or norm that is not
 * finite. */
enum status trainer_run(struct trainer *trainer) STATUS_MUST_CHECK;
void trainer_destroy(struct trainer **trainer);

/* For tests that put their own weights in, before trainer_run. */
struct gpt *trainer_gpt(struct trainer *trainer);

#endif
