/* The directory store; see store_dir.h and store.h.
 *
 * An upload is written to ROOT/.uploads/<nonce>, synced, and renamed to its place; the folder is
 * synced then. Names that begin with '.' are never objects, so a killed upload is invisible. A file
 * is locked (flock) while its upload runs, and a lock dies with its process, so store_clean knows
 * the left ones without guessing at pids, on every host that shares the locks.
 */
#include "backup/store_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/mem.h"
#include "ckpt/meta/nonce.h"

#define UPLOADS_FOLDER ".uploads"
#define COPY_BYTES ((size_t)4 << 20)
#define DEPTH_MAX 16

struct store_dir {
    struct store base;
    struct fs *fs;
    char root[FS_PATH_MAX];
    char uploads[FS_PATH_MAX];
};

static struct store_dir *dir_of(struct store *store)
{
    return (struct store_dir *)store;
}

static void dir_close(struct store *store)
{
    mem_free(&store);
}

static enum status copy_source(struct fs_file *file, const struct store_source *source)
{
    enum status st = STATUS_OK;
    void *buffer = NULL;

    TRY(st, mem_alloc(&buffer, COPY_BYTES, 1), done);
    TRY(st, fs_reserve(file, source->bytes), done);
    for (uint64_t at = 0; at < source->bytes; at += COPY_BYTES) {
        uint64_t left = source->bytes - at;
        size_t now = left < COPY_BYTES ? (size_t)left : COPY_BYTES;
        TRY(st, source->read(source->context, buffer, now, at), done);
        TRY(st, fs_pwrite(file, buffer, now, at), done);
    }
    TRY(st, fs_sync(file), done);
    TRY(st, fs_drop_cache(file), done);
done:
    mem_free(&buffer);
    return st;
}

/* Holds the upload's lock; -1 when another process has it. Best effort on file systems without. */
static int lock_upload(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        (void)close(fd);
        fd = -1;
    }
    return fd;
}

static enum status dir_put(struct store *store, const char *name, const struct store_source *source)
{
    struct store_dir *dir = dir_of(store);
    enum status st = STATUS_OK;
    struct fs_file *file = NULL;
    char nonce[NONCE_TEXT_MAX], upload[FS_PATH_MAX], path[FS_PATH_MAX], folder[FS_PATH_MAX];
    int lock = -1;

    TRY(st, nonce_make(nonce), done);
    TRY(st, fs_join(upload, dir->uploads, nonce), done);
    TRY(st, fs_join(path, dir->root, name), done);
    fs_parent(folder, path);
    TRY(st, fs_make_dirs(dir->fs, folder), done);
    TRY(st, fs_make_dirs(dir->fs, dir->uploads), done);
    TRY(st, fs_open(dir->fs, upload, FS_CREATE_NEW, &file), done);
    lock = lock_upload(upload);
    st = copy_source(file, source);
    fs_close(&file);
    if (st == STATUS_OK) {
        st = fs_rename(dir->fs, upload, path);
        if (st == STATUS_NOT_FOUND) { /* a cleaner came between create and lock */
            st = FAIL(STATUS_IO, "the upload of '%s' vanished", name);
        }
    }
    if (st != STATUS_OK) {
        struct status_record why;
        status_take(&why);
        (void)!fs_unlink(dir->fs, upload);
        st = status_give(&why);
        goto done;
    }
    TRY(st, fs_sync_dir(dir->fs, folder), done);
done:
    if (lock >= 0) {
        (void)close(lock);
    }
    return st;
}

static enum status dir_get(struct store *store, const char *name, void *buffer, size_t bytes,
                           uint64_t offset)
{
    struct store_dir *dir = dir_of(store);
    enum status st = STATUS_OK;
    struct fs_file *file = NULL;
    char path[FS_PATH_MAX];

    TRY(st, fs_join(path, dir->root, name), done);
    TRY(st, fs_open(dir->fs, path, FS_READ, &file), done);
    TRY(st, fs_pread(file, buffer, bytes, offset), done);
done:
    fs_close(&file);
    return st;
}

static enum status dir_stat(struct store *store, const char *name, uint64_t *out_bytes)
{
    struct store_dir *dir = dir_of(store);
    enum status st = STATUS_OK;
    struct fs_stat info;
    char path[FS_PATH_MAX];

    TRY(st, fs_join(path, dir->root, name), done);
    TRY(st, fs_stat(dir->fs, path, &info), done);
    if (info.is_directory) {
        return FAIL(STATUS_NOT_FOUND, "'%s' is a folder, no object", path);
    }
    *out_bytes = info.size;
done:
    return st;
}

struct listing {
    struct store_dir *dir;
    const char *prefix;
    struct store_list *list;
    size_t capacity;
};

static enum status list_folder(struct listing *listing, const char *folder, const char *name,
                               int depth);

static enum status list_entry(struct listing *listing, const char *folder, const char *name,
                              const char *entry, int depth)
{
    enum status st = STATUS_OK;
    struct fs_stat info;
    char path[FS_PATH_MAX], object[FS_PATH_MAX];

    TRY(st, fs_join(path, folder, entry), done);
    if (name[0] == '\0') {
        memcpy(object, entry,
               strlen(entry) + 1); /* a name of the root: no longer than FS_NAME_MAX */
    } else {
        TRY(st, fs_join(object, name, entry), done);
    }
    if (fs_stat(listing->dir->fs, path, &info) != STATUS_OK) {
        return STATUS_OK; /* removed since the folder was read */
    }
    if (info.is_directory) {
        return list_folder(listing, path, object, depth + 1);
    }
    size_t length = strlen(object);
    if (length >= STORE_NAME_MAX ||
        strncmp(object, listing->prefix, strlen(listing->prefix)) != 0) {
        return STATUS_OK;
    }
    struct store_list *list = listing->list;
    TRY(st,
        mem_grow((void **)&list->objects, &listing->capacity, list->count + 1,
                 sizeof *list->objects),
        done);
    memcpy(list->objects[list->count].name, object, length + 1);
    list->objects[list->count].bytes = info.size;
    list->count++;
done:
    return st;
}

static enum status list_folder(struct listing *listing, const char *folder, const char *name,
                               int depth)
{
    enum status st = STATUS_OK;
    struct fs_names names = {NULL, 0};

    if (depth > DEPTH_MAX) {
        return STATUS_OK; /* nothing of ours lies so deep */
    }
    TRY(st, fs_list(listing->dir->fs, folder, &names), done);
    for (size_t i = 0; i < names.count; i++) {
        if (names.names[i][0] != '.') {
            TRY(st, list_entry(listing, folder, name, names.names[i], depth), done);
        }
    }
done:
    fs_names_deinit(&names);
    return st;
}

static int compare_objects(const void *a, const void *b)
{
    return strcmp(((const struct store_object *)a)->name, ((const struct store_object *)b)->name);
}

static enum status dir_list(struct store *store, const char *prefix, struct store_list *out_list)
{
    struct listing listing = {dir_of(store), prefix, out_list, 0};
    enum status st = list_folder(&listing, dir_of(store)->root, "", 0);

    if (st != STATUS_OK) {
        store_list_deinit(out_list);
    } else if (out_list->count > 1) {
        qsort(out_list->objects, out_list->count, sizeof *out_list->objects, compare_objects);
    }
    return st;
}

static enum status dir_remove(struct store *store, const char *name)
{
    struct store_dir *dir = dir_of(store);
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX], folder[FS_PATH_MAX];

    TRY(st, fs_join(path, dir->root, name), done);
    st = fs_unlink(dir->fs, path);
    if (st == STATUS_NOT_FOUND) {
        return STATUS_OK;
    }
    TRY(st, st, done);
    fs_parent(folder, path);
    TRY(st, fs_sync_dir(dir->fs, folder), done);
    if (strcmp(folder, dir->root) != 0 && fs_rmdir(dir->fs, folder) == STATUS_OK) {
        TRY(st, fs_sync_dir(dir->fs, dir->root), done); /* it was the folder's last object */
    }
done:
    return st;
}

static enum status dir_clean(struct store *store)
{
    struct store_dir *dir = dir_of(store);
    enum status st = STATUS_OK;
    struct fs_names names = {NULL, 0};
    char path[FS_PATH_MAX];

    if (!fs_exists(dir->fs, dir->uploads)) {
        return STATUS_OK;
    }
    TRY(st, fs_list(dir->fs, dir->uploads, &names), done);
    for (size_t i = 0; i < names.count; i++) {
        TRY(st, fs_join(path, dir->uploads, names.names[i]), done);
        int lock = lock_upload(path);
        if (lock >= 0) {
            (void)!fs_unlink(dir->fs, path); /* another cleaner may have been faster */
            (void)close(lock);
        }
    }
done:
    fs_names_deinit(&names);
    return st;
}

static const struct store_ops dir_ops = {
    .close = dir_close,
    .put = dir_put,
    .get = dir_get,
    .stat = dir_stat,
    .list = dir_list,
    .remove = dir_remove,
    .clean = dir_clean,
};

enum status store_dir_open(const char *path, int create, const struct store_options *options,
                           struct store **out_store)
{
    enum status st = STATUS_OK;
    struct store_dir *dir = NULL;
    struct fs_stat info;

    (void)options;
    TRY(st, mem_alloc(&dir, 1, sizeof *dir), done);
    dir->base.ops = &dir_ops;
    dir->fs = fs_posix();
    if (strlen(path) == 0 || strlen(path) >= FS_PATH_MAX) {
        st = FAIL(STATUS_USAGE, "the name of a store folder has %zu bytes", strlen(path));
        goto done;
    }
    memcpy(dir->root, path, strlen(path) + 1);
    TRY(st, fs_join(dir->uploads, path, UPLOADS_FOLDER), done);
    if (create) {
        TRY(st, fs_make_dirs(dir->fs, path), done);
    }
    TRY(st, fs_stat(dir->fs, path, &info), done);
    if (!info.is_directory) {
        st = FAIL(STATUS_USAGE, "'%s' is a file, not a folder to keep backups in", path);
    }
done:
    if (st == STATUS_OK) {
        *out_store = &dir->base;
    } else {
        mem_free(&dir);
    }
    return st;
}
