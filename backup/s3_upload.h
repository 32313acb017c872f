/* One object sent whole: a single PUT, or a multipart upload in equal parts.
 *
 * Before it: store_s3. After it: s3_client, s3_journal. An object is visible only when all of it is
 * there; an upload that fails is aborted, one that is killed stays in the journal. A 200 on the
 * completion counts only with its result element. Each part carries its CRC32C where the server
 * takes it; what the server really holds is proved by transfer, which reads it back.
 * Memory: one part. Threads: several at once.
 */
#ifndef BACKUP_S3_UPLOAD_H
#define BACKUP_S3_UPLOAD_H

#include <stdint.h>

#include "backup/s3_client.h"
#include "backup/store.h"
#include "ckpt/base/status.h"

#define S3_PART_COUNT_MAX 10000
#define S3_PART_BYTES_MIN ((uint64_t)8 << 20) /* the protocol's least is 5 MiB */
#define S3_PART_BYTES_MAX ((uint64_t)5 << 30)

/* The size of all parts but the last: the least that is enough, in whole MiB. STATUS_USAGE: no
 * object can be so large. */
enum status s3_upload_plan(uint64_t bytes, uint64_t *out_part_bytes) STATUS_MUST_CHECK;
enum status s3_upload_put(struct s3_client *client, const char *key,
                          const struct store_source *source) STATUS_MUST_CHECK;
/* STATUS_OK when there is no such upload. */
enum status s3_upload_abort(struct s3_client *client, const char *key, const char *upload_id)
    STATUS_MUST_CHECK;

#endif
