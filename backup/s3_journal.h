/* The journal of multipart uploads under way on this host: parts that nobody completes are
 * invisible and are paid for, so each upload is written down before it begins.
 *
 * An entry is a file in $XDG_STATE_HOME/holdfast/uploads (~/.local/state/...): three lines, the
 * place (server and bucket), the key, the upload's id once it is known. It is locked (flock) while
 * its upload runs, and a lock dies with its process, so the left ones are known without guessing.
 * A host without a place for it uploads all the same; store_clean's look at the server is the net.
 */
#ifndef BACKUP_S3_JOURNAL_H
#define BACKUP_S3_JOURNAL_H

#include <stdbool.h>

#include "ckpt/base/status.h"

#define S3_UPLOAD_ID_MAX 2048

struct s3_journal_entry;

/* *out_entry is NULL when there is no place for a journal (a warning says so). */
enum status s3_journal_begin(const char *place, const char *key,
                             struct s3_journal_entry **out_entry) STATUS_MUST_CHECK;
enum status s3_journal_note(struct s3_journal_entry *entry, const char *upload_id)
    STATUS_MUST_CHECK;
/* `done`: the upload is completed or aborted, the entry goes. Else it stays for a later run. Takes
 * NULL inside, leaves NULL. */
void s3_journal_end(struct s3_journal_entry **entry, bool done);

/* An upload of a process that has died; its id is "" when it died before it knew it. STATUS_OK
 * removes the entry. */
typedef enum status (*s3_journal_fn)(void *context, const char *key, const char *upload_id);

/* Every left entry of `place`; goes on after a failure, which is logged and whose entry stays. */
enum status s3_journal_visit(const char *place, s3_journal_fn visit, void *context)
    STATUS_MUST_CHECK;

#endif
