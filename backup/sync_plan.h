/* Which steps to push, which objects to copy and in which order, what to prune: pure decisions.
 *
 * Before it: two catalogs. After it: transfer. The order keeps the far side valid at every moment:
 * claim, shards (in any order), manifest; for removal: manifest first.
 */
#ifndef BACKUP_SYNC_PLAN_H
#define BACKUP_SYNC_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backup/remote_catalog.h"
#include "ckpt/base/status.h"
#include "ckpt/meta/catalog.h"

enum sync_action {
    SYNC_PUSH,  /* upload what is missing, then the manifest */
    SYNC_DONE,  /* the same checkpoint is there, complete */
    SYNC_REFUSE /* another run's checkpoint of this step is there or under way */
};

struct sync_decision {
    enum sync_action action;
    char reason[STATUS_MESSAGE_MAX]; /* of REFUSE: both run ids */
};

/* `manifest_text` is the local manifest's exact bytes; `remote` may be NULL. A damaged copy of the
 * same manifest is pushed again. */
void sync_plan_push(const struct manifest *manifest, const char *manifest_text,
                    size_t manifest_bytes, const struct remote_entry *remote,
                    struct sync_decision *out_decision);

enum sync_file { SYNC_FILE_COPY, SYNC_FILE_CHECK };
/* CHECK: an object of the right size is there; its bytes decide whether it must be sent again. */
enum sync_file sync_plan_file(const struct manifest_file *file, const struct remote_entry *remote);

/* Keeps the newest keep_last (at least 1) complete steps; older complete ones go, and so do older
 * incomplete ones that nobody claims. out_delete[i] is for entry i. */
void sync_plan_prune(const struct remote_catalog *catalog, uint64_t keep_last, bool *out_delete);

#endif
