/* The run's checkpoints: where it begins, what it saves.
 *
 * Before it: train_options (--load, --save and their kin), run_env (what the agent remembers),
 * train_state (what survives). After it: ckpt/ckpt.h.
 *
 * Invariants: a run begins at step 0 only where there is nothing to lose, or by --from-scratch; it
 * never begins before a step that it has itself committed; a directory has one lineage (steps after
 * the one gone on from are renamed to rejected-*, never deleted).
 */
#ifndef TRAIN_TRAIN_CKPT_H
#define TRAIN_TRAIN_CKPT_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"
#include "ckpt/ckpt.h"
#include "ckpt/meta/run_env.h"
#include "train/train_options.h"
#include "train/train_state.h"

struct train_ckpt {
    const struct train_options *options;
    const struct train_plan *plan;
    struct train_options acting; /* the options, maybe with a checkpoint's schedule: saved */
    struct lr_schedule schedule; /* the plan's, or that of `acting` */
    const struct run_env *env;
    const struct topology *topology;
    struct fs *fs;
    int thread_count;
    size_t *byte_counts; /* [ranks] scratch of the gathers */
    struct ckpt_group group;
    struct ckpt_writer *writer; /* NULL without --save */
    int64_t own_step;           /* newest step this run is known to have committed; -1: none */
    bool resumed;
    uint64_t resumed_step;
    int64_t committed_step; /* newest step in --save of this lineage; -1: none */
};

/* All pointers stay the caller's. */
enum status train_ckpt_init(struct train_ckpt *ckpt, const struct train_options *options,
                            const struct train_plan *plan, const struct run_env *env,
                            const struct topology *topology, struct fs *fs, int thread_count)
    STATUS_MUST_CHECK;
/* Releases the lease. Takes zeroed storage. */
void train_ckpt_deinit(struct train_ckpt *ckpt);

/* Chooses the checkpoint, checks it against the options, fills `state` (or leaves it as it is, for
 * step 0), takes the lease of --save and sets later steps aside. *out_done: the chosen checkpoint
 * is the end of the training; then nothing was loaded or written. Collective. */
enum status train_ckpt_begin(struct train_ckpt *ckpt, struct train_state *state, bool *out_done)
    STATUS_MUST_CHECK;
/* Compares replicas, then saves. STATUS_NUMERIC (replicas differ), NOT_OWNER, PEER_LOST, ABORTED
 * and TIMEOUT end the run; after others it may go on. Collective. */
enum status train_ckpt_save(struct train_ckpt *ckpt, const struct train_state *state)
    STATUS_MUST_CHECK;
/* Whether a failed save ends the run. */
bool train_ckpt_is_fatal(enum status status);

#endif
