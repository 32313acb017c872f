/* What a store holds: which steps are complete, which are under way or left half.
 *
 *     step_0000500/tp00_pp00_dp00.h5 ...   the shards, as in SAVE
 *     step_0000500/push-<run id>           somebody of that run uploads this step (or died at it)
 *     step_0000500/manifest.json           written last: the step is complete
 *
 * Before it: store. After it: sync_plan.
 */
#ifndef BACKUP_REMOTE_CATALOG_H
#define BACKUP_REMOTE_CATALOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backup/store.h"
#include "ckpt/base/status.h"
#include "ckpt/meta/manifest.h"

#define REMOTE_CLAIM_PREFIX "push-"

struct remote_entry {
    uint64_t step;
    char name[LAYOUT_NAME_MAX];      /* "step_0000500" */
    bool complete;                   /* has a valid manifest and all objects in their size */
    char reason[STATUS_MESSAGE_MAX]; /* why it is not */
    struct manifest manifest;        /* zero when it could not be read */
    char *manifest_text;             /* its exact bytes; NULL: none */
    size_t manifest_bytes;
    char claim_run_id[MANIFEST_RUN_ID_MAX]; /* of the first push under way; "": none */
    struct store_list objects;              /* of this step */
    size_t object_capacity;
};

struct remote_catalog {
    struct remote_entry *entries; /* by step, ascending */
    size_t count;
};

enum status remote_catalog_scan(struct store *store, struct remote_catalog *out_catalog)
    STATUS_MUST_CHECK;
void remote_catalog_deinit(struct remote_catalog *catalog);
/* NULL when the store holds nothing of that step. */
const struct remote_entry *remote_catalog_find(const struct remote_catalog *catalog, uint64_t step);
/* The complete entry to restore: `step`, or the newest when step is UINT64_MAX. Damaged and half
 * ones that it passes over are logged. STATUS_NO_CHECKPOINT tells what is there. */
enum status remote_catalog_choose(const struct remote_catalog *catalog, uint64_t step,
                                  const struct remote_entry **out_entry) STATUS_MUST_CHECK;

#endif
