/* The file system's common face: dispatch, whole reads, and the compositions; see fs.h. The real
 * implementation is fs_posix.c. */
#include "ckpt/base/fs.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/fs_private.h"
#include "ckpt/base/mem.h"

enum status fs_open(struct fs *fs, const char *path, enum fs_open_mode mode,
                    struct fs_file **out_file)
{
    *out_file = NULL;
    return fs->ops->open(fs, path, mode, out_file);
}

void fs_close(struct fs_file **file)
{
    if (*file != NULL) {
        (*file)->fs->ops->close((*file)->fs, *file);
        *file = NULL;
    }
}

const char *fs_path(const struct fs_file *file)
{
    return file->path;
}

enum status fs_pread(struct fs_file *file, void *buffer, size_t bytes, uint64_t offset)
{
    enum status st = STATUS_OK;
    size_t done = 0;

    while (done < bytes) {
        size_t now = 0;
        TRY(st,
            file->fs->ops->pread(file->fs, file, (char *)buffer + done, bytes - done, offset + done,
                                 &now),
            done);
        if (now == 0) {
            return FAIL(STATUS_CORRUPT, "'%s' ends at %llu, wanted %zu bytes at %llu", file->path,
                        (unsigned long long)(offset + done), bytes, (unsigned long long)offset);
        }
        done += now;
    }
done:
    return st;
}

enum status fs_pwrite(struct fs_file *file, const void *buffer, size_t bytes, uint64_t offset)
{
    return file->fs->ops->pwrite(file->fs, file, buffer, bytes, offset);
}

enum status fs_reserve(struct fs_file *file, uint64_t bytes)
{
    return file->fs->ops->reserve(file->fs, file, bytes);
}

enum status fs_truncate(struct fs_file *file, uint64_t bytes)
{
    return file->fs->ops->truncate(file->fs, file, bytes);
}

enum status fs_sync(struct fs_file *file)
{
    return file->fs->ops->sync(file->fs, file);
}

enum status fs_file_size(struct fs_file *file, uint64_t *out_bytes)
{
    return file->fs->ops->file_size(file->fs, file, out_bytes);
}

enum status fs_drop_cache(struct fs_file *file)
{
    return file->fs->ops->drop_cache(file->fs, file);
}

enum status fs_rename(struct fs *fs, const char *from, const char *to)
{
    return fs->ops->rename(fs, from, to);
}

enum status fs_unlink(struct fs *fs, const char *path)
{
    return fs->ops->unlink(fs, path);
}

enum status fs_mkdir(struct fs *fs, const char *path)
{
    return fs->ops->mkdir(fs, path);
}

enum status fs_rmdir(struct fs *fs, const char *path)
{
    return fs->ops->rmdir(fs, path);
}

enum status fs_sync_dir(struct fs *fs, const char *path)
{
    return fs->ops->sync_dir(fs, path);
}

enum status fs_stat(struct fs *fs, const char *path, struct fs_stat *out_stat)
{
    return fs->ops->stat(fs, path, out_stat);
}

enum status fs_list(struct fs *fs, const char *path, struct fs_names *out_names)
{
    *out_names = (struct fs_names){NULL, 0};
    return fs->ops->list(fs, path, out_names);
}

enum status fs_get_space(struct fs *fs, const char *path, struct fs_space *out_space)
{
    return fs->ops->space(fs, path, out_space);
}

void fs_names_deinit(struct fs_names *names)
{
    for (size_t i = 0; i < names->count; i++) {
        mem_free(&names->names[i]);
    }
    mem_free(&names->names);
    names->count = 0;
}

bool fs_exists(struct fs *fs, const char *path)
{
    struct fs_stat info;

    return fs_stat(fs, path, &info) == STATUS_OK;
}

/* One level; the parent is there. */
static enum status make_dir(struct fs *fs, const char *path)
{
    enum status st = fs_mkdir(fs, path);
    char parent[FS_PATH_MAX];

    if (st == STATUS_EXISTS) {
        struct fs_stat info;
        TRY(st, fs_stat(fs, path, &info), done);
        if (!info.is_directory) {
            return FAIL(STATUS_EXISTS, "cannot make folder '%s': a file of that name is there",
                        path);
        }
    } else if (st == STATUS_OK) {
        fs_parent(parent, path);
        TRY(st, fs_sync_dir(fs, parent), done);
    }
done:
    return st;
}

enum status fs_make_dirs(struct fs *fs, const char *path)
{
    enum status st = STATUS_OK;
    char part[FS_PATH_MAX];
    size_t length = strlen(path);

    if (length == 0 || length >= FS_PATH_MAX) {
        return FAIL(STATUS_USAGE, "cannot make folder '%.100s': its name has %zu characters", path,
                    length);
    }
    if (fs_exists(fs, path)) {
        return make_dir(fs, path); /* says so when it is a file */
    }
    memcpy(part, path, length + 1);
    for (size_t i = 1; i < length; i++) {
        if (part[i] == '/' && part[i - 1] != '/') {
            part[i] = '\0';
            if (!fs_exists(fs, part)) {
                TRY(st, make_dir(fs, part), done);
            }
            part[i] = '/';
        }
    }
    TRY(st, make_dir(fs, part), done);
done:
    return st;
}

enum status fs_remove_tree(struct fs *fs, const char *path)
{
    enum status st = STATUS_OK;
    struct fs_names names = {NULL, 0};
    char inner[FS_PATH_MAX];

    /* Unlink first: it removes files and symbolic links, and refuses folders. Where it has no
     * permission there may be a link, and listing would follow it and empty its target. */
    st = fs_unlink(fs, path);
    if (st == STATUS_OK || st == STATUS_NOT_FOUND) {
        return STATUS_OK;
    }
    if (st == STATUS_NO_PERMISSION) {
        return st;
    }
    struct status_record why;
    status_take(&why);
    st = fs_list(fs, path, &names);
    if (st == STATUS_NOT_FOUND) {
        return status_give(&why); /* no folder: why it was not unlinked counts */
    }
    if (st != STATUS_OK) {
        goto done;
    }
    for (size_t i = 0; i < names.count; i++) {
        TRY(st, fs_join(inner, path, names.names[i]), done);
        TRY(st, fs_remove_tree(fs, inner), done);
    }
    st = fs_rmdir(fs, path);
    if (st == STATUS_NOT_FOUND) {
        st = STATUS_OK; /* another process removes the same tree */
    }
done:
    fs_names_deinit(&names);
    return st;
}

enum status fs_read_file(struct fs *fs, const char *path, size_t bytes_max, char **out_bytes,
                         size_t *out_count)
{
    enum status st = STATUS_OK;
    struct fs_file *file = NULL;
    uint64_t size = 0;

    *out_bytes = NULL;
    *out_count = 0;
    TRY(st, fs_open(fs, path, FS_READ, &file), done);
    TRY(st, fs_file_size(file, &size), done);
    if (size > bytes_max) {
        st = FAIL(STATUS_CORRUPT, "'%s' has %llu bytes, at most %zu are expected", path,
                  (unsigned long long)size, bytes_max);
        goto done;
    }
    TRY(st, mem_alloc(out_bytes, (size_t)size + 1, 1), done);
    TRY(st, fs_pread(file, *out_bytes, (size_t)size, 0), done);
    *out_count = (size_t)size;
done:
    fs_close(&file);
    if (st != STATUS_OK) {
        mem_free(out_bytes);
    }
    return st;
}

enum status fs_replace_file(struct fs *fs, const char *path, const void *bytes, size_t count)
{
    static _Atomic unsigned serial;
    enum status st = STATUS_OK;
    struct fs_file *file = NULL;
    char name[FS_NAME_MAX], parent[FS_PATH_MAX], temporary[FS_PATH_MAX];

    (void)snprintf(name, sizeof name, FS_TEMPORARY_PREFIX "%ld-%u-%llx", (long)getpid(),
                   atomic_fetch_add(&serial, 1), (unsigned long long)clock_monotonic_ns());
    fs_parent(parent, path);
    TRY(st, fs_join(temporary, parent, name), done);
    TRY(st, fs_open(fs, temporary, FS_CREATE_NEW, &file), done);
    TRY(st, fs_pwrite(file, bytes, count, 0), remove);
    TRY(st, fs_sync(file), remove);
    fs_close(&file);
    TRY(st, fs_rename(fs, temporary, path), remove);
    TRY(st, fs_sync_dir(fs, parent), done);
    goto done;
remove:
    fs_close(&file);
    struct status_record why;
    status_take(&why);
    (void)!fs_unlink(fs, temporary);
    (void)status_give(&why);
done:
    fs_close(&file);
    return st;
}

enum status fs_join(char out_path[FS_PATH_MAX], const char *directory, const char *name)
{
    size_t length = strlen(directory);
    const char *slash = length > 0 && directory[length - 1] == '/' ? "" : "/";
    int used = snprintf(out_path, FS_PATH_MAX, "%s%s%s", directory, slash, name);

    if (used < 0 || used >= FS_PATH_MAX) {
        return FAIL(STATUS_USAGE, "path '%.100s.../%.100s' is too long", directory, name);
    }
    return STATUS_OK;
}

void fs_parent(char out_path[FS_PATH_MAX], const char *path)
{
    size_t end = strlen(path);

    CHECK(end < FS_PATH_MAX);
    while (end > 1 && path[end - 1] == '/') {
        end--; /* "a/b/" is "a/b" */
    }
    while (end > 0 && path[end - 1] != '/') {
        end--;
    }
    while (end > 1 && path[end - 1] == '/') {
        end--;
    }
    if (end == 0) {
        memcpy(out_path, ".", 2);
    } else {
        memcpy(out_path, path, end);
        out_path[end] = '\0';
    }
}
