/* Claims of fs.h: the real file system, and the compositions over one that is cut short. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/fs_private.h"
#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"
#include "tests/unit/base/base_support.h"

static char folder[FS_PATH_MAX];

static void make_folder(void)
{
    support_make_folder(folder);
}

static void remove_folder(void)
{
    support_remove_folder(folder);
}

TestSuite(fs, .init = make_folder, .fini = remove_folder);

/* "FOLDER/NAME" in one of a few buffers that take turns. */
static const char *in(const char *name)
{
    static char paths[4][FS_PATH_MAX];
    static size_t next;
    char *path = paths[next++ % 4];

    assert_ok(fs_join(path, folder, name));
    return path;
}

/* The real file system, except that each read gives at most read_max bytes, and that an unlink of
 * `sticky` is refused, as for another user's entry of a sticky folder. */
struct odd_fs {
    struct fs fs;
    struct fs_ops ops;
    size_t read_max;
    const char *sticky;
};

static enum status odd_pread(struct fs *fs, struct fs_file *file, void *buffer, size_t bytes,
                             uint64_t offset, size_t *out_read)
{
    size_t most = ((struct odd_fs *)fs)->read_max;

    return fs_posix()->ops->pread(fs, file, buffer, bytes < most ? bytes : most, offset, out_read);
}

static enum status odd_unlink(struct fs *fs, const char *path)
{
    const char *sticky = ((struct odd_fs *)fs)->sticky;

    if (sticky != NULL && strcmp(path, sticky) == 0) {
        errno = EPERM;
        return FAIL_ERRNO("cannot remove '%s'", path);
    }
    return fs_posix()->ops->unlink(fs, path);
}

static struct fs *make_odd(struct odd_fs *odd)
{
    odd->ops = *fs_posix()->ops;
    odd->ops.pread = odd_pread;
    odd->ops.unlink = odd_unlink;
    odd->fs.ops = &odd->ops;
    odd->read_max = 3;
    odd->sticky = NULL;
    return &odd->fs;
}

Test(fs, short_reads_are_continued_and_a_short_file_is_corrupt)
{
    struct odd_fs odd;
    struct fs *fs = make_odd(&odd);
    struct fs_file *file = NULL;
    char *bytes = NULL, text[16];
    size_t count = 0;

    support_write(folder, "a", "0123456789", 10);
    assert_ok(fs_read_file(fs, in("a"), 10, &bytes, &count));
    cr_assert(count == 10 && strcmp(bytes, "0123456789") == 0);
    mem_free(&bytes);
    assert_ok(fs_open(fs, in("a"), FS_READ, &file));
    assert_ok(fs_pread(file, text, 7, 2));
    cr_assert(memcmp(text, "2345678", 7) == 0);
    assert_status(fs_pread(file, text, 7, 4), STATUS_CORRUPT);
    assert_says("ends at 10, wanted 7 bytes at 4");
    assert_says(in("a"));
    assert_status(fs_pread(file, text, 1, 1000), STATUS_CORRUPT);
    assert_ok(fs_pread(file, text, 0, 1000));
    fs_close(&file);
    cr_assert(file == NULL);
    fs_close(&file);
}

Test(fs, modes_create_keep_and_truncate_as_named)
{
    struct fs *fs = fs_posix();
    struct fs_file *file = NULL;
    uint64_t size = 99;

    assert_status(fs_open(fs, in("a"), FS_READ, &file), STATUS_NOT_FOUND);
    assert_says(in("a"));
    assert_status(fs_open(fs, in("a"), FS_UPDATE, &file), STATUS_NOT_FOUND);
    cr_assert(file == NULL);
    assert_ok(fs_open(fs, in("a"), FS_CREATE_NEW, &file));
    cr_assert_str_eq(fs_path(file), in("a"));
    assert_ok(fs_pwrite(file, "abc", 3, 2));
    assert_ok(fs_file_size(file, &size));
    cr_assert(size == 5);
    assert_ok(fs_sync(file));
    assert_ok(fs_drop_cache(file));
    fs_close(&file);
    assert_status(fs_open(fs, in("a"), FS_CREATE_NEW, &file), STATUS_EXISTS);
    assert_ok(fs_open(fs, in("a"), FS_UPDATE, &file));
    assert_ok(fs_file_size(file, &size));
    cr_assert(size == 5);
    assert_ok(fs_truncate(file, 4));
    assert_ok(fs_file_size(file, &size));
    cr_assert(size == 4);
    fs_close(&file);
    assert_ok(fs_open(fs, in("a"), FS_CREATE, &file));
    assert_ok(fs_file_size(file, &size));
    cr_assert(size == 0);
    fs_close(&file);
    assert_ok(fs_open(fs, folder, FS_READ, &file));
    assert_status(fs_file_size(file, &size), STATUS_USAGE);
    fs_close(&file);
}

Test(fs, a_reservation_grows_the_file_and_keeps_its_bytes)
{
    struct fs_file *file = NULL;
    uint64_t size = 0;
    char text[3];

    assert_ok(fs_open(fs_posix(), in("a"), FS_CREATE, &file));
    assert_ok(fs_pwrite(file, "abc", 3, 0));
    assert_ok(fs_reserve(file, 0));
    assert_ok(fs_reserve(file, 1 << 20));
    assert_ok(fs_file_size(file, &size));
    cr_assert(size == 1 << 20 || size == 3, "3 only where the file system cannot reserve");
    assert_ok(fs_pread(file, text, 3, 0));
    cr_assert(memcmp(text, "abc", 3) == 0);
    fs_close(&file);
}

Test(fs, threads_share_one_file)
{
    struct fs_file *file = NULL;

    assert_ok(fs_open(fs_posix(), in("a"), FS_CREATE, &file));
    for (uint64_t i = 0; i < 100; i++) {
        assert_ok(fs_pwrite(file, &i, sizeof i, (99 - i) * sizeof i));
    }
    for (uint64_t i = 0; i < 100; i++) {
        uint64_t got = 0;
        assert_ok(fs_pread(file, &got, sizeof got, i * sizeof got));
        cr_assert(got == 99 - i);
    }
    fs_close(&file);
}

Test(fs, names_are_listed_sorted_and_described)
{
    struct fs *fs = fs_posix();
    struct fs_names names;
    struct fs_stat info, other;
    struct fs_space space;

    assert_ok(fs_list(fs, folder, &names));
    cr_assert(names.count == 0);
    fs_names_deinit(&names);
    support_write(folder, "b", "", 0);
    support_write(folder, "a10", "12345", 5);
    support_write(folder, "a9", "", 0);
    assert_ok(fs_mkdir(fs, in(".c")));
    assert_ok(fs_list(fs, folder, &names));
    cr_assert(names.count == 4);
    cr_assert_str_eq(names.names[0], ".c");
    cr_assert_str_eq(names.names[1], "a10");
    cr_assert_str_eq(names.names[2], "a9");
    cr_assert_str_eq(names.names[3], "b");
    fs_names_deinit(&names);
    cr_assert(names.count == 0 && names.names == NULL);
    assert_ok(fs_stat(fs, in("a10"), &info));
    assert_ok(fs_stat(fs, in("b"), &other));
    cr_assert(!info.is_directory && info.size == 5 && info.modified_ns > 0);
    cr_assert(info.device == other.device && info.inode != other.inode);
    assert_ok(fs_stat(fs, in(".c"), &info));
    cr_assert(info.is_directory);
    assert_status(fs_list(fs, in("nowhere"), &names), STATUS_NOT_FOUND);
    assert_status(fs_list(fs, in("b"), &names), STATUS_NOT_FOUND);
    assert_ok(fs_get_space(fs, folder, &space));
    cr_assert(space.total_bytes >= space.available_bytes && space.total_bytes > 0);
}

Test(fs, folders_are_made_with_their_parents_and_again)
{
    struct fs *fs = fs_posix();
    struct fs_stat info;

    assert_ok(fs_make_dirs(fs, in("a/b//c/")));
    assert_ok(fs_make_dirs(fs, in("a/b/c")));
    assert_ok(fs_stat(fs, in("a/b/c"), &info));
    cr_assert(info.is_directory);
    support_write(folder, "file", "", 0);
    assert_status(fs_make_dirs(fs, in("file")), STATUS_EXISTS);
    assert_says("a file of that name");
    assert_status(fs_make_dirs(fs, in("file/x")), STATUS_NOT_FOUND);
    assert_status(fs_make_dirs(fs, ""), STATUS_USAGE);
    assert_status(fs_mkdir(fs, in("a")), STATUS_EXISTS);
    assert_status(fs_rmdir(fs, in("a")), STATUS_EXISTS);
    assert_ok(fs_rmdir(fs, in("a/b/c")));
    assert_ok(fs_sync_dir(fs, in("a/b")));
    assert_status(fs_sync_dir(fs, in("a/b/c")), STATUS_NOT_FOUND);
    assert_ok(fs_rename(fs, in("a/b"), in("d")));
    cr_assert(fs_exists(fs, in("d")) && !fs_exists(fs, in("a/b")));
    assert_status(fs_rename(fs, in("a/b"), in("e")), STATUS_NOT_FOUND);
}

static enum status make_dirs_piece(void *context, size_t index)
{
    char path[FS_PATH_MAX];

    (void)snprintf(path, sizeof path, "%s/r%zu/x/y/z", (const char *)context, index / 8);
    return fs_make_dirs(fs_posix(), path);
}

Test(fs, folders_made_by_many_at_once_are_fine)
{
    struct thread_pool *pool = NULL;

    assert_ok(thread_pool_create(4, &pool));
    assert_ok(thread_pool_run(pool, make_dirs_piece, folder, 400));
    thread_pool_destroy(pool);
}

Test(fs, a_tree_is_removed_and_links_are_not_followed)
{
    struct fs *fs = fs_posix();

    assert_ok(fs_make_dirs(fs, in("kept/inner")));
    assert_ok(fs_make_dirs(fs, in("tree/a/b")));
    support_write(folder, "kept/inner/file", "x", 1);
    support_write(folder, "tree/a/file", "x", 1);
    cr_assert(symlink(in("kept"), in("tree/a/link")) == 0);
    cr_assert(symlink(in("kept/inner/file"), in("tree/b")) == 0);
    cr_assert(symlink("nowhere", in("tree/dangling")) == 0);
    cr_assert(symlink(in("kept"), in("top")) == 0);
    assert_ok(fs_remove_tree(fs, in("tree")));
    assert_ok(fs_remove_tree(fs, in("top")));
    assert_ok(fs_remove_tree(fs, in("nowhere")));
    cr_assert(fs_exists(fs, in("kept/inner/file")));
    cr_assert(!fs_exists(fs, in("tree")) && !fs_exists(fs, in("top")));
    support_write(folder, "single", "x", 1);
    assert_ok(fs_remove_tree(fs, in("single")));
    cr_assert(!fs_exists(fs, in("single")));
}

Test(fs, a_link_that_cannot_be_removed_is_not_followed_either)
{
    struct odd_fs odd;
    struct fs *fs = make_odd(&odd);

    assert_ok(fs_make_dirs(fs, in("kept")));
    assert_ok(fs_make_dirs(fs, in("tree")));
    support_write(folder, "kept/file", "x", 1);
    cr_assert(symlink(in("kept"), in("tree/link")) == 0);
    odd.sticky = in("tree/link");
    assert_status(fs_remove_tree(fs, in("tree")), STATUS_NO_PERMISSION);
    cr_assert(fs_exists(fs, in("kept/file")));
}

Test(fs, a_small_file_is_replaced_whole_leaving_nothing_beside_it)
{
    struct fs *fs = fs_posix();
    struct fs_names names;
    char *bytes = NULL;
    size_t count = 0;

    assert_ok(fs_replace_file(fs, in("a"), "first and longer", 16));
    assert_ok(fs_replace_file(fs, in("a"), "second", 6));
    assert_ok(fs_read_file(fs, in("a"), 6, &bytes, &count));
    cr_assert(count == 6 && bytes[6] == '\0');
    cr_assert_str_eq(bytes, "second");
    mem_free(&bytes);
    assert_status(fs_read_file(fs, in("a"), 5, &bytes, &count), STATUS_CORRUPT);
    cr_assert(bytes == NULL && count == 0);
    assert_ok(fs_mkdir(fs, in("d")));
    assert_status(fs_replace_file(fs, in("d"), "x", 1), STATUS_IO);
    assert_says("rename"); /* and not the clean-up after it */
    assert_ok(fs_list(fs, folder, &names));
    cr_assert(names.count == 2, "a temporary file stays");
    fs_names_deinit(&names);
}

static enum status use_all(struct fs *fs)
{
    enum status st = STATUS_OK;
    struct fs_names names = {NULL, 0};
    char *bytes = NULL;
    size_t count = 0;

    TRY(st, fs_make_dirs(fs, in("x/y")), done);
    TRY(st, fs_replace_file(fs, in("x/y/file"), "text", 4), done);
    TRY(st, fs_read_file(fs, in("x/y/file"), 4, &bytes, &count), done);
    TRY(st, fs_list(fs, in("x"), &names), done);
    TRY(st, fs_remove_tree(fs, in("x")), done);
done:
    fs_names_deinit(&names);
    mem_free(&bytes);
    return st;
}

Test(fs, each_failing_allocation_is_told_and_nothing_leaks)
{
    size_t before = mem_used_bytes();
    enum status st = STATUS_NO_MEMORY;
    uint64_t n = 1;

    for (; st != STATUS_OK && n < 100; n++) {
        mem_fail_at(n);
        st = use_all(fs_posix());
        mem_fail_at(0);
        cr_assert(st == STATUS_OK || st == STATUS_NO_MEMORY, "%s", status_name(st));
        cr_assert(mem_used_bytes() == before, "allocation %d leaks", (int)n);
    }
    cr_assert(st == STATUS_OK && n > 8);
}

Test(fs, paths_are_joined_and_split)
{
    char path[FS_PATH_MAX], name[FS_PATH_MAX];
    static const char *const parents[][2] = {
        {"a/b", "a"},   {"a", "."},    {"/a", "/"},  {"/", "/"}, {"a/b/", "a"},
        {"/a/b", "/a"}, {"a//b", "a"}, {"//a", "/"}, {"", "."},
    };

    assert_ok(fs_join(path, "a/", "b"));
    cr_assert_str_eq(path, "a/b");
    assert_ok(fs_join(path, "/", "b"));
    cr_assert_str_eq(path, "/b");
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_status(fs_join(path, "a", name), STATUS_USAGE);
    name[FS_PATH_MAX - 3] = '\0';
    assert_ok(fs_join(path, "a", name));
    for (size_t i = 0; i < sizeof parents / sizeof parents[0]; i++) {
        fs_parent(path, parents[i][0]);
        cr_assert_str_eq(path, parents[i][1]);
    }
}

/* Names that NAME, a file of `bytes` bytes, does not fit, and that the old content stays. */
static void expect_no_space(size_t bytes)
{
    struct fs *fs = fs_posix();
    struct fs_names names;
    char *much = calloc(bytes, 1), *back = NULL;
    size_t count = 0;

    cr_assert(much != NULL);
    assert_ok(fs_replace_file(fs, in("file"), "old", 3));
    assert_status(fs_replace_file(fs, in("file"), much, bytes), STATUS_NO_SPACE);
    assert_says("cannot write");
    assert_ok(fs_read_file(fs, in("file"), 3, &back, &count));
    cr_assert_str_eq(back, "old");
    mem_free(&back);
    assert_ok(fs_list(fs, folder, &names));
    cr_assert(names.count == 1, "a temporary file stays");
    fs_names_deinit(&names);
    free(much);
}

Test(fs, a_file_over_the_size_limit_is_no_space_and_the_old_one_stays)
{
    struct rlimit limit = {1 << 20, 1 << 20};

    (void)signal(SIGXFSZ, SIG_IGN);
    cr_assert(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    expect_no_space((1 << 20) + 1);
}

static bool write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY);
    bool fine = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

    (void)close(fd);
    return fine;
}

/* In a mount namespace of this process alone, so that the mount goes with it. */
static bool mount_small(const char *path)
{
    char map[64];

    if (unshare(CLONE_NEWNS) != 0) {
        (void)snprintf(map, sizeof map, "0 %d 1", (int)getuid());
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 || !write_text("/proc/self/uid_map", map)) {
            return false;
        }
    }
    return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("none", path, "tmpfs", 0, "size=1m") == 0;
}

Test(fs, a_full_disk_is_no_space_and_the_old_file_stays)
{
    struct fs_file *file = NULL;
    uint64_t size = 0;

    if (!mount_small(folder)) {
        (void)fprintf(stderr, "skipped: cannot mount a tmpfs: %s\n", strerror(errno));
        cr_skip_test("cannot mount a tmpfs");
    }
    expect_no_space(2 << 20);
    assert_ok(fs_open(fs_posix(), in("other"), FS_CREATE, &file));
    assert_status(fs_reserve(file, 2 << 20), STATUS_NO_SPACE);
    assert_says("cannot reserve 2097152 bytes");
    assert_ok(fs_file_size(file, &size));
    cr_assert(size == 0);
    assert_ok(fs_reserve(file, 1 << 18));
    fs_close(&file);
    cr_assert(umount2(folder, MNT_DETACH) == 0);
}

Test(fs, a_device_without_room_is_no_space)
{
    struct fs_file *file = NULL;

    if (access("/dev/full", W_OK) != 0) {
        (void)fprintf(stderr, "skipped: no /dev/full\n");
        cr_skip_test("no /dev/full");
    }
    assert_ok(fs_open(fs_posix(), "/dev/full", FS_UPDATE, &file));
    assert_status(fs_pwrite(file, "x", 1, 0), STATUS_NO_SPACE);
    assert_ok(fs_reserve(file, 0));
    fs_close(&file);
}
