/* The real file system: one system call a function; see fs.h. */
#include "ckpt/base/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "ckpt/base/fs_private.h"
#include "ckpt/base/mem.h"

/* Linux transfers at most about 2 GiB a call. */
#define TRANSFER_BYTES_MAX ((size_t)1 << 30)

struct posix_file {
    struct fs_file base;
    int fd;
};

static int fd_of(const struct fs_file *file)
{
    return ((const struct posix_file *)file)->fd;
}

static enum status posix_open(struct fs *fs, const char *path, enum fs_open_mode mode,
                              struct fs_file **out_file)
{
    static const struct {
        int flags;
        const char *verb;
    } modes[] = {
        [FS_READ] = {O_RDONLY, "open"},
        [FS_CREATE_NEW] = {O_RDWR | O_CREAT | O_EXCL, "create"},
        [FS_CREATE] = {O_RDWR | O_CREAT | O_TRUNC, "create"},
        [FS_UPDATE] = {O_RDWR, "open for writing"},
    };
    enum status st = STATUS_OK;
    struct posix_file *file = NULL;

    TRY(st, mem_alloc(&file, 1, sizeof *file), done);
    file->base.fs = fs;
    file->fd = -1;
    TRY(st, mem_copy_string(&file->base.path, path), done);
    do {
        file->fd = open(path, modes[mode].flags | O_CLOEXEC, 0666);
    } while (file->fd < 0 && errno == EINTR);
    if (file->fd < 0) {
        st = FAIL_ERRNO("cannot %s '%s'", modes[mode].verb, path);
    }
done:
    if (st == STATUS_OK) {
        *out_file = &file->base;
    } else if (file != NULL) {
        mem_free(&file->base.path);
        mem_free(&file);
    }
    return st;
}

static void posix_close(struct fs *fs, struct fs_file *file)
{
    struct posix_file *posix = (struct posix_file *)file;

    (void)fs;
    (void)close(posix->fd); /* what must be durable was synced, so there is nothing to learn */
    mem_free(&file->path);
    mem_free(&posix);
}

static enum status posix_pread(struct fs *fs, struct fs_file *file, void *buffer, size_t bytes,
                               uint64_t offset, size_t *out_read)
{
    ssize_t now;

    (void)fs;
    do {
        now = pread(fd_of(file), buffer, bytes < TRANSFER_BYTES_MAX ? bytes : TRANSFER_BYTES_MAX,
                    (off_t)offset);
    } while (now < 0 && errno == EINTR);
    if (now < 0) {
        return FAIL_ERRNO("cannot read '%s' at %llu", file->path, (unsigned long long)offset);
    }
    *out_read = (size_t)now;
    return STATUS_OK;
}

static enum status posix_pwrite(struct fs *fs, struct fs_file *file, const void *buffer,
                                size_t bytes, uint64_t offset)
{
    const char *from = buffer;

    (void)fs;
    while (bytes > 0) {
        ssize_t now =
            pwrite(fd_of(file), from, bytes < TRANSFER_BYTES_MAX ? bytes : TRANSFER_BYTES_MAX,
                   (off_t)offset);
        if (now < 0 && errno == EINTR) {
            continue;
        }
        if (now <= 0) {
            errno = now == 0 ? ENOSPC : errno;
            return FAIL_ERRNO("cannot write '%s' (%zu bytes at %llu)", file->path, bytes,
                              (unsigned long long)offset);
        }
        from += now;
        bytes -= (size_t)now;
        offset += (uint64_t)now;
    }
    return STATUS_OK;
}

static enum status posix_reserve(struct fs *fs, struct fs_file *file, uint64_t bytes)
{
    int result = 0;

    (void)fs;
    if (bytes == 0) {
        return STATUS_OK;
    }
    do {
        /* Not posix_fallocate: where the file system cannot, that one writes zeros. */
        result = fallocate(fd_of(file), 0, 0, (off_t)bytes);
    } while (result != 0 && errno == EINTR);
    if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
        return FAIL_ERRNO("cannot reserve %llu bytes for '%s'", (unsigned long long)bytes,
                          file->path);
    }
    return STATUS_OK;
}

static enum status posix_truncate(struct fs *fs, struct fs_file *file, uint64_t bytes)
{
    int result;

    (void)fs;
    do {
        result = ftruncate(fd_of(file), (off_t)bytes);
    } while (result != 0 && errno == EINTR);
    if (result != 0) {
        return FAIL_ERRNO("cannot set the size of '%s' to %llu", file->path,
                          (unsigned long long)bytes);
    }
    return STATUS_OK;
}

static int sync_fd(int fd)
{
    int result;

    do {
        result = fsync(fd);
    } while (result != 0 && errno == EINTR);
    return result;
}

static enum status posix_sync(struct fs *fs, struct fs_file *file)
{
    (void)fs;
    if (sync_fd(fd_of(file)) != 0) {
        return FAIL_ERRNO("cannot sync '%s'", file->path);
    }
    return STATUS_OK;
}

static enum status posix_file_size(struct fs *fs, struct fs_file *file, uint64_t *out_bytes)
{
    struct stat info;

    (void)fs;
    if (fstat(fd_of(file), &info) != 0) {
        return FAIL_ERRNO("cannot look at '%s'", file->path);
    }
    if (S_ISDIR(info.st_mode)) {
        return FAIL(STATUS_USAGE, "'%s' is a folder, not a file", file->path);
    }
    *out_bytes = (uint64_t)info.st_size;
    return STATUS_OK;
}

static enum status posix_drop_cache(struct fs *fs, struct fs_file *file)
{
    (void)fs;
    int error = posix_fadvise(fd_of(file), 0, 0, POSIX_FADV_DONTNEED);
    if (error != 0) {
        errno = error;
        return FAIL_ERRNO("cannot drop the cached pages of '%s'", file->path);
    }
    return STATUS_OK;
}

static enum status posix_rename(struct fs *fs, const char *from, const char *to)
{
    (void)fs;
    if (rename(from, to) != 0) {
        return FAIL_ERRNO("cannot rename '%s' to '%s'", from, to);
    }
    return STATUS_OK;
}

static enum status posix_unlink(struct fs *fs, const char *path)
{
    (void)fs;
    if (unlink(path) != 0) {
        return FAIL_ERRNO("cannot remove '%s'", path);
    }
    return STATUS_OK;
}

static enum status posix_mkdir(struct fs *fs, const char *path)
{
    (void)fs;
    if (mkdir(path, 0777) != 0) {
        return FAIL_ERRNO("cannot make folder '%s'", path);
    }
    return STATUS_OK;
}

static enum status posix_rmdir(struct fs *fs, const char *path)
{
    (void)fs;
    if (rmdir(path) != 0) {
        return FAIL_ERRNO("cannot remove folder '%s'", path);
    }
    return STATUS_OK;
}

static enum status posix_sync_dir(struct fs *fs, const char *path)
{
    enum status st = STATUS_OK;
    int fd;

    (void)fs;
    do {
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        return FAIL_ERRNO("cannot open folder '%s' to sync it", path);
    }
    /* EINVAL: a file system whose folders are durable at once. */
    if (sync_fd(fd) != 0 && errno != EINVAL) {
        st = FAIL_ERRNO("cannot sync folder '%s'", path);
    }
    (void)close(fd);
    return st;
}

static enum status posix_stat(struct fs *fs, const char *path, struct fs_stat *out_stat)
{
    struct stat info;

    (void)fs;
    if (stat(path, &info) != 0) {
        return FAIL_ERRNO("cannot look at '%s'", path);
    }
    *out_stat = (struct fs_stat){
        .is_directory = S_ISDIR(info.st_mode),
        .size = (uint64_t)info.st_size,
        .device = info.st_dev,
        .inode = info.st_ino,
        .modified_ns = (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec,
    };
    return STATUS_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum status read_names(DIR *directory, const char *path, struct fs_names *names)
{
    enum status st = STATUS_OK;
    size_t capacity = 0;

    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(directory);
        if (entry == NULL) {
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        TRY(st, mem_grow((void **)&names->names, &capacity, names->count + 1, sizeof *names->names),
            done);
        TRY(st, mem_copy_string(&names->names[names->count], entry->d_name), done);
        names->count++;
    }
    if (errno != 0) {
        st = FAIL_ERRNO("cannot list '%s'", path);
    }
done:
    return st;
}

static enum status posix_list(struct fs *fs, const char *path, struct fs_names *out_names)
{
    DIR *directory = opendir(path);

    (void)fs;
    if (directory == NULL) {
        return FAIL_ERRNO("cannot list '%s'", path);
    }
    enum status st = read_names(directory, path, out_names);
    (void)closedir(directory);
    if (st != STATUS_OK) {
        fs_names_deinit(out_names);
    } else if (out_names->count > 1) {
        qsort(out_names->names, out_names->count, sizeof *out_names->names, compare_names);
    }
    return st;
}

static enum status posix_space(struct fs *fs, const char *path, struct fs_space *out_space)
{
    struct statvfs info;
    int result;

    (void)fs;
    do {
        result = statvfs(path, &info);
    } while (result != 0 && errno == EINTR);
    if (result != 0) {
        return FAIL_ERRNO("cannot ask for the space of '%s'", path);
    }
    out_space->total_bytes = (uint64_t)info.f_blocks * info.f_frsize;
    out_space->available_bytes = (uint64_t)info.f_bavail * info.f_frsize;
    return STATUS_OK;
}

static const struct fs_ops posix_ops = {
    .open = posix_open,
    .close = posix_close,
    .pread = posix_pread,
    .pwrite = posix_pwrite,
    .reserve = posix_reserve,
    .truncate = posix_truncate,
    .sync = posix_sync,
    .file_size = posix_file_size,
    .drop_cache = posix_drop_cache,
    .rename = posix_rename,
    .unlink = posix_unlink,
    .mkdir = posix_mkdir,
    .rmdir = posix_rmdir,
    .sync_dir = posix_sync_dir,
    .stat = posix_stat,
    .list = posix_list,
    .space = posix_space,
};

struct fs *fs_posix(void)
{
    static struct fs posix = {&posix_ops};

    return &posix;
}
