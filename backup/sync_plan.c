/* What to push and what to prune; see sync_plan.h. Pure. */
#include "backup/sync_plan.h"

#include <stdio.h>
#include <string.h>

void sync_plan_push(const struct manifest *manifest, const char *manifest_text,
                    size_t manifest_bytes, const struct remote_entry *remote,
                    struct sync_decision *out_decision)
{
    *out_decision = (struct sync_decision){SYNC_PUSH, ""};
    if (remote == NULL) {
        return;
    }
    bool is_same = remote->manifest_text != NULL && remote->manifest_bytes == manifest_bytes &&
                   memcmp(remote->manifest_text, manifest_text, manifest_bytes) == 0;
    if (is_same) {
        out_decision->action = remote->complete ? SYNC_DONE : SYNC_PUSH;
        return;
    }
    if (remote->complete) {
        out_decision->action = SYNC_REFUSE;
        (void)snprintf(out_decision->reason, sizeof out_decision->reason,
                       "the store holds another checkpoint of step %llu: run '%s' there, run "
                       "'%s' here; push to another store, or prune that step first",
                       (unsigned long long)manifest->step, remote->manifest.run_id,
                       manifest->run_id);
    } else if (remote->claim_run_id[0] != '\0' &&
               strcmp(remote->claim_run_id, manifest->run_id) != 0) {
        out_decision->action = SYNC_REFUSE;
        (void)snprintf(out_decision->reason, sizeof out_decision->reason,
                       "run '%s' is pushing its step %llu to the store, this is run '%s'; push "
                       "to another store, or remove '%s/%s%s' there when that push is dead",
                       remote->claim_run_id, (unsigned long long)manifest->step, manifest->run_id,
                       remote->name, REMOTE_CLAIM_PREFIX, remote->claim_run_id);
    }
}

enum sync_file sync_plan_file(const struct manifest_file *file, const struct remote_entry *remote)
{
    for (size_t i = 0; remote != NULL && i < remote->objects.count; i++) {
        const struct store_object *object = &remote->objects.objects[i];
        const char *name = strchr(object->name, '/');
        if (name != NULL && strcmp(name + 1, file->name) == 0 && object->bytes == file->bytes) {
            return SYNC_FILE_CHECK;
        }
    }
    return SYNC_FILE_COPY;
}

void sync_plan_prune(const struct remote_catalog *catalog, uint64_t keep_last, bool *out_delete)
{
    uint64_t keep = keep_last > 0 ? keep_last : 1, complete = 0;

    for (size_t i = catalog->count; i-- > 0;) {
        const struct remote_entry *entry = &catalog->entries[i];
        out_delete[i] = complete >= keep && (entry->complete || entry->claim_run_id[0] == '\0');
        complete += entry->complete;
    }
}
