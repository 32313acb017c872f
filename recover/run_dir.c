/* The run directory; see run_dir.h. Before it: agent.c opens it; after it: launcher.c hands its
 * path and numbers to the ranks. */
#include "recover/run_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/json.h"
#include "ckpt/base/log.h"
#include "ckpt/meta/lease.h"

#define LOCK_RETRY_MS 20

static enum status make_fresh(char out_path[FS_PATH_MAX])
{
    const char *parent = getenv("TMPDIR");

    if (parent == NULL || parent[0] == '\0') {
        parent = "/tmp";
    }
    if (snprintf(out_path, FS_PATH_MAX, "%s/holdfast-run-XXXXXX", parent) >= FS_PATH_MAX) {
        return FAIL(STATUS_USAGE, "path '%s' of TMPDIR is too long", parent);
    }
    if (mkdtemp(out_path) == NULL) {
        return FAIL_ERRNO("cannot make a run folder in '%s'", parent);
    }
    return STATUS_OK;
}

static enum status find_path(const char *path, char out_path[FS_PATH_MAX])
{
    enum status st = STATUS_OK;
    char fresh[FS_PATH_MAX];

    if (path[0] == '\0') {
        TRY(st, make_fresh(fresh), done);
        path = fresh;
    } else {
        TRY(st, fs_make_dirs(fs_posix(), path), done);
    }
    /* Absolute, because a rank may change its directory. PATH_MAX is FS_PATH_MAX. */
    if (realpath(path, out_path) == NULL) {
        st = FAIL_ERRNO("cannot resolve run folder '%s'", path);
    }
done:
    return st;
}

/* Opens and locks DIR/NAME; STATUS_EXISTS when it stays locked for wait_ms. */
static enum status take_lock(const char *directory, const char *name, int extra_flags,
                             int64_t wait_ms, int *out_fd)
{
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX];
    struct deadline deadline = deadline_in_ms(wait_ms);
    int fd = -1;

    TRY(st, fs_join(path, directory, name), done);
    fd = open(path, O_RDWR | O_CREAT | extra_flags, 0666);
    if (fd < 0) {
        st = FAIL_ERRNO("cannot open lock '%s'", path);
        goto done;
    }
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            st = FAIL_ERRNO("cannot lock '%s'", path);
            goto done;
        }
        if (deadline_passed(deadline)) {
            st = FAIL(STATUS_EXISTS, "'%s' is held", path);
            goto done;
        }
        clock_sleep_ms(LOCK_RETRY_MS);
    }
    *out_fd = fd;
    fd = -1;
done:
    if (fd >= 0) {
        (void)close(fd);
    }
    return st;
}

static enum status take_locks(struct run_dir *dir)
{
    enum status st = take_lock(dir->path, "agent.lock", O_CLOEXEC, 0, &dir->agent_lock);

    if (st == STATUS_EXISTS) {
        return FAIL(STATUS_EXISTS,
                    "run folder '%s' is in use by another agent; give this run "
                    "another --run-dir",
                    dir->path);
    }
    if (st != STATUS_OK) {
        return st;
    }
    /* Not close-on-exec: the ranks and all their children hold it on. */
    st = take_lock(dir->path, "ranks.lock", 0, RUN_DIR_RANKS_GONE_MS, &dir->ranks_lock);
    if (st == STATUS_EXISTS) {
        return FAIL(STATUS_EXISTS,
                    "processes of an earlier generation in run folder '%s' still "
                    "live after %d s; end those that hold '%s/ranks.lock' open (fuser)",
                    dir->path, RUN_DIR_RANKS_GONE_MS / 1000, dir->path);
    }
    return st;
}

static enum status save_state(const struct run_dir *dir)
{
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX];
    cJSON *object = NULL;

    TRY(st, fs_join(path, dir->path, RUN_DIR_STATE_FILE), done);
    TRY(st, json_new_object(&object), done);
    TRY(st, json_add_string(object, "run_id", dir->run_id), done);
    TRY(st, json_add_u64(object, "generation", dir->generation), done);
    TRY(st, json_add_i64(object, "committed_step", dir->committed_step), done);
    TRY(st, json_write_file(fs_posix(), path, object), done);
done:
    cJSON_Delete(object);
    return st;
}

static enum status load_state(struct run_dir *dir)
{
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX];
    const char *run_id;
    cJSON *object = NULL;

    TRY(st, fs_join(path, dir->path, RUN_DIR_STATE_FILE), done);
    if (!fs_exists(fs_posix(), path)) {
        TRY(st, lease_make_run_id(dir->run_id), done);
        goto done;
    }
    TRY(st, json_read_file(fs_posix(), path, &object), done);
    TRY(st, json_get_string(object, path, "run_id", &run_id), done);
    TRY(st, json_get_u64(object, path, "generation", &dir->generation), done);
    TRY(st, json_get_i64(object, path, "committed_step", &dir->committed_step), done);
    if (run_id[0] == '\0' || strlen(run_id) >= sizeof dir->run_id) {
        st = FAIL(STATUS_CORRUPT, "'%s': 'run_id' has no usable length", path);
        goto done;
    }
    memcpy(dir->run_id, run_id, strlen(run_id) + 1);
done:
    cJSON_Delete(object);
    return st;
}

enum status run_dir_open(const char *path, struct run_dir *out_dir)
{
    enum status st = STATUS_OK;
    static const char *const folders[] = {"progress", "failure", "logs"};

    *out_dir = (struct run_dir){.committed_step = -1, .agent_lock = -1, .ranks_lock = -1};
    TRY(st, find_path(path, out_dir->path), done);
    TRY(st, take_locks(out_dir), done);
    TRY(st, load_state(out_dir), done);
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        char folder[FS_PATH_MAX];

        TRY(st, fs_join(folder, out_dir->path, folders[i]), done);
        TRY(st, fs_make_dirs(fs_posix(), folder), done);
    }
done:
    if (st != STATUS_OK) {
        run_dir_close(out_dir);
    }
    return st;
}

void run_dir_close(struct run_dir *dir)
{
    if (dir->path[0] == '\0') {
        return; /* zeroed: its descriptors are nobody's */
    }
    if (dir->agent_lock >= 0) {
        (void)close(dir->agent_lock);
    }
    if (dir->ranks_lock >= 0) {
        (void)close(dir->ranks_lock);
    }
    *dir = (struct run_dir){.agent_lock = -1, .ranks_lock = -1};
}

static enum status remove_old_comm(const struct run_dir *dir)
{
    enum status st = STATUS_OK;
    struct fs_names names = {0};

    TRY(st, fs_list(fs_posix(), dir->path, &names), done);
    for (size_t i = 0; i < names.count; i++) {
        char path[FS_PATH_MAX];

        if (strncmp(names.names[i], "comm-", 5) == 0) {
            TRY(st, fs_join(path, dir->path, names.names[i]), done);
            TRY(st, fs_remove_tree(fs_posix(), path), done);
        }
    }
done:
    fs_names_deinit(&names);
    return st;
}

enum status run_dir_begin_generation(struct run_dir *dir)
{
    enum status st = STATUS_OK;
    char name[64], path[FS_PATH_MAX];

    dir->generation++;
    TRY(st, save_state(dir), done);
    TRY(st, remove_old_comm(dir), done);
    (void)snprintf(name, sizeof name, "comm-%" PRIu64, dir->generation);
    TRY(st, fs_join(path, dir->path, name), done);
    TRY(st, fs_make_dirs(fs_posix(), path), done);
done:
    return st;
}

enum status run_dir_note_commit(struct run_dir *dir, int64_t step)
{
    if (step <= dir->committed_step) {
        return STATUS_OK;
    }
    dir->committed_step = step;
    return save_state(dir);
}

void run_dir_log_path(const char *run_dir, uint64_t generation, int rank,
                      char out_path[FS_PATH_MAX])
{
    (void)snprintf(out_path, FS_PATH_MAX, "%s/logs/gen_%" PRIu64 "_rank_%d.log", run_dir,
                   generation, rank);
}
