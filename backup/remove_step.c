/* Removal at the far side; see remove_step.h. */
#include "backup/remove_step.h"

#include <stdio.h>

#include "backup/say.h"
#include "backup/sync_plan.h"
#include "ckpt/base/mem.h"

static enum status remove_step(struct store *store, const struct remote_entry *entry)
{
    enum status st = STATUS_OK;
    char name[STORE_NAME_MAX];

    (void)snprintf(name, sizeof name, "%s/%s", entry->name, MANIFEST_FILE);
    TRY(st, store_remove(store, name), done);
    for (size_t i = 0; i < entry->objects.count; i++) {
        TRY(st, store_remove(store, entry->objects.objects[i].name), done);
    }
done:
    return st;
}

enum status remove_old_steps(struct store *store, const struct remote_catalog *catalog,
                             uint64_t keep_last, bool dry_run, bool json)
{
    enum status st = STATUS_OK;
    bool *go = NULL;

    TRY(st, mem_alloc(&go, catalog->count, sizeof *go), done);
    sync_plan_prune(catalog, keep_last, go);
    for (size_t i = 0; i < catalog->count; i++) {
        if (!go[i]) {
            continue;
        }
        if (!dry_run) {
            TRY(st, remove_step(store, &catalog->entries[i]), done);
        }
        say_step(json, "removed", catalog->entries[i].step, NULL, dry_run ? "(dry run)" : "");
    }
done:
    mem_free(&go);
    return st;
}
