/* The directory store: an object is a file, an upload a hidden file beside its folder's others. */
#ifndef BACKUP_STORE_DIR_H
#define BACKUP_STORE_DIR_H

#include "backup/store.h"
#include "ckpt/base/status.h"

/* For store.c's list; everybody else calls store_open. */
enum status store_dir_open(const char *path, int create, const struct store_options *options,
                           struct store **out_store) STATUS_MUST_CHECK;

#endif
