/* Retention and pins; see catalog.h. Before it: a commit is durable; after it: only what is kept.
 *
 *     plan -> who is pinned -> rename to trash -> look for new pins (rename back) -> sync -> remove
 *
 * Invariants: the newest usable checkpoint never goes. A reader makes its pin and then looks
 * whether the step is there; prune takes the step away and then looks whether there is a pin; so
 * one of the two sees the other.
 */
#include "ckpt/meta/catalog.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/meta/heartbeat.h"
#include "ckpt/meta/lease.h"
#include "ckpt/meta/nonce.h"
#include "ckpt/meta/trash.h"

#define PINS_DIRECTORY ".pins"
#define LOOK_MS (LEASE_BEAT_MS / 5)

/* ---- the plan ---- */

static bool is_kept_forever(uint64_t step, uint64_t keep_every)
{
    return keep_every > 0 && step % keep_every == 0;
}

void catalog_plan_prune(const struct catalog *catalog, uint64_t keep_last, uint64_t keep_every,
                        const bool *pinned, bool *out_delete)
{
    uint64_t newer_usable = 0;

    keep_last = keep_last > 0 ? keep_last : 1;
    for (size_t i = catalog->count; i-- > 0;) {
        const struct catalog_entry *entry = &catalog->entries[i];
        bool goes = entry->usable
                        ? newer_usable >= keep_last && !is_kept_forever(entry->step, keep_every)
                        : newer_usable > 0 && entry->fault == STATUS_CORRUPT;

        out_delete[i] = goes && !(pinned != NULL && pinned[i]);
        newer_usable += entry->usable;
    }
}

/* ---- pins ---- */

struct catalog_pin {
    struct heartbeat *heartbeat;
};

/* "step_0000500.HOST.PID.NONCE" */
static enum status pin_path(char out_path[FS_PATH_MAX], const char *pins, uint64_t step)
{
    enum status st = STATUS_OK;
    char step_name[LAYOUT_NAME_MAX], nonce[NONCE_TEXT_MAX], name[FS_NAME_MAX];
    struct heartbeat_holder self;

    layout_step_name(step, step_name);
    TRY(st, nonce_make(nonce), done);
    TRY(st, heartbeat_get_self("", &self), done);
    (void)snprintf(name, sizeof name, "%s.%.100s.%" PRId64 ".%s", step_name, self.host, self.pid,
                   nonce);
    TRY(st, fs_join(out_path, pins, name), done);
done:
    return st;
}

static enum status make_pin(struct fs *fs, const char *save, uint64_t step,
                            struct heartbeat **out_heartbeat)
{
    enum status st = STATUS_OK;
    char pins[FS_PATH_MAX], path[FS_PATH_MAX];

    TRY(st, fs_join(pins, save, PINS_DIRECTORY), done);
    TRY(st, fs_make_dirs(fs, pins), done);
    TRY(st, pin_path(path, pins, step), done);
    TRY(st, heartbeat_create(fs, path, "reader", out_heartbeat), done);
done:
    return st;
}

enum status catalog_pin_create(struct fs *fs, const char *save, uint64_t step,
                               struct catalog_pin **out_pin)
{
    enum status st = STATUS_OK;
    struct catalog_pin *pin = NULL;
    char name[LAYOUT_NAME_MAX], path[FS_PATH_MAX];

    *out_pin = NULL;
    TRY(st, mem_alloc(&pin, 1, sizeof *pin), done);
    st = make_pin(fs, save, step, &pin->heartbeat);
    if (st == STATUS_NO_PERMISSION || st == STATUS_NO_SPACE) {
        log_debug("no pin on step %" PRIu64 " of '%s': %s", step, save, status_last()->message);
        st = STATUS_OK;
        goto done;
    }
    TRY(st, st, done);
    layout_step_name(step, name);
    TRY(st, fs_join(path, save, name), done);
    if (!fs_exists(fs, path)) {
        st = FAIL(STATUS_NOT_FOUND, "checkpoint '%s' is not there any more", path);
        goto done;
    }
    *out_pin = pin;
    pin = NULL;
done:
    catalog_pin_destroy(&pin);
    return st;
}

enum status catalog_pin_checkpoint(struct fs *fs, const char *checkpoint, uint64_t step,
                                   struct catalog_pin **out_pin)
{
    enum status st = STATUS_OK;
    char save[FS_PATH_MAX], path[FS_PATH_MAX], step_name[LAYOUT_NAME_MAX];

    *out_pin = NULL;
    fs_parent(save, checkpoint);
    layout_step_name(step, step_name);
    TRY(st, fs_join(path, save, step_name), done);
    if (strcmp(path, checkpoint) == 0) {
        TRY(st, catalog_pin_create(fs, save, step, out_pin), done);
    }
done:
    return st;
}

void catalog_pin_destroy(struct catalog_pin **pin)
{
    if (*pin != NULL) {
        heartbeat_remove(&(*pin)->heartbeat);
        mem_free(pin);
    }
}

/* The entry that a pin's name names, or catalog->count. */
static size_t find_pinned(const struct catalog *catalog, const char *pin_name)
{
    char step_name[LAYOUT_NAME_MAX];
    size_t length = strcspn(pin_name, ".");
    uint64_t step;
    size_t i = catalog->count;

    if (length < sizeof step_name) {
        memcpy(step_name, pin_name, length);
        step_name[length] = '\0';
        if (layout_parse_step_name(step_name, &step)) {
            for (i = 0; i < catalog->count && catalog->entries[i].step != step; i++) {
            }
        }
    }
    return i;
}

struct pin_watch {
    char path[FS_PATH_MAX];
    size_t entry;
    struct heartbeat_record first;
    bool decided;
};

/* Looks once: a pin that has moved or whose process is here holds; one whose process is gone, or
 * that stood still to the end (`last`), does not and is removed. */
static enum status judge_pin(struct fs *fs, struct pin_watch *watch, bool last, bool *pinned)
{
    enum status st = STATUS_OK;
    struct heartbeat_record now;

    st = heartbeat_read(fs, watch->path, &now);
    if (st == STATUS_NOT_FOUND) {
        watch->decided = true;
        return STATUS_OK;
    }
    TRY(st, st, done);
    enum heartbeat_life life = heartbeat_judge(&now);
    if (life == HEARTBEAT_ALIVE || heartbeat_moved(&watch->first, &now)) {
        watch->decided = true;
        pinned[watch->entry] = true;
    } else if (life == HEARTBEAT_GONE || last) {
        watch->decided = true;
        st = fs_unlink(fs, watch->path);
        TRY(st, st == STATUS_NOT_FOUND ? STATUS_OK : st, done);
    }
done:
    return st;
}

static enum status watch_pins(struct fs *fs, struct pin_watch *watches, size_t count, bool *pinned)
{
    enum status st = STATUS_OK;
    struct deadline stale = deadline_in_ms(LEASE_STALE_MS);
    size_t open = count;

    while (open > 0) {
        bool last = deadline_passed(stale);

        open = 0;
        for (size_t i = 0; i < count; i++) {
            if (!watches[i].decided) {
                TRY(st, judge_pin(fs, &watches[i], last, pinned), done);
                open += !watches[i].decided;
            }
        }
        if (open > 0) {
            clock_sleep_ms(LOOK_MS);
        }
    }
done:
    return st;
}

/* Sets pinned[i] for the entries among `wanted` that a living reader holds. */
static enum status find_pins(struct fs *fs, const struct catalog *catalog, const bool *wanted,
                             bool *pinned)
{
    enum status st = STATUS_OK;
    struct fs_names names = {0};
    struct pin_watch *watches = NULL;
    char pins[FS_PATH_MAX];
    size_t count = 0;

    TRY(st, fs_join(pins, catalog->path, PINS_DIRECTORY), done);
    st = fs_list(fs, pins, &names);
    TRY(st, st == STATUS_NOT_FOUND ? STATUS_OK : st, done);
    TRY(st, mem_alloc(&watches, names.count, sizeof *watches), done);
    for (size_t i = 0; i < names.count; i++) {
        struct pin_watch *watch = &watches[count];

        watch->entry = find_pinned(catalog, names.names[i]);
        if (watch->entry == catalog->count || !wanted[watch->entry]) {
            continue;
        }
        TRY(st, fs_join(watch->path, pins, names.names[i]), done);
        st = heartbeat_read(fs, watch->path, &watch->first);
        if (st != STATUS_NOT_FOUND) {
            TRY(st, st, done);
            count++;
        }
    }
    TRY(st, watch_pins(fs, watches, count, pinned), done);
done:
    mem_free(&watches);
    fs_names_deinit(&names);
    return st;
}

/* ---- prune ---- */

struct victim {
    size_t entry;
    char trash[FS_PATH_MAX];
};

/* Any pin on a victim is newer than the plan: the dead ones were removed before. */
static enum status restore_pinned(struct fs *fs, const struct catalog *catalog,
                                  struct victim *victims, size_t count, size_t *out_deleted)
{
    enum status st = STATUS_OK;
    struct fs_names names = {0};
    char pins[FS_PATH_MAX];

    TRY(st, fs_join(pins, catalog->path, PINS_DIRECTORY), done);
    st = fs_list(fs, pins, &names);
    TRY(st, st == STATUS_NOT_FOUND ? STATUS_OK : st, done);
    for (size_t v = 0; v < count; v++) {
        bool restored = false;

        for (size_t i = 0; i < names.count && !restored; i++) {
            if (find_pinned(catalog, names.names[i]) == victims[v].entry) {
                TRY(st, fs_rename(fs, victims[v].trash, catalog->entries[victims[v].entry].path),
                    done);
                restored = true;
            }
        }
        *out_deleted += !restored;
    }
done:
    fs_names_deinit(&names);
    return st;
}

static enum status delete_entries(struct fs *fs, const struct catalog *catalog, const bool *goes,
                                  size_t *out_deleted)
{
    enum status st = STATUS_OK;
    struct victim *victims = NULL;
    size_t count = 0;

    TRY(st, mem_alloc(&victims, catalog->count, sizeof *victims), done);
    for (size_t i = 0; i < catalog->count; i++) {
        if (goes[i]) {
            victims[count].entry = i;
            TRY(st, trash_move(fs, catalog->path, catalog->entries[i].path, victims[count].trash),
                done);
            count++;
        }
    }
    TRY(st, restore_pinned(fs, catalog, victims, count, out_deleted), done);
    if (count > 0) {
        TRY(st, fs_sync_dir(fs, catalog->path), done);
    }
done:
    mem_free(&victims);
    return st;
}

enum status catalog_prune(struct fs *fs, const char *save, uint64_t keep_last, uint64_t keep_every,
                          size_t *out_deleted)
{
    enum status st = STATUS_OK;
    struct catalog catalog = {0};
    bool *goes = NULL, *pinned = NULL;

    *out_deleted = 0;
    TRY(st, catalog_scan(fs, save, &catalog), done);
    TRY(st, mem_alloc(&goes, catalog.count, sizeof *goes), done);
    TRY(st, mem_alloc(&pinned, catalog.count, sizeof *pinned), done);
    catalog_plan_prune(&catalog, keep_last, keep_every, NULL, goes);
    TRY(st, find_pins(fs, &catalog, goes, pinned), done);
    catalog_plan_prune(&catalog, keep_last, keep_every, pinned, goes);
    TRY(st, delete_entries(fs, &catalog, goes, out_deleted), done);
    trash_empty(fs, save);
done:
    mem_free(&pinned);
    mem_free(&goes);
    catalog_deinit(&catalog);
    return st;
}
