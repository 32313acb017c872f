/* The S3 store: an object is an object of a bucket, its key the store's prefix, a '/' and its name.
 */
#ifndef BACKUP_STORE_S3_H
#define BACKUP_STORE_S3_H

#include "backup/store.h"
#include "ckpt/base/status.h"

/* For store.c's list; everybody else calls store_open. `where` is what stands behind "s3://":
 * BUCKET or BUCKET/PREFIX, taken literally. Buckets are never created. */
enum status store_s3_open(const char *where, int create, const struct store_options *options,
                          struct store **out_store) STATUS_MUST_CHECK;

#endif
