/* `holdfast backup pull`: a checkpoint from a store into a SAVE folder, by one rename.
 *
 * Files are fetched into SAVE/.pull-step_N, which a killed pull leaves and the next one goes on
 * with. A lock file, held by flock as long as the process lives, keeps two pulls apart. See
 * commands.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "backup/commands.h"
#include "backup/remote_catalog.h"
#include "backup/say.h"
#include "backup/store.h"
#include "backup/transfer.h"
#include "ckpt/base/json.h"
#include "ckpt/base/mem.h"

#define FIRST_PAUSE_MS 500
#define LOCK_FILE ".pull.lock"

struct pull {
    const struct backup_options *options;
    const char *save;
    struct store *store;
    const struct remote_entry *entry;
    char staging[FS_PATH_MAX]; /* SAVE/.pull-step_N */
    char final[FS_PATH_MAX];   /* SAVE/step_N */
};

static enum status lock_save(const char *save, int *out_fd)
{
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX];

    TRY(st, fs_join(path, save, LOCK_FILE), done);
    *out_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*out_fd < 0) {
        return FAIL_ERRNO("cannot create '%s'", path);
    }
    if (flock(*out_fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        st = FAIL(STATUS_NOT_OWNER, "another pull into '%s' is running", save);
    }
done:
    return st;
}

/* STATUS_OK and *out_same when the very checkpoint is there. */
static enum status look_at_final(const struct pull *pull, bool *out_same)
{
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX], *text = NULL;
    size_t bytes = 0;

    *out_same = false;
    if (!fs_exists(fs_posix(), pull->final)) {
        return STATUS_OK;
    }
    TRY(st, fs_join(path, pull->final, MANIFEST_FILE), done);
    if (fs_exists(fs_posix(), path)) {
        TRY(st, fs_read_file(fs_posix(), path, JSON_FILE_BYTES_MAX, &text, &bytes), done);
    }
    *out_same = text != NULL && bytes == pull->entry->manifest_bytes &&
                memcmp(text, pull->entry->manifest_text, bytes) == 0;
    if (!*out_same) {
        st = FAIL(STATUS_EXISTS,
                  "'%s' is there and is another checkpoint; move it away, or pull "
                  "into another folder",
                  pull->final);
        goto done;
    }
    TRY(st, manifest_check_files(&pull->entry->manifest, fs_posix(), pull->final), done);
done:
    mem_free(&text);
    return st;
}

static enum status check_space(const struct pull *pull)
{
    enum status st = STATUS_OK;
    struct fs_space space;
    uint64_t wanted = manifest_total_bytes(&pull->entry->manifest);

    TRY(st, fs_get_space(fs_posix(), pull->save, &space), done);
    if (space.available_bytes < wanted && !fs_exists(fs_posix(), pull->staging)) {
        st = FAIL(STATUS_NO_SPACE, "'%s' has room for %llu bytes, '%s' needs %llu", pull->save,
                  (unsigned long long)space.available_bytes, pull->entry->name,
                  (unsigned long long)wanted);
    }
done:
    return st;
}

/* What a killed pull left half written must not be published. */
static enum status remove_strangers(const struct pull *pull)
{
    enum status st = STATUS_OK;
    struct fs_names names = {NULL, 0};
    char path[FS_PATH_MAX];

    TRY(st, fs_list(fs_posix(), pull->staging, &names), done);
    for (size_t i = 0; i < names.count; i++) {
        bool is_ours = false;
        for (size_t f = 0; !is_ours && f < pull->entry->manifest.file_count; f++) {
            is_ours = strcmp(names.names[i], pull->entry->manifest.files[f].name) == 0;
        }
        if (!is_ours) {
            TRY(st, fs_join(path, pull->staging, names.names[i]), done);
            TRY(st, fs_remove_tree(fs_posix(), path), done);
        }
    }
done:
    fs_names_deinit(&names);
    return st;
}

static enum status publish(const struct pull *pull)
{
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX];

    TRY(st, remove_strangers(pull), done);
    TRY(st, fs_join(path, pull->staging, MANIFEST_FILE), done);
    TRY(st,
        fs_replace_file(fs_posix(), path, pull->entry->manifest_text, pull->entry->manifest_bytes),
        done);
    TRY(st, fs_sync_dir(fs_posix(), pull->staging), done);
    TRY(st, fs_rename(fs_posix(), pull->staging, pull->final), done);
    TRY(st, fs_sync_dir(fs_posix(), pull->save), done);
done:
    return st;
}

static enum status fetch(const struct pull *pull)
{
    enum status st = STATUS_OK;
    struct progress_line progress;
    char verb[LAYOUT_NAME_MAX + 16];

    (void)snprintf(verb, sizeof verb, "pulled %s", pull->entry->name);
    progress_line_init(&progress, verb, manifest_total_bytes(&pull->entry->manifest));
    struct transfer transfer = {
        .store = pull->store,
        .prefix = pull->entry->name,
        .fs = fs_posix(),
        .folder = pull->staging,
        .jobs = (int)pull->options->jobs,
        .pause_ms = FIRST_PAUSE_MS,
        .progress = &progress,
    };
    TRY(st, fs_make_dirs(fs_posix(), pull->staging), done);
    TRY(st, transfer_pull(&transfer, &pull->entry->manifest), done);
    TRY(st, publish(pull), done);
done:
    progress_line_deinit(&progress, st == STATUS_OK && !pull->options->json);
    return st;
}

static enum status pull_entry(struct pull *pull)
{
    enum status st = STATUS_OK;
    char name[LAYOUT_NAME_MAX + 8];
    bool is_same = false;

    (void)snprintf(name, sizeof name, ".pull-%s", pull->entry->name);
    TRY(st, fs_join(pull->staging, pull->save, name), done);
    TRY(st, fs_join(pull->final, pull->save, pull->entry->name), done);
    TRY(st, look_at_final(pull, &is_same), done);
    if (is_same) {
        say_step(pull->options->json, "present", pull->entry->step, &pull->entry->manifest,
                 "there already");
        goto done;
    }
    TRY(st, check_space(pull), done);
    TRY(st, fetch(pull), done);
    say_step(pull->options->json, "pulled", pull->entry->step, &pull->entry->manifest, "");
done:
    return st;
}

enum status backup_pull(const void *values, const struct command_words *words)
{
    enum status st = STATUS_OK;
    const struct backup_options *options = values;
    const char *dest = words->arguments[0], *save = words->arguments[1];
    struct pull pull = {.options = options, .save = save};
    struct remote_catalog catalog = {NULL, 0};
    int lock = -1;

    TRY(st, commands_open_store(options, dest, false, &pull.store), done);
    TRY(st, remote_catalog_scan(pull.store, &catalog), done);
    TRY(st,
        remote_catalog_choose(&catalog, options->step < 0 ? UINT64_MAX : (uint64_t)options->step,
                              &pull.entry),
        done);
    TRY(st, fs_make_dirs(fs_posix(), save), done);
    TRY(st, lock_save(save, &lock), done);
    TRY(st, pull_entry(&pull), done);
done:
    if (lock >= 0) {
        (void)close(lock);
    }
    remote_catalog_deinit(&catalog);
    store_close(&pull.store);
    return st;
}
