/* `holdfast backup list`, `verify` and `prune`: looks at the far side; see commands.h. */
#include <stdio.h>

#include "backup/commands.h"
#include "backup/remote_catalog.h"
#include "backup/remove_step.h"
#include "backup/say.h"
#include "backup/store.h"
#include "backup/transfer.h"
#include "ckpt/base/fs.h"

#define FIRST_PAUSE_MS 500

enum status commands_open_store(const struct backup_options *options, const char *where, int create,
                                struct store **out_store)
{
    struct store_options reach = {
        .endpoint_url = options->endpoint_url,
        .region = options->region,
        .profile = options->profile,
        .ca_file = options->ca,
    };

    return store_open(where, create, &reach, out_store);
}

static enum status open_catalog(const struct backup_options *options, const char *dest,
                                struct store **out_store, struct remote_catalog *out_catalog)
{
    enum status st = STATUS_OK;

    *out_store = NULL;
    *out_catalog = (struct remote_catalog){NULL, 0};
    TRY(st, commands_open_store(options, dest, false, out_store), done);
    TRY(st, remote_catalog_scan(*out_store, out_catalog), done);
done:
    return st;
}

enum status backup_list(const void *values, const struct command_words *words)
{
    enum status st = STATUS_OK;
    const struct backup_options *options = values;
    const char *dest = words->arguments[0];
    struct store *store = NULL;
    struct remote_catalog catalog;

    TRY(st, open_catalog(options, dest, &store, &catalog), done);
    for (size_t i = 0; i < catalog.count; i++) {
        const struct remote_entry *entry = &catalog.entries[i];
        say_step(options->json, entry->complete ? "complete" : "incomplete", entry->step,
                 entry->complete ? &entry->manifest : NULL, entry->complete ? "" : entry->reason);
    }
done:
    remote_catalog_deinit(&catalog);
    store_close(&store);
    return st;
}

static enum status verify_entry(const struct backup_options *options, struct store *store,
                                const struct remote_entry *entry)
{
    enum status st = STATUS_OK;
    struct progress_line progress;
    struct transfer transfer = {
        .store = store,
        .prefix = entry->name,
        .fs = fs_posix(),
        .jobs = (int)options->jobs,
        .pause_ms = FIRST_PAUSE_MS,
        .progress = &progress,
    };

    if (options->quick) {
        return STATUS_OK; /* the scan has compared manifest and sizes */
    }
    progress_line_init(&progress, entry->name, manifest_total_bytes(&entry->manifest));
    st = transfer_verify(&transfer, &entry->manifest);
    progress_line_deinit(&progress, false);
    return st;
}

/* A manifest that is there but does not describe what is there is damage; a step without one is a
 * push that was not finished. */
static bool is_damaged(const struct remote_entry *entry)
{
    return !entry->complete && entry->manifest_text != NULL;
}

enum status backup_verify(const void *values, const struct command_words *words)
{
    enum status st = STATUS_OK;
    const struct backup_options *options = values;
    const char *dest = words->arguments[0];
    struct store *store = NULL;
    struct remote_catalog catalog;
    size_t checked = 0, bad = 0;

    TRY(st, open_catalog(options, dest, &store, &catalog), done);
    for (size_t i = 0; i < catalog.count; i++) {
        const struct remote_entry *entry = &catalog.entries[i];
        if ((options->step >= 0 && entry->step != (uint64_t)options->step) ||
            (!entry->complete && !is_damaged(entry))) {
            continue;
        }
        checked++;
        enum status result = entry->complete ? verify_entry(options, store, entry)
                                             : FAIL(STATUS_CORRUPT, "%s", entry->reason);
        if (result == STATUS_OK) {
            say_step(options->json, "verified", entry->step, &entry->manifest, "");
        } else if (result == STATUS_CORRUPT) {
            bad++;
            say_step(options->json, "damaged", entry->step, NULL, status_last()->message);
        } else {
            st = result;
            goto done;
        }
    }
    if (bad > 0) {
        st = FAIL(STATUS_CORRUPT, "%zu of %zu checkpoints in '%s' are damaged; push them again",
                  bad, checked, dest);
    } else if (checked == 0) {
        st = FAIL(STATUS_NO_CHECKPOINT, "'%s' holds no checkpoint to verify", dest);
    }
done:
    remote_catalog_deinit(&catalog);
    store_close(&store);
    return st;
}

enum status backup_prune(const void *values, const struct command_words *words)
{
    enum status st = STATUS_OK;
    const struct backup_options *options = values;
    const char *dest = words->arguments[0];
    struct store *store = NULL;
    struct remote_catalog catalog;

    TRY(st, open_catalog(options, dest, &store, &catalog), done);
    TRY(st,
        remove_old_steps(store, &catalog, (uint64_t)options->keep_last, options->dry_run,
                         options->json),
        done);
done:
    remote_catalog_deinit(&catalog);
    store_close(&store);
    return st;
}
