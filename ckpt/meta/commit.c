/* The commit; see commit.h. Before it: the ranks have written and synced their shards; after it:
 * catalog finds the step, backup copies it.
 *
 * Invariant: fs_rename in publish is the one call that makes a checkpoint visible, and everything
 * below the name is durable by then. Its path leads through the epoch's directory, which a newer
 * owner has renamed away: the file system itself refuses a stale writer.
 */
#include "ckpt/meta/commit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/log.h"
#include "ckpt/meta/trash.h"

enum status commit_begin(struct fs *fs, const struct lease *lease, uint64_t step,
                         char out_staging[FS_PATH_MAX])
{
    enum status st = STATUS_OK;
    char name[LAYOUT_NAME_MAX], save[FS_PATH_MAX];

    TRY(st, lease_check(lease), done);
    layout_step_name(step, name);
    TRY(st, fs_join(out_staging, lease_staging(lease), name), done);
    fs_parent(save, lease_staging(lease));
    st = trash_move(fs, save, out_staging, NULL);
    if (st == STATUS_OK) {
        trash_empty(fs, save);
    }
    TRY(st, st == STATUS_NOT_FOUND ? STATUS_OK : st, done);
    /* Not fs_make_dirs: an epoch directory that is gone was fenced, and stays gone. */
    TRY(st, fs_mkdir(fs, out_staging), done);
done:
    return st;
}

void commit_discard(struct fs *fs, const char *staging)
{
    struct status_record before;

    status_take(&before);
    if (fs_remove_tree(fs, staging) != STATUS_OK) {
        log_warn("staging '%s' stays for now: %s", staging, status_last()->message);
    }
    (void)status_give(&before);
}

/* Why the rename was refused. */
static enum status explain_rename(struct fs *fs, const struct lease *lease, const char *staging,
                                  const char *target, enum status refused)
{
    enum status st = STATUS_OK;

    if (refused == STATUS_EXISTS) {
        commit_discard(fs, staging);
        return FAIL(STATUS_EXISTS, "checkpoint '%s' is there already: it stays as it is", target);
    }
    if (refused == STATUS_NOT_FOUND) {
        TRY(st, lease_check(lease), done);
        st = FAIL(STATUS_NOT_OWNER, "staging '%s' was taken away: a newer owner has been here",
                  staging);
    } else {
        st = refused;
    }
done:
    return st;
}

/* A rename that may not last is taken back, so that nobody prunes by it. */
static void take_back(struct fs *fs, const char *target, const char *staging)
{
    struct status_record before;

    status_take(&before);
    if (fs_rename(fs, target, staging) != STATUS_OK) {
        log_warn("checkpoint '%s' is whole, but may not survive a power cut: %s", target,
                 before.message);
    }
    (void)status_give(&before);
}

/* A hint for people and scripts; no reader of ours trusts it, so its failure is no failure. */
static void write_latest(struct fs *fs, const char *save, const char *name)
{
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX], line[LAYOUT_NAME_MAX + 1];
    int length = snprintf(line, sizeof line, "%s\n", name);

    TRY(st, fs_join(path, save, COMMIT_LATEST_FILE), done);
    TRY(st, fs_replace_file(fs, path, line, (size_t)length), done);
done:
    if (st != STATUS_OK) {
        log_warn("'%s/%s' could not be replaced: %s", save, COMMIT_LATEST_FILE,
                 status_last()->message);
    }
}

enum status commit_publish(struct fs *fs, const char *save, struct lease *lease,
                           struct manifest *manifest, const char *staging)
{
    enum status st = STATUS_OK;
    char name[LAYOUT_NAME_MAX], target[FS_PATH_MAX], expected[FS_PATH_MAX];

    layout_step_name(manifest->step, name);
    TRY(st, fs_join(target, save, name), done);
    TRY(st, fs_join(expected, lease_staging(lease), name), done);
    CHECK(strcmp(staging, expected) == 0);
    manifest->epoch = lease_epoch(lease);
    TRY(st, lease_check(lease), done);
    if (fs_exists(fs, target)) {
        return explain_rename(fs, lease, staging, target, STATUS_EXISTS);
    }
    TRY(st, manifest_write(manifest, fs, staging), done);
    TRY(st, fs_sync_dir(fs, staging), done);
    st = fs_rename(fs, staging, target);
    if (st != STATUS_OK) {
        return explain_rename(fs, lease, staging, target, st);
    }
    st = fs_sync_dir(fs, save);
    if (st != STATUS_OK) {
        take_back(fs, target, staging);
        return st;
    }
    write_latest(fs, save, name);
done:
    return st;
}
