/* The lease of a SAVE directory; see lease.h for its states. Before it: a run starts; after it:
 * commit asks lease_check, and publishes by a path through the epoch's own staging directory.
 *
 * Invariants:
 *  - An epoch number is used once: O_EXCL decides between two newcomers, and the winner looks again
 *    after he has made his staging directory. So an owner whose directory exists was the newest at
 *    a moment when it existed, and whoever comes later finds it and renames it away.
 *  - The older staging directories go before the older owner files: a crash in between leaves
 *    files that the next newcomer clears.
 *  - Nothing is decided by a time in a file.
 */
#include "ckpt/meta/lease.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/meta/nonce.h"
#include "ckpt/meta/trash.h"

#define OWNER_PREFIX ".owner."
#define EPOCH_PREFIX ".epoch-"
#define EPOCH_MAX (UINT64_C(1) << 53) /* stays an exact JSON number in the manifest */
#define LOOK_MS (LEASE_BEAT_MS / 5)
#define TRIES_MAX 64

struct lease {
    struct fs *fs;
    char save[FS_PATH_MAX];
    char staging[FS_PATH_MAX];
    char owner_path[FS_PATH_MAX];
    uint64_t epoch;
    struct heartbeat_holder self;
    struct heartbeat *heartbeat;
};

enum status lease_make_run_id(char out_run_id[LEASE_RUN_ID_MAX])
{
    _Static_assert(NONCE_TEXT_MAX <= LEASE_RUN_ID_MAX, "a nonce is a run id");
    return nonce_make(out_run_id);
}

/* The number of "PREFIX<E>", or 0 (no epoch) for any other name. */
static uint64_t parse_epoch(const char *name, const char *prefix)
{
    size_t length = strlen(prefix);
    uint64_t epoch = 0;

    if (strncmp(name, prefix, length) != 0 || name[length] == '0') {
        return 0;
    }
    for (const char *at = name + length; *at != '\0'; at++) {
        if (*at < '0' || *at > '9' || epoch > EPOCH_MAX / 10) {
            return 0;
        }
        epoch = epoch * 10 + (uint64_t)(*at - '0');
    }
    return epoch < EPOCH_MAX ? epoch : 0;
}

static enum status epoch_path(char out_path[FS_PATH_MAX], const char *save, const char *prefix,
                              uint64_t epoch)
{
    char name[64];

    (void)snprintf(name, sizeof name, "%s%" PRIu64, prefix, epoch);
    return fs_join(out_path, save, name);
}

/* The highest epochs of owner files and of staging directories; 0: there is none. */
static enum status find_epochs(struct fs *fs, const char *save, uint64_t *out_owner,
                               uint64_t *out_staging)
{
    enum status st = STATUS_OK;
    struct fs_names names = {0};

    *out_owner = *out_staging = 0;
    TRY(st, fs_list(fs, save, &names), done);
    for (size_t i = 0; i < names.count; i++) {
        uint64_t owner = parse_epoch(names.names[i], OWNER_PREFIX);
        uint64_t staging = parse_epoch(names.names[i], EPOCH_PREFIX);

        *out_owner = owner > *out_owner ? owner : *out_owner;
        *out_staging = staging > *out_staging ? staging : *out_staging;
    }
done:
    fs_names_deinit(&names);
    return st;
}

static enum status fail_not_owner(const struct lease *lease, uint64_t epoch,
                                  const struct heartbeat_record *record)
{
    char other[HEARTBEAT_TEXT_MAX] = "somebody whose owner file cannot be read";
    char mine[HEARTBEAT_TEXT_MAX];

    if (record->readable) {
        heartbeat_format(&record->holder, other);
    }
    heartbeat_format(&lease->self, mine);
    return FAIL(STATUS_NOT_OWNER,
                "directory '%s' is written by %s, epoch %" PRIu64 ", and not by %s: "
                "stop one of them, or give each its own --save",
                lease->save, other, epoch, mine);
}

static bool may_take_at_once(const struct lease *lease, const struct heartbeat_record *record)
{
    return record->readable &&
           (record->released || strcmp(record->holder.run_id, lease->self.run_id) == 0 ||
            heartbeat_judge(record) == HEARTBEAT_GONE);
}

/* OK: the owner of `epoch` may be succeeded. NOT_OWNER: he lives. NOT_FOUND: his file has gone, so
 * somebody else has succeeded him meanwhile. */
static enum status wait_for_end(const struct lease *lease, uint64_t epoch)
{
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX];
    struct heartbeat_record first, now;
    struct deadline stale = deadline_in_ms(LEASE_STALE_MS);

    TRY(st, epoch_path(path, lease->save, OWNER_PREFIX, epoch), done);
    TRY(st, heartbeat_read(lease->fs, path, &first), done);
    now = first;
    if (!may_take_at_once(lease, &now)) {
        log_info("watching the owner of '%s' (epoch %" PRIu64 ") for up to %d s", lease->save,
                 epoch, LEASE_STALE_MS / 1000);
    }
    while (!may_take_at_once(lease, &now) && !deadline_passed(stale)) {
        if (heartbeat_moved(&first, &now)) {
            return fail_not_owner(lease, epoch, &now);
        }
        clock_sleep_ms(LOOK_MS);
        TRY(st, heartbeat_read(lease->fs, path, &now), done);
    }
    if (heartbeat_moved(&first, &now) && !may_take_at_once(lease, &now)) {
        st = fail_not_owner(lease, epoch, &now);
    }
done:
    return st;
}

/* The fence: a commit of an earlier epoch leads through a name that is not there any more. */
static enum status fence_older(const struct lease *lease)
{
    enum status st = STATUS_OK;
    struct fs_names names = {0};
    char path[FS_PATH_MAX];

    TRY(st, fs_list(lease->fs, lease->save, &names), done);
    for (size_t i = 0; i < names.count; i++) {
        uint64_t epoch = parse_epoch(names.names[i], EPOCH_PREFIX);

        if (epoch == 0 || epoch >= lease->epoch) {
            continue;
        }
        TRY(st, fs_join(path, lease->save, names.names[i]), done);
        st = trash_move(lease->fs, lease->save, path, NULL);
        TRY(st, st == STATUS_NOT_FOUND ? STATUS_OK : st, done);
    }
done:
    fs_names_deinit(&names);
    return st;
}

static enum status remove_older_owners(const struct lease *lease)
{
    enum status st = STATUS_OK;
    struct fs_names names = {0};
    char path[FS_PATH_MAX];

    TRY(st, fs_list(lease->fs, lease->save, &names), done);
    for (size_t i = 0; i < names.count; i++) {
        uint64_t epoch = parse_epoch(names.names[i], OWNER_PREFIX);

        if (epoch == 0 || epoch >= lease->epoch) {
            continue;
        }
        TRY(st, fs_join(path, lease->save, names.names[i]), done);
        st = fs_unlink(lease->fs, path);
        TRY(st, st == STATUS_NOT_FOUND ? STATUS_OK : st, done);
    }
done:
    fs_names_deinit(&names);
    return st;
}

static enum status check_newest(const struct lease *lease, bool *out_newest)
{
    enum status st = STATUS_OK;
    uint64_t owner, staging;

    TRY(st, find_epochs(lease->fs, lease->save, &owner, &staging), done);
    *out_newest = owner <= lease->epoch;
done:
    return st;
}

/* Gives up an epoch that was claimed and not used. */
static void drop_claim(struct lease *lease)
{
    struct status_record before;

    status_take(&before);
    if (fs_rmdir(lease->fs, lease->staging) != STATUS_OK) {
        log_debug("staging '%s' was not made", lease->staging);
    }
    heartbeat_remove(&lease->heartbeat);
    (void)status_give(&before);
}

/* Takes lease->epoch. EXISTS: another newcomer has it, or a later one; look again. */
static enum status claim(struct lease *lease)
{
    enum status st = STATUS_OK;
    bool newest = false;

    TRY(st, epoch_path(lease->owner_path, lease->save, OWNER_PREFIX, lease->epoch), done);
    TRY(st, epoch_path(lease->staging, lease->save, EPOCH_PREFIX, lease->epoch), done);
    TRY(st, heartbeat_create(lease->fs, lease->owner_path, lease->self.run_id, &lease->heartbeat),
        done);
    TRY(st, fence_older(lease), drop);
    TRY(st, fs_mkdir(lease->fs, lease->staging), drop);
    TRY(st, fs_sync_dir(lease->fs, lease->save), drop);
    /* A newcomer who slept may have taken a number below the owner's. It has fenced only epochs
     * below its own, which the owner had fenced before. */
    TRY(st, check_newest(lease, &newest), drop);
    if (!newest) {
        st = FAIL(STATUS_EXISTS, "epoch %" PRIu64 " of '%s' is over already", lease->epoch,
                  lease->save);
        goto drop;
    }
    TRY(st, remove_older_owners(lease), drop);
done:
    return st;
drop:
    drop_claim(lease);
    return st;
}

static enum status take(struct lease *lease)
{
    enum status st = STATUS_OK;

    for (int tries = 0; tries < TRIES_MAX; tries++) {
        uint64_t owner, staging;

        TRY(st, find_epochs(lease->fs, lease->save, &owner, &staging), done);
        if (owner > 0) {
            st = wait_for_end(lease, owner);
            if (st == STATUS_NOT_FOUND) {
                continue;
            }
            TRY(st, st, done);
        }
        lease->epoch = (owner > staging ? owner : staging) + 1;
        st = claim(lease);
        if (st != STATUS_EXISTS) {
            return st;
        }
    }
    return FAIL(STATUS_NOT_OWNER, "directory '%s' changed its owner %d times while this run waited",
                lease->save, TRIES_MAX);
done:
    return st;
}

enum status lease_acquire(struct fs *fs, const char *save, const char *run_id,
                          struct lease **out_lease)
{
    enum status st = STATUS_OK;
    struct lease *lease = NULL;

    *out_lease = NULL;
    CHECK(run_id[0] != '\0'); /* two runs without an id would seem the same run */
    TRY(st, mem_alloc(&lease, 1, sizeof *lease), done);
    lease->fs = fs;
    TRY(st, heartbeat_get_self(run_id, &lease->self), done);
    if (strlen(save) >= sizeof lease->save) {
        st = FAIL(STATUS_USAGE, "path '%.80s...' is too long", save);
        goto done;
    }
    memcpy(lease->save, save, strlen(save) + 1);
    TRY(st, take(lease), done);
    trash_empty(fs, save);
    *out_lease = lease;
    lease = NULL;
done:
    mem_free(&lease);
    return st;
}

uint64_t lease_epoch(const struct lease *lease)
{
    return lease->epoch;
}

const char *lease_staging(const struct lease *lease)
{
    return lease->staging;
}

enum status lease_check(const struct lease *lease)
{
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX];
    struct heartbeat_record record = {0};
    uint64_t owner, staging;

    TRY(st, find_epochs(lease->fs, lease->save, &owner, &staging), done);
    if (owner > lease->epoch) {
        TRY(st, epoch_path(path, lease->save, OWNER_PREFIX, owner), done);
        st = heartbeat_read(lease->fs, path, &record);
        TRY(st, st == STATUS_NOT_FOUND ? STATUS_OK : st, done);
        return fail_not_owner(lease, owner, &record);
    }
    if (owner < lease->epoch) {
        st = FAIL(STATUS_NOT_OWNER,
                  "owner file '%s' is gone, so another run may write here: "
                  "start again, and remove no .owner files",
                  lease->owner_path);
    }
done:
    return st;
}

void lease_release(struct lease **lease)
{
    struct status_record before;

    if (*lease == NULL) {
        return;
    }
    status_take(&before);
    /* What is still staged is left to the next owner, who moves it to trash. */
    if (fs_rmdir((*lease)->fs, (*lease)->staging) != STATUS_OK) {
        log_debug("staging '%s' stays: %s", (*lease)->staging, status_last()->message);
    }
    heartbeat_release(&(*lease)->heartbeat);
    mem_free(lease);
    (void)status_give(&before);
}
