/* Removal at the far side: manifest first, so that no half checkpoint looks whole. */
#ifndef BACKUP_REMOVE_STEP_H
#define BACKUP_REMOVE_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "backup/remote_catalog.h"
#include "backup/store.h"
#include "ckpt/base/status.h"

/* Removes what sync_plan_prune says, or with `dry_run` only says it. */
enum status remove_old_steps(struct store *store, const struct remote_catalog *catalog,
                             uint64_t keep_last, bool dry_run, bool json) STATUS_MUST_CHECK;

#endif
