/* The file system as a vtable: every byte and every name that a checkpoint leaves on a disk passes
 * through here, so that tests can cut, tear and fail any call (tests/support/fs_sim).
 *
 * fs_posix() is the real one. All functions are thin: one system call each (retried on EINTR,
 * continued after short transfers), errno becomes a status whose message names the path.
 * Durability: fs_sync makes a file's bytes durable, fs_sync_dir makes names in a directory durable;
 * a rename is visible at once and durable after fs_sync_dir of the parent. Whoever makes data
 * visible follows write, sync, rename, sync of the directory: fs_replace_file does it for small
 * files.
 * Threads: a struct fs may be used from any thread; one fs_file by several threads with pread and
 * pwrite.
 */
#ifndef CKPT_BASE_FS_H
#define CKPT_BASE_FS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"

#define FS_PATH_MAX 4096
#define FS_NAME_MAX 256
/* Names of files that somebody is still writing, and that a killed process may leave. */
#define FS_TEMPORARY_PREFIX ".tmp-"

enum fs_open_mode {
    FS_READ,       /* must exist */
    FS_CREATE_NEW, /* read-write; STATUS_EXISTS when it is there (O_EXCL) */
    FS_CREATE,     /* read-write; truncated when it is there */
    FS_UPDATE      /* read-write; must exist */
};

struct fs_stat {
    bool is_directory;
    uint64_t size;
    uint64_t device;
    uint64_t inode;
    int64_t modified_ns; /* wall time of the file's server: only to print */
};

struct fs_space {
    uint64_t total_bytes;
    uint64_t available_bytes; /* to this user */
};

struct fs_file; /* one open file; made and freed by its fs */

struct fs_names { /* a directory's entries without "." and "..", sorted */
    char **names;
    size_t count;
};

struct fs {
    const struct fs_ops *ops;
};

struct fs_ops {
    enum status (*open)(struct fs *fs, const char *path, enum fs_open_mode mode,
                        struct fs_file **out_file);
    void (*close)(struct fs *fs, struct fs_file *file);
    enum status (*pread)(struct fs *fs, struct fs_file *file, void *buffer, size_t bytes,
                         uint64_t offset, size_t *out_read);
    enum status (*pwrite)(struct fs *fs, struct fs_file *file, const void *buffer, size_t bytes,
                          uint64_t offset);
    enum status (*reserve)(struct fs *fs, struct fs_file *file, uint64_t bytes);
    enum status (*truncate)(struct fs *fs, struct fs_file *file, uint64_t bytes);
    enum status (*sync)(struct fs *fs, struct fs_file *file);
    enum status (*file_size)(struct fs *fs, struct fs_file *file, uint64_t *out_bytes);
    enum status (*drop_cache)(struct fs *fs, struct fs_file *file);
    enum status (*rename)(struct fs *fs, const char *from, const char *to);
    enum status (*unlink)(struct fs *fs, const char *path);
    enum status (*mkdir)(struct fs *fs, const char *path);
    enum status (*rmdir)(struct fs *fs, const char *path);
    enum status (*sync_dir)(struct fs *fs, const char *path);
    enum status (*stat)(struct fs *fs, const char *path, struct fs_stat *out_stat);
    enum status (*list)(struct fs *fs, const char *path, struct fs_names *out_names);
    enum status (*space)(struct fs *fs, const char *path, struct fs_space *out_space);
};

struct fs *fs_posix(void);

enum status fs_open(struct fs *fs, const char *path, enum fs_open_mode mode,
                    struct fs_file **out_file) STATUS_MUST_CHECK;
void fs_close(struct fs_file **file);            /* takes NULL inside, leaves NULL; no sync */
const char *fs_path(const struct fs_file *file); /* the name it was opened by */

/* Fills `buffer` whole; a file that ends before is STATUS_CORRUPT ("ends at ..., wanted ..."). */
enum status fs_pread(struct fs_file *file, void *buffer, size_t bytes, uint64_t offset)
    STATUS_MUST_CHECK;
enum status fs_pwrite(struct fs_file *file, const void *buffer, size_t bytes, uint64_t offset)
    STATUS_MUST_CHECK;
/* Reserves disk space for the first `bytes` bytes by fallocate(2); the size grows with it. A file
 * system that cannot is taken as having space (STATUS_OK). */
enum status fs_reserve(struct fs_file *file, uint64_t bytes) STATUS_MUST_CHECK;
enum status fs_truncate(struct fs_file *file, uint64_t bytes) STATUS_MUST_CHECK;
enum status fs_sync(struct fs_file *file) STATUS_MUST_CHECK;
enum status fs_file_size(struct fs_file *file, uint64_t *out_bytes) STATUS_MUST_CHECK;
/* Asks the kernel to forget the file's clean pages, so that the next read meets the disk. */
enum status fs_drop_cache(struct fs_file *file) STATUS_MUST_CHECK;

enum status fs_rename(struct fs *fs, const char *from, const char *to) STATUS_MUST_CHECK;
enum status fs_unlink(struct fs *fs, const char *path) STATUS_MUST_CHECK;
enum status fs_mkdir(struct fs *fs, const char *path) STATUS_MUST_CHECK; /* 0777 & ~umask */
enum status fs_rmdir(struct fs *fs, const char *path) STATUS_MUST_CHECK;
enum status fs_sync_dir(struct fs *fs, const char *path) STATUS_MUST_CHECK;
enum status fs_stat(struct fs *fs, const char *path, struct fs_stat *out_stat) STATUS_MUST_CHECK;
enum status fs_list(struct fs *fs, const char *path, struct fs_names *out_names) STATUS_MUST_CHECK;
enum status fs_get_space(struct fs *fs, const char *path, struct fs_space *out_space)
    STATUS_MUST_CHECK;
void fs_names_deinit(struct fs_names *names);

/* Compositions of the above; the same for every fs. */
bool fs_exists(struct fs *fs, const char *path);
/* mkdir -p; directories that are there, or that another process makes meanwhile, are fine. Each
 * parent of a made directory is synced. */
enum status fs_make_dirs(struct fs *fs, const char *path) STATUS_MUST_CHECK;
/* Removes a file or a whole tree; STATUS_OK when nothing is there. */
enum status fs_remove_tree(struct fs *fs, const char *path) STATUS_MUST_CHECK;
/* Reads a whole file of at most bytes_max bytes; the result has a 0 byte behind its end and is
 * freed by mem_free. */
enum status fs_read_file(struct fs *fs, const char *path, size_t bytes_max, char **out_bytes,
                         size_t *out_count) STATUS_MUST_CHECK;
/* Writes a small file so that readers see the old or the new whole content, durably: temporary
 * name (FS_TEMPORARY_PREFIX) in the same folder, write, sync, rename, sync of the folder. */
enum status fs_replace_file(struct fs *fs, const char *path, const void *bytes, size_t count)
    STATUS_MUST_CHECK;
/* "DIRECTORY/NAME" into a buffer of FS_PATH_MAX bytes; too long is STATUS_USAGE. */
enum status fs_join(char out_path[FS_PATH_MAX], const char *directory, const char *name)
    STATUS_MUST_CHECK;
/* The directory part of `path`: "." when it has none, "/" for names in the root. */
void fs_parent(char out_path[FS_PATH_MAX], const char *path);

#endif
