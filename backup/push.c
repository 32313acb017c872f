/* `holdfast backup push`: committed checkpoints to a store, manifest last; see commands.h. */
#include <stdio.h>
#include <string.h>

#include "backup/commands.h"
#include "backup/remote_catalog.h"
#include "backup/remove_step.h"
#include "backup/say.h"
#include "backup/store.h"
#include "backup/sync_plan.h"
#include "backup/transfer.h"
#include "ckpt/base/json.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/meta/catalog.h"

#define FIRST_PAUSE_MS 500

struct push {
    const struct backup_options *options;
    const char *save;
    struct store *store;
    struct remote_catalog remote;
};

static enum status upload(const struct push *push, const struct catalog_entry *entry,
                          const char *text, size_t bytes, const struct remote_entry *remote)
{
    enum status st = STATUS_OK;
    struct progress_line progress;
    char folder[LAYOUT_NAME_MAX], verb[LAYOUT_NAME_MAX + 16], claim[STORE_NAME_MAX],
        name[STORE_NAME_MAX];

    layout_step_name(entry->step, folder);
    (void)snprintf(verb, sizeof verb, "pushed %s", folder);
    (void)snprintf(claim, sizeof claim, "%s/%s%s", folder, REMOTE_CLAIM_PREFIX,
                   entry->manifest.run_id);
    (void)snprintf(name, sizeof name, "%s/%s", folder, MANIFEST_FILE);
    progress_line_init(&progress, verb, 2 * entry->bytes); /* sent, and read back */
    struct transfer transfer = {
        .store = push->store,
        .prefix = folder,
        .fs = fs_posix(),
        .folder = entry->path,
        .jobs = (int)push->options->jobs,
        .pause_ms = FIRST_PAUSE_MS,
        .progress = &progress,
    };
    TRY(st, store_put_bytes(push->store, claim, "", 0), done);
    TRY(st, transfer_push(&transfer, &entry->manifest, remote != NULL ? &remote->objects : NULL),
        done);
    TRY(st, store_put_bytes(push->store, name, text, bytes), done);
    TRY(st, store_remove(push->store, claim), done);
done:
    progress_line_deinit(&progress, st == STATUS_OK && !push->options->json);
    return st;
}

static enum status push_entry(const struct push *push, const struct catalog_entry *entry)
{
    enum status st = STATUS_OK;
    struct catalog_pin *pin = NULL;
    struct sync_decision decision;
    char path[FS_PATH_MAX], *text = NULL;
    size_t bytes = 0;
    const struct remote_entry *remote = remote_catalog_find(&push->remote, entry->step);

    /* From here on the trainer's retention leaves this checkpoint alone. */
    TRY(st, catalog_pin_create(fs_posix(), push->save, entry->step, &pin), done);
    TRY(st, fs_join(path, entry->path, MANIFEST_FILE), done);
    TRY(st, fs_read_file(fs_posix(), path, JSON_FILE_BYTES_MAX, &text, &bytes), done);
    sync_plan_push(&entry->manifest, text, bytes, remote, &decision);
    switch (decision.action) {
    case SYNC_REFUSE:
        st = FAIL(STATUS_EXISTS, "%s", decision.reason);
        break;
    case SYNC_DONE:
        say_step(push->options->json, "present", entry->step, &entry->manifest, "there already");
        break;
    case SYNC_PUSH:
        TRY(st, upload(push, entry, text, bytes, remote), done);
        say_step(push->options->json, "pushed", entry->step, &entry->manifest, "");
        break;
    }
done:
    mem_free(&text);
    catalog_pin_destroy(&pin);
    return st;
}

/* Every usable entry, oldest first; goes on after a failure, whose record is the last one's. */
static enum status push_all(const struct push *push, const struct catalog *catalog)
{
    enum status st = STATUS_OK;
    struct status_record why = {.code = STATUS_OK};
    size_t good = 0, bad = 0;

    for (size_t i = 0; i < catalog->count; i++) {
        if (!catalog->entries[i].usable) {
            log_warn("'%s' is not pushed: %s", catalog->entries[i].path,
                     catalog->entries[i].reason);
            continue;
        }
        st = push_entry(push, &catalog->entries[i]);
        good += st == STATUS_OK;
        if (st != STATUS_OK) {
            bad++;
            status_take(&why);
            log_error("%s", why.message);
        }
    }
    if (bad == 0) {
        return good > 0 ? STATUS_OK : catalog_fail_none(catalog);
    }
    if (good == 0) {
        return status_give(&why);
    }
    return FAIL(STATUS_PARTIAL, "%zu of %zu checkpoints could not be pushed; the last reason: %s",
                bad, bad + good, why.message);
}

static const struct catalog_entry *find_step(const struct catalog *catalog, uint64_t step)
{
    for (size_t i = 0; i < catalog->count; i++) {
        if (catalog->entries[i].step == step && catalog->entries[i].usable) {
            return &catalog->entries[i];
        }
    }
    return NULL;
}

static enum status prune_after_push(struct push *push)
{
    enum status st = STATUS_OK;

    remote_catalog_deinit(&push->remote);
    TRY(st, remote_catalog_scan(push->store, &push->remote), done);
    TRY(st,
        remove_old_steps(push->store, &push->remote, (uint64_t)push->options->keep_last, false,
                         push->options->json),
        done);
done:
    return st;
}

enum status backup_push(const void *values, const struct command_words *words)
{
    enum status st = STATUS_OK;
    const struct backup_options *options = values;
    const char *save = words->arguments[0], *dest = words->arguments[1];
    struct push push = {.options = options, .save = save};
    struct catalog catalog = {.entries = NULL};

    if (options->all && options->step >= 0) {
        return FAIL(STATUS_USAGE, "'--all' and '--step' exclude each other");
    }
    TRY(st, catalog_scan(fs_posix(), save, &catalog), done);
    if (catalog.count == 0) {
        st = FAIL(STATUS_NO_CHECKPOINT, "'%s' holds no checkpoint to push", save);
        goto done;
    }
    TRY(st, commands_open_store(options, dest, true, &push.store), done);
    TRY(st, store_clean(push.store), done);
    TRY(st, remote_catalog_scan(push.store, &push.remote), done);
    if (options->all) {
        TRY(st, push_all(&push, &catalog), done);
    } else {
        const struct catalog_entry *entry = options->step >= 0
                                                ? find_step(&catalog, (uint64_t)options->step)
                                                : catalog_choose(&catalog, UINT64_MAX);
        if (entry == NULL) {
            st = options->step < 0
                     ? catalog_fail_none(&catalog)
                     : FAIL(STATUS_NO_CHECKPOINT, "'%s' holds no usable checkpoint of step %lld",
                            save, (long long)options->step);
            goto done;
        }
        TRY(st, push_entry(&push, entry), done);
    }
    if (options->keep_last > 0) {
        TRY(st, prune_after_push(&push), done);
    }
done:
    remote_catalog_deinit(&push.remote);
    store_close(&push.store);
    catalog_deinit(&catalog);
    return st;
}
