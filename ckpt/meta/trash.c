/* Trash; see trash.h. */
#include "ckpt/meta/trash.h"

#include <stdio.h>
#include <string.h>

#include "ckpt/base/log.h"
#include "ckpt/meta/nonce.h"

#define TRASH_PREFIX ".trash-"

enum status trash_move(struct fs *fs, const char *save, const char *path,
                       char out_path[FS_PATH_MAX])
{
    enum status st = STATUS_OK;
    char nonce[NONCE_TEXT_MAX], name[sizeof TRASH_PREFIX + NONCE_TEXT_MAX], target[FS_PATH_MAX];

    TRY(st, nonce_make(nonce), done);
    (void)snprintf(name, sizeof name, TRASH_PREFIX "%s", nonce);
    TRY(st, fs_join(target, save, name), done);
    TRY(st, fs_rename(fs, path, target), done);
    if (out_path != NULL) {
        memcpy(out_path, target, sizeof target);
    }
done:
    return st;
}

static bool is_trash(const char *name)
{
    return strncmp(name, TRASH_PREFIX, strlen(TRASH_PREFIX)) == 0 ||
           strncmp(name, FS_TEMPORARY_PREFIX, strlen(FS_TEMPORARY_PREFIX)) == 0;
}

static enum status remove_all(struct fs *fs, const char *save)
{
    enum status st = STATUS_OK;
    struct fs_names names = {0};
    char path[FS_PATH_MAX];

    TRY(st, fs_list(fs, save, &names), done);
    for (size_t i = 0; i < names.count; i++) {
        if (is_trash(names.names[i])) {
            TRY(st, fs_join(path, save, names.names[i]), done);
            TRY(st, fs_remove_tree(fs, path), done);
        }
    }
done:
    fs_names_deinit(&names);
    return st;
}

void trash_empty(struct fs *fs, const char *save)
{
    struct status_record before;

    status_take(&before);
    if (remove_all(fs, save) != STATUS_OK) {
        log_warn("trash stays in '%s' for now: %s", save, status_last()->message);
    }
    (void)status_give(&before);
}
