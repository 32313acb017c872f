/* Checkpoints of a sharded training state: the whole interface of libholdfast_ckpt, in call order.
 *
 * Before it: train/train_state.c (the table of what must survive). After it: meta/commit.h (how it
 * becomes visible) and backup. A rank hands over views of its tensors; ckpt writes the boxes that
 * the rank owns into SAVE/step_N/tpXX_ppYY_dpZZ.h5 and commits them together, or reads the boxes
 * that the rank wants from the files of any layout.
 *
 * Saving blocks the caller. A save that fails on one rank fails on all, leaves nothing visible and
 * leaves the writer usable: the caller decides to train on.
 * Threads: one thread per writer; compression and hashing use an inner pool.
 */
#ifndef CKPT_CKPT_H
#define CKPT_CKPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"
#include "ckpt/meta/catalog.h"
#include "ckpt/meta/layout.h"
#include "ckpt/meta/manifest.h"
#include "ckpt/meta/shard_map.h"

/* How ranks talk during a save or load; ckpt knows no communicator. */
struct ckpt_group {
    int rank, size;
    void *context;
    /* `all` has room for size x bytes; part r is rank r's. Not called when size is 1. */
    enum status (*all_gather)(void *context, const void *mine, size_t bytes, void *all);
    /* From rank 0 to all, in place. Not called when size is 1. */
    enum status (*broadcast)(void *context, void *buffer, size_t bytes);
};

/* One tensor of the state as this rank holds it. Every rank names the same global tensor by the
 * same name, type and shape; a rank that holds nothing of a tensor does not list it. */
struct ckpt_tensor {
    const char *name; /* "param/embedding.word_embeddings.weight" */
    enum manifest_type type;
    int dims;
    uint64_t shape[BOX_DIMS_MAX]; /* global */
    struct box box;               /* what `data` holds, row-major and contiguous */
    struct box owned;             /* the part that this rank alone answers for (saves, hashes):
                                     * inside `box`, equal to it but for the first dimension; may
                                     * be empty. The owned boxes of all ranks tile the tensor. */
    void *data;
};

struct ckpt_writer_config {
    struct fs *fs;
    const char *save; /* the directory; made when missing */
    const char *run_id;
    struct layout layout;
    struct coords coords;
    struct ckpt_group group;
    const char *compression; /* "none" or "zstd" */
    int thread_count;
    uint64_t keep_last; /* 0: delete nothing */
    uint64_t keep_every;
};

struct ckpt_writer;

/* Collective. Rank 0 takes the lease; all ranks prove that they see the same directory by reading
 * back a nonce that rank 0 wrote (retried for a while: attribute caches), else STATUS_USAGE names
 * both paths and hosts. STATUS_NOT_OWNER: another run writes here. */
enum status ckpt_writer_open(const struct ckpt_writer_config *config,
                             struct ckpt_writer **out_writer) STATUS_MUST_CHECK;
uint64_t ckpt_writer_epoch(const struct ckpt_writer *writer);

struct ckpt_save {
    uint64_t step;
    uint64_t parent_step;
    const struct ckpt_tensor *tensors;
    size_t tensor_count;
    const cJSON *options; /* copied into the manifest; rank 0's counts */
    const cJSON *state;
};

struct ckpt_save_result {
    uint64_t state_hash;
    uint64_t bytes; /* of all files */
    double write_s, commit_s;
};

/* Collective. On success the checkpoint is committed and durable on every rank's return, and old
 * ones have been pruned. A failure has the same status on every rank and names the first rank that
 * failed; STATUS_NOT_OWNER and PEER_LOST mean that the run must end, anything else that this save
 * is lost. */
enum status ckpt_save(struct ckpt_writer *writer, const struct ckpt_save *save,
                      struct ckpt_save_result *out_result) STATUS_MUST_CHECK;
/* Bytes one checkpoint of these tensors takes, without compression, on this rank. */
uint64_t ckpt_estimate_bytes(const struct ckpt_tensor *tensors, size_t count);
/* Releases the lease. Takes NULL inside, leaves NULL. */
void ckpt_writer_close(struct ckpt_writer **writer);

/* What to resume from. */
struct ckpt_choice {
    bool found;             /* false: an empty or missing directory */
    char path[FS_PATH_MAX]; /* of the checkpoint */
    struct manifest manifest;
};

/* Collective: rank 0 scans `load` and chooses the newest usable checkpoint of at most `step_max`
 * (UINT64_MAX: any; with `exact` only that step); every rank reads the same manifest. A directory
 * that holds only unusable checkpoints is STATUS_NO_CHECKPOINT. Damaged ones are passed over; a
 * newer one that this user may not read (NO_PERMISSION) or of a newer format (UNSUPPORTED) is an
 * error. `load` may also be one checkpoint's own directory. */
enum status ckpt_choose(struct fs *fs, const char *load, uint64_t step_max, bool exact,
                        const struct ckpt_group *group, struct ckpt_choice *out_choice)
    STATUS_MUST_CHECK;
void ckpt_choice_deinit(struct ckpt_choice *choice);

/* Collective. Fills each tensor's `data` (its whole `box`) from whatever layout wrote it; every
 * chunk read is checked by hash first. When the ranks together own every tensor of the manifest
 * the state hash of the live memory is compared with the manifest's (STATUS_CORRUPT). A tensor
 * that the checkpoint does not have, or has in another shape or type, is
 * STATUS_OPTIONS_DIFFER. */
enum status ckpt_load(struct fs *fs, const struct ckpt_choice *choice,
                      const struct ckpt_tensor *tensors, size_t count, int thread_count,
                      const struct ckpt_group *group) STATUS_MUST_CHECK;

/* Offline, one process; memory for the largest tensor. Levels: QUICK sizes and manifest; FULL every
 * byte against the file hashes; DEEP the state hash of the decoded tensors. STATUS_CORRUPT: it is
 * damaged, which a missing part is too. STATUS_NOT_FOUND: the whole checkpoint is not there, or not
 * any more: a run's retention may delete it while it is read. */
enum ckpt_verify_level { CKPT_VERIFY_QUICK, CKPT_VERIFY_FULL, CKPT_VERIFY_DEEP };
enum status ckpt_verify(struct fs *fs, const char *checkpoint, enum ckpt_verify_level level,
                        int thread_count) STATUS_MUST_CHECK;

#endif
