/* Copies of whole files between a folder and a store: hashed on the way, in parallel, retried.
 *
 * Before it: sync_plan (what to copy). After it: store. A file's hash is taken while it is read,
 * and again of what the store holds, so that neither a damaged source nor a damaged copy passes.
 * A failure of a class that may go better is tried again TRANSFER_TRIES times with growing,
 * jittered pauses. Memory: TRANSFER_BUFFER_BYTES a job.
 */
#ifndef BACKUP_TRANSFER_H
#define BACKUP_TRANSFER_H

#include <stddef.h>
#include <stdint.h>

#include "backup/progress_line.h"
#include "backup/store.h"
#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"
#include "ckpt/meta/manifest.h"

#define TRANSFER_TRIES 5
#define TRANSFER_BUFFER_BYTES ((size_t)8 << 20)
#define TRANSFER_JOBS_MAX 64

struct transfer {
    struct store *store;
    const char *prefix; /* at the far side: "step_0000500" */
    struct fs *fs;
    const char *folder; /* at the near side; not read by transfer_verify */
    int jobs;
    int64_t pause_ms; /* before the first retry; doubles */
    struct progress_line *progress;
};

/* Sends every file of the manifest that is not there with its size and hash. STATUS_CORRUPT: a
 * source file is damaged (nothing of it is left at the far side). */
enum status transfer_push(const struct transfer *transfer, const struct manifest *manifest,
                          const struct store_list *there) STATUS_MUST_CHECK;
/* Fetches every file into `folder`, synced; those that are there with size and hash are kept.
 * STATUS_CORRUPT: the far side is damaged. */
enum status transfer_pull(const struct transfer *transfer, const struct manifest *manifest)
    STATUS_MUST_CHECK;
/* Reads every file at the far side and compares its hash. */
enum status transfer_verify(const struct transfer *transfer, const struct manifest *manifest)
    STATUS_MUST_CHECK;

#endif
