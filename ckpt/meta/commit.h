/* The commit: how a staged checkpoint becomes visible, all or nothing.
 *
 *     begin      SAVE/.epoch-<E>/step_N/ is made (an older attempt of this epoch is removed)
 *     (ranks)    each writes its shard there, syncs it, and reports a commit_record by message
 *     publish    lease checked -> manifest written and synced -> staging directory synced ->
 *                rename to SAVE/step_N -> SAVE synced -> `latest` replaced (a hint only)
 *     discard    the staging directory is removed; nothing was visible
 *
 * A failed sync or a record with an error fails the commit; the newest committed checkpoint is
 * untouched. The rename's path leads through .epoch-<E>, which a takeover renames away, so a stale
 * writer cannot commit. Only rank 0 calls begin, publish and discard.
 */
#ifndef CKPT_META_COMMIT_H
#define CKPT_META_COMMIT_H

#include <stdint.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"
#include "ckpt/meta/lease.h"
#include "ckpt/meta/manifest.h"

#define COMMIT_LATEST_FILE "latest"
#define COMMIT_MESSAGE_MAX 512

/* What one rank reports of its shard: plain data, sent between ranks of one build as bytes. The
 * epoch and step tell a late record of another save. */
struct commit_record {
    uint64_t epoch, step;
    int32_t rank;
    int32_t status;                   /* enum status of this rank's write */
    char message[COMMIT_MESSAGE_MAX]; /* its error, when not OK */
    struct manifest_file file;
    uint64_t state_hash_sum; /* of the boxes this rank owns */
};

enum status commit_begin(struct fs *fs, const struct lease *lease, uint64_t step,
                         char out_staging[FS_PATH_MAX]) STATUS_MUST_CHECK;
/* Fills in manifest->epoch. STATUS_EXISTS when step_N is there already: its old content stays, the
 * staging is removed. STATUS_NOT_OWNER: a newer owner is there, nothing became visible. After any
 * other failure the staging is left to commit_discard. */
enum status commit_publish(struct fs *fs, const char *save, struct lease *lease,
                           struct manifest *manifest, const char *staging) STATUS_MUST_CHECK;
void commit_discard(struct fs *fs, const char *staging);

#endif
