/* The catalog: scan, choose, reject; see catalog.h. Before it: commit made the directories; after
 * it: the reader loads what was chosen, prune (catalog_prune.c) deletes what is not kept.
 *
 * Invariant: whether a checkpoint is usable follows from its own files alone, never from `latest`,
 * from a time or from another checkpoint.
 */
#include "ckpt/meta/catalog.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/meta/commit.h"
#include "ckpt/meta/nonce.h"

#define REJECTED_PREFIX "rejected-"

static bool is_other_name(const char *name)
{
    return name[0] != '.' && strcmp(name, COMMIT_LATEST_FILE) != 0 &&
           strncmp(name, REJECTED_PREFIX, strlen(REJECTED_PREFIX)) != 0;
}

/* Why an entry is unusable, from the last error; running out of memory is no fault of the entry. */
static enum status note_fault(struct catalog_entry *entry, enum status fault)
{
    if (fault == STATUS_NO_MEMORY) {
        return fault;
    }
    manifest_deinit(&entry->manifest);
    entry->fault = fault == STATUS_NOT_FOUND ? STATUS_CORRUPT : fault;
    if (fault == STATUS_NOT_FOUND) {
        (void)snprintf(entry->reason, sizeof entry->reason, "it has no %s", MANIFEST_FILE);
    } else {
        /* Cut on purpose: a message may be longer than what a list shows. */
        (void)snprintf(entry->reason, sizeof entry->reason, "%.*s", CATALOG_REASON_MAX - 1,
                       status_last()->message);
    }
    return STATUS_OK;
}

static enum status check_step(const struct catalog_entry *entry)
{
    if (entry->manifest.step != entry->step) {
        return FAIL(STATUS_CORRUPT, "its manifest is of step %" PRIu64, entry->manifest.step);
    }
    return STATUS_OK;
}

static enum status inspect(struct fs *fs, struct catalog_entry *entry)
{
    enum status st = STATUS_OK;

    TRY(st, manifest_read(fs, entry->path, &entry->manifest), done);
    TRY(st, check_step(entry), done);
    TRY(st, manifest_check_files(&entry->manifest, fs, entry->path), done);
    entry->bytes = manifest_total_bytes(&entry->manifest);
    entry->usable = true;
done:
    return st == STATUS_OK ? STATUS_OK : note_fault(entry, st);
}

static int compare_entries(const void *a, const void *b)
{
    const struct catalog_entry *left = a, *right = b;

    if (left->step != right->step) {
        return left->step < right->step ? -1 : 1;
    }
    return strcmp(left->path, right->path);
}

static enum status add_entry(struct catalog *catalog, size_t *capacity, const char *name,
                             uint64_t step)
{
    enum status st = STATUS_OK;

    TRY(st,
        mem_grow((void **)&catalog->entries, capacity, catalog->count + 1,
                 sizeof *catalog->entries),
        done);
    struct catalog_entry *entry = &catalog->entries[catalog->count];
    memset(entry, 0, sizeof *entry);
    entry->step = step;
    TRY(st, fs_join(entry->path, catalog->path, name), done);
    catalog->count++;
done:
    return st;
}

enum status catalog_scan(struct fs *fs, const char *save, struct catalog *out_catalog)
{
    enum status st = STATUS_OK;
    struct catalog catalog = {0};
    struct fs_names names = {0};
    size_t capacity = 0;

    memset(out_catalog, 0, sizeof *out_catalog);
    (void)snprintf(catalog.path, sizeof catalog.path, "%s", save);
    st = fs_list(fs, save, &names);
    if (st == STATUS_NOT_FOUND && fs_exists(fs, save)) {
        st = FAIL(STATUS_USAGE, "'%s' is a file: give the directory that holds the checkpoints",
                  save);
    }
    TRY(st, st == STATUS_NOT_FOUND ? STATUS_OK : st, done);
    for (size_t i = 0; i < names.count; i++) {
        uint64_t step;

        if (layout_parse_step_name(names.names[i], &step)) {
            TRY(st, add_entry(&catalog, &capacity, names.names[i], step), done);
        } else {
            catalog.other_count += is_other_name(names.names[i]);
        }
    }
    if (catalog.count > 1) {
        qsort(catalog.entries, catalog.count, sizeof *catalog.entries, compare_entries);
    }
    for (size_t i = 0; i < catalog.count; i++) {
        TRY(st, inspect(fs, &catalog.entries[i]), done);
    }
    *out_catalog = catalog;
    memset(&catalog, 0, sizeof catalog);
done:
    fs_names_deinit(&names);
    catalog_deinit(&catalog);
    return st;
}

void catalog_deinit(struct catalog *catalog)
{
    for (size_t i = 0; i < catalog->count; i++) {
        manifest_deinit(&catalog->entries[i].manifest);
    }
    mem_free(&catalog->entries);
    memset(catalog, 0, sizeof *catalog);
}

const struct catalog_entry *catalog_choose(const struct catalog *catalog, uint64_t step_max)
{
    for (size_t i = catalog->count; i-- > 0;) {
        const struct catalog_entry *entry = &catalog->entries[i];

        if (entry->step > step_max) {
            continue;
        }
        if (entry->usable) {
            return entry;
        }
        log_warn("passing over checkpoint '%s': %s", entry->path, entry->reason);
    }
    return NULL;
}

/* Appends and says whether all of it fitted; `used` never passes `bytes` - 1. */
static __attribute__((format(printf, 4, 5))) bool append(char *text, size_t bytes, size_t *used,
                                                         const char *format, ...)
{
    va_list args;

    va_start(args, format);
    int more = vsnprintf(text + *used, bytes - *used, format, args);
    va_end(args);
    if (more < 0 || (size_t)more >= bytes - *used) {
        text[*used] = '\0';
        return false;
    }
    *used += (size_t)more;
    return true;
}

enum status catalog_fail_none(const struct catalog *catalog)
{
    char list[STATUS_MESSAGE_MAX / 2] = "";
    size_t used = 0, left = catalog->count;
    const size_t bytes = sizeof list - 32; /* keeps room for the line of what is left out */

    for (size_t i = catalog->count; i-- > 0; left--) {
        const struct catalog_entry *entry = &catalog->entries[i];

        if (!append(list, bytes, &used, "; step %" PRIu64 ": %.160s", entry->step,
                    entry->usable ? "usable, but not asked for" : entry->reason)) {
            break;
        }
    }
    if (left > 0) {
        (void)append(list, sizeof list, &used, "; and %zu more", left);
    }
    if (catalog->other_count > 0) {
        (void)append(list, sizeof list, &used, "; %zu other names", catalog->other_count);
    }
    return FAIL(STATUS_NO_CHECKPOINT,
                "no usable checkpoint in '%.300s' (give another --load, or --from-scratch to begin "
                "at step 0)%s",
                catalog->path, used > 0 ? list : ": it is empty");
}

/* The name is fresh when the same epoch has rejected the same step before. */
static enum status reject(struct fs *fs, const char *save, const char *name, uint64_t epoch)
{
    enum status st = STATUS_OK;
    char from[FS_PATH_MAX], to[FS_PATH_MAX], rejected[FS_NAME_MAX], nonce[NONCE_TEXT_MAX];

    (void)snprintf(rejected, sizeof rejected, REJECTED_PREFIX "%.100s-%" PRIu64, name, epoch);
    TRY(st, fs_join(from, save, name), done);
    TRY(st, fs_join(to, save, rejected), done);
    if (fs_exists(fs, to)) {
        TRY(st, nonce_make(nonce), done);
        (void)snprintf(rejected, sizeof rejected, REJECTED_PREFIX "%.100s-%" PRIu64 "-%s", name,
                       epoch, nonce);
        TRY(st, fs_join(to, save, rejected), done);
    }
    TRY(st, fs_rename(fs, from, to), done);
    log_info("checkpoint '%s' is off this run's line: now '%s'", from, rejected);
done:
    return st;
}

static int compare_steps_down(const void *a, const void *b)
{
    uint64_t left, right;

    CHECK(layout_parse_step_name(*(char *const *)a, &left));
    CHECK(layout_parse_step_name(*(char *const *)b, &right));
    return (left < right) - (left > right);
}

enum status catalog_reject_after(struct fs *fs, const char *save, uint64_t step, uint64_t epoch)
{
    enum status st = STATUS_OK;
    struct fs_names names = {0};
    char **later = NULL;
    size_t count = 0;

    TRY(st, fs_list(fs, save, &names), done);
    TRY(st, mem_alloc(&later, names.count, sizeof *later), done);
    for (size_t i = 0; i < names.count; i++) {
        uint64_t other;

        if (layout_parse_step_name(names.names[i], &other) && other > step) {
            later[count++] = names.names[i];
        }
    }
    /* Newest first: cut off in between, the newest left is still one whole line's. */
    if (count > 1) {
        qsort(later, count, sizeof *later, compare_steps_down);
    }
    for (size_t i = 0; i < count; i++) {
        TRY(st, reject(fs, save, later[i], epoch), done);
    }
    if (count > 0) {
        TRY(st, fs_sync_dir(fs, save), done);
    }
done:
    mem_free(&later);
    fs_names_deinit(&names);
    return st;
}

enum status catalog_has_rejected(struct fs *fs, const char *save, uint64_t step, bool *out_found)
{
    enum status st = STATUS_OK;
    struct fs_names names = {0};
    char step_name[LAYOUT_NAME_MAX], prefix[FS_NAME_MAX];

    *out_found = false;
    layout_step_name(step, step_name);
    (void)snprintf(prefix, sizeof prefix, REJECTED_PREFIX "%s-", step_name);
    TRY(st, fs_list(fs, save, &names), done);
    for (size_t i = 0; i < names.count && !*out_found; i++) {
        *out_found = strncmp(names.names[i], prefix, strlen(prefix)) == 0;
    }
done:
    fs_names_deinit(&names);
    return st;
}
