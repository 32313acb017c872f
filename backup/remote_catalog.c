/* What a store holds; see remote_catalog.h. */
#include "backup/remote_catalog.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/json.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"

static const struct store_object *find_object(const struct store_list *list, const char *folder,
                                              const char *name)
{
    size_t length = strlen(folder);

    for (size_t i = 0; i < list->count; i++) {
        const char *at = list->objects[i].name;
        if (strncmp(at, folder, length) == 0 && at[length] == '/' &&
            strcmp(at + length + 1, name) == 0) {
            return &list->objects[i];
        }
    }
    return NULL;
}

/* Fills in the manifest; a fault of the content is a reason, a fault of the store a status. */
static enum status read_manifest(struct store *store, struct remote_entry *entry)
{
    enum status st = STATUS_OK;
    char name[STORE_NAME_MAX];

    (void)snprintf(name, sizeof name, "%s/%s", entry->name, MANIFEST_FILE);
    TRY(st,
        store_get_all(store, name, JSON_FILE_BYTES_MAX, &entry->manifest_text,
                      &entry->manifest_bytes),
        done);
    st = manifest_parse(entry->manifest_text, entry->manifest_bytes, name, &entry->manifest);
    if (st == STATUS_CORRUPT || st == STATUS_UNSUPPORTED) {
        (void)snprintf(entry->reason, sizeof entry->reason, "%s", status_last()->message);
        return STATUS_OK;
    }
    TRY(st, st, done);
    entry->complete = true;
    if (entry->manifest.step != entry->step) {
        entry->complete = false;
        (void)snprintf(entry->reason, sizeof entry->reason, "its manifest is of step %llu",
                       (unsigned long long)entry->manifest.step);
    }
    for (size_t i = 0; entry->complete && i < entry->manifest.file_count; i++) {
        const struct manifest_file *file = &entry->manifest.files[i];
        const struct store_object *object = find_object(&entry->objects, entry->name, file->name);
        if (object == NULL || object->bytes != file->bytes) {
            entry->complete = false;
            (void)snprintf(entry->reason, sizeof entry->reason, "'%s' has %lld bytes, not %llu",
                           file->name, object != NULL ? (long long)object->bytes : -1LL,
                           (unsigned long long)file->bytes);
        }
    }
done:
    return st;
}

static enum status add_object(struct remote_catalog *catalog, size_t *capacity,
                              const struct store_object *object)
{
    enum status st = STATUS_OK;
    char folder[LAYOUT_NAME_MAX];
    uint64_t step = 0;
    size_t length = strcspn(object->name, "/");

    if (object->name[length] != '/' || length >= sizeof folder) {
        return STATUS_OK;
    }
    memcpy(folder, object->name, length);
    folder[length] = '\0';
    if (!layout_parse_step_name(folder, &step)) {
        return STATUS_OK;
    }
    struct remote_entry *entry = NULL;
    for (size_t i = 0; entry == NULL && i < catalog->count; i++) {
        entry = strcmp(catalog->entries[i].name, folder) == 0 ? &catalog->entries[i] : NULL;
    }
    if (entry == NULL) {
        TRY(st,
            mem_grow((void **)&catalog->entries, capacity, catalog->count + 1,
                     sizeof *catalog->entries),
            done);
        entry = &catalog->entries[catalog->count++];
        entry->step = step;
        memcpy(entry->name, folder, length + 1);
        (void)snprintf(entry->reason, sizeof entry->reason, "no %s yet: its push was not finished",
                       MANIFEST_FILE);
    }
    TRY(st,
        mem_grow((void **)&entry->objects.objects, &entry->object_capacity,
                 entry->objects.count + 1, sizeof *entry->objects.objects),
        done);
    entry->objects.objects[entry->objects.count++] = *object;
    const char *name = object->name + length + 1;
    size_t prefix = strlen(REMOTE_CLAIM_PREFIX);
    if (strncmp(name, REMOTE_CLAIM_PREFIX, prefix) == 0 && entry->claim_run_id[0] == '\0') {
        (void)snprintf(entry->claim_run_id, sizeof entry->claim_run_id, "%s", name + prefix);
    }
done:
    return st;
}

static int compare_entries(const void *a, const void *b)
{
    uint64_t x = ((const struct remote_entry *)a)->step, y = ((const struct remote_entry *)b)->step;

    return x < y ? -1 : x > y;
}

enum status remote_catalog_scan(struct store *store, struct remote_catalog *out_catalog)
{
    enum status st = STATUS_OK;
    struct store_list list = {NULL, 0};
    size_t capacity = 0;

    *out_catalog = (struct remote_catalog){NULL, 0};
    TRY(st, store_list(store, "step_", &list), done);
    for (size_t i = 0; i < list.count; i++) {
        TRY(st, add_object(out_catalog, &capacity, &list.objects[i]), done);
    }
    for (size_t i = 0; i < out_catalog->count; i++) {
        struct remote_entry *entry = &out_catalog->entries[i];
        if (find_object(&entry->objects, entry->name, MANIFEST_FILE) != NULL) {
            TRY(st, read_manifest(store, entry), done);
        }
    }
    if (out_catalog->count > 1) {
        qsort(out_catalog->entries, out_catalog->count, sizeof *out_catalog->entries,
              compare_entries);
    }
done:
    store_list_deinit(&list);
    if (st != STATUS_OK) {
        remote_catalog_deinit(out_catalog);
    }
    return st;
}

void remote_catalog_deinit(struct remote_catalog *catalog)
{
    for (size_t i = 0; i < catalog->count; i++) {
        manifest_deinit(&catalog->entries[i].manifest);
        mem_free(&catalog->entries[i].manifest_text);
        store_list_deinit(&catalog->entries[i].objects);
    }
    mem_free(&catalog->entries);
    catalog->count = 0;
}

const struct remote_entry *remote_catalog_find(const struct remote_catalog *catalog, uint64_t step)
{
    for (size_t i = 0; i < catalog->count; i++) {
        if (catalog->entries[i].step == step) {
            return &catalog->entries[i];
        }
    }
    return NULL;
}

enum status remote_catalog_choose(const struct remote_catalog *catalog, uint64_t step,
                                  const struct remote_entry **out_entry)
{
    for (size_t i = catalog->count; i-- > 0;) {
        const struct remote_entry *entry = &catalog->entries[i];
        if (step != UINT64_MAX && entry->step != step) {
            continue;
        }
        if (entry->complete) {
            *out_entry = entry;
            return STATUS_OK;
        }
        log_warn("'%s' is passed over: %s", entry->name, entry->reason);
    }
    if (step != UINT64_MAX) {
        return FAIL(STATUS_NO_CHECKPOINT, "the store holds no complete checkpoint of step %llu",
                    (unsigned long long)step);
    }
    return FAIL(STATUS_NO_CHECKPOINT, "the store holds no complete checkpoint (%zu incomplete)",
                catalog->count);
}
