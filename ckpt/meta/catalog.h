/* The catalog: which checkpoints a directory holds, which one to resume from, which to delete.
 *
 * The truth is the directories step_N with a valid manifest and all files in their size; `latest`
 * is never trusted. Names that begin with '.' and rejected-step_* are not checkpoints. The scan
 * reads; catalog_choose and catalog_plan_prune are pure.
 */
#ifndef CKPT_META_CATALOG_H
#define CKPT_META_CATALOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"
#include "ckpt/meta/manifest.h"

#define CATALOG_REASON_MAX 512

struct catalog_entry {
    uint64_t step;
    char path[FS_PATH_MAX];
    bool usable;
    enum status fault;               /* OK when usable; CORRUPT: damaged or incomplete;
                                             * anything else: it could not be read just now */
    char reason[CATALOG_REASON_MAX]; /* why it is not */
    struct manifest manifest;        /* only when usable */
    uint64_t bytes;
};

struct catalog {
    char path[FS_PATH_MAX];
    struct catalog_entry *entries; /* by step, ascending */
    size_t count;
    size_t other_count; /* names that are neither ours nor hidden */
};

/* A directory that is not there is an empty catalog; one that cannot be read is an error. */
enum status catalog_scan(struct fs *fs, const char *save, struct catalog *out_catalog)
    STATUS_MUST_CHECK;
void catalog_deinit(struct catalog *catalog);
/* The newest usable entry of at most `step_max` (UINT64_MAX: any); NULL when there is none. Every
 * unusable one that it passes over is logged with its reason. */
const struct catalog_entry *catalog_choose(const struct catalog *catalog, uint64_t step_max);
/* STATUS_NO_CHECKPOINT with the list of what was found and why each is unusable, and the flag to
 * start from scratch. */
enum status catalog_fail_none(const struct catalog *catalog) STATUS_MUST_CHECK;

/* Before a run goes on from `step`, every later step_M is renamed durably to
 * rejected-step_M-<epoch>, so that "newest" means newest on the current lineage. */
enum status catalog_reject_after(struct fs *fs, const char *save, uint64_t step, uint64_t epoch)
    STATUS_MUST_CHECK;
/* Whether a checkpoint of `step` was set aside so, by whatever epoch. */
enum status catalog_has_rejected(struct fs *fs, const char *save, uint64_t step, bool *out_found)
    STATUS_MUST_CHECK;

/* Retention. Keeps the newest keep_last usable checkpoints (at least 1) and every one whose step
 * is a multiple of keep_every (0: none); damaged ones older than the newest usable one go too
 * (those that merely could not be read, or are of a newer format, stay). Pinned ones stay; NULL:
 * none is. Without a usable one nothing goes. out_delete[i] says whether entry i goes. */
void catalog_plan_prune(const struct catalog *catalog, uint64_t keep_last, uint64_t keep_every,
                        const bool *pinned, bool *out_delete);
/* Scans, plans, and deletes by rename to SAVE/.trash-* first (synced), then removal. Called only
 * after a commit is durable. Counts what went. Also removes older trash. */
enum status catalog_prune(struct fs *fs, const char *save, uint64_t keep_last, uint64_t keep_every,
                          size_t *out_deleted) STATUS_MUST_CHECK;

/* Pins: a reader (load, backup) keeps a checkpoint from being pruned while it reads. A pin is a
 * file SAVE/.pins/step_N.<host>.<pid>.<nonce> whose counter its owner moves; stale ones (process
 * gone on this host, or unchanged for LEASE_STALE_MS on the observer's clock) are ignored and
 * removed by prune. A directory that this user cannot write, or a full disk, gives no pin
 * (STATUS_OK and *out_pin NULL): a load must not fail for it. STATUS_NOT_FOUND: the step was
 * pruned before the pin stood; choose another. */
struct catalog_pin;
enum status catalog_pin_create(struct fs *fs, const char *save, uint64_t step,
                               struct catalog_pin **out_pin) STATUS_MUST_CHECK;
/* The same for a checkpoint's own path. A copy that has another name than its step has nobody who
 * prunes it, and gets no pin. */
enum status catalog_pin_checkpoint(struct fs *fs, const char *checkpoint, uint64_t step,
                                   struct catalog_pin **out_pin) STATUS_MUST_CHECK;
void catalog_pin_destroy(struct catalog_pin **pin); /* takes NULL inside */

#endif
