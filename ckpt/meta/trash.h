/* Trash: whatever is to be deleted is first renamed to SAVE/.trash-<nonce>, so that a half-deleted
 * thing is never met under its own name, whatever dies in between. Used by lease (staging of old
 * epochs), commit (an older attempt) and catalog (retention); emptied by any later owner.
 */
#ifndef CKPT_META_TRASH_H
#define CKPT_META_TRASH_H

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"

/* Renames `path`, which lies in or below `save`, to trash; out_path (when not NULL) is its new
 * name. The caller syncs the directory that it was in when the disappearance must last. */
enum status trash_move(struct fs *fs, const char *save, const char *path,
                       char out_path[FS_PATH_MAX]) STATUS_MUST_CHECK;
/* Removes all trash, and temporary files that killed writers left; only the owner of `save` calls
 * this, between its own writes. What cannot be removed is logged and left to the next one. Does not
 * change the thread's last error. */
void trash_empty(struct fs *fs, const char *save);

#endif
