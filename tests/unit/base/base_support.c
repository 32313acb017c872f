/* See base_support.h. */
#include "tests/unit/base/base_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ckpt/base/clock.h"

void support_make_folder(char out_path[FS_PATH_MAX])
{
    const char *root = getenv("TMPDIR");

    (void)snprintf(out_path, FS_PATH_MAX, "%s/holdfast-base-XXXXXX", root != NULL ? root : "/tmp");
    cr_assert(mkdtemp(out_path) != NULL);
}

void support_remove_folder(const char *path)
{
    assert_ok(fs_remove_tree(fs_posix(), path));
}

void support_write(const char *folder, const char *name, const void *bytes, size_t count)
{
    char path[FS_PATH_MAX];

    assert_ok(fs_join(path, folder, name));
    assert_ok(fs_replace_file(fs_posix(), path, bytes, count));
}

void support_catch(struct support_catch *caught, int fd)
{
    FILE *file = tmpfile();

    cr_assert(file != NULL);
    (void)fflush(NULL);
    caught->fd = fd;
    caught->saved = dup(fd);
    caught->file = dup(fileno(file));
    cr_assert(dup2(caught->file, fd) == fd);
    (void)fclose(file);
}

char *support_release(struct support_catch *caught)
{
    (void)fflush(NULL);
    cr_assert(dup2(caught->saved, caught->fd) == caught->fd);
    off_t bytes = lseek(caught->file, 0, SEEK_END);
    char *text = calloc((size_t)bytes + 1, 1);
    cr_assert(text != NULL && pread(caught->file, text, (size_t)bytes, 0) == bytes);
    (void)close(caught->saved);
    (void)close(caught->file);
    return text;
}

uint64_t support_seed(void)
{
    const char *given = getenv("HOLDFAST_TEST_SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 0) : (uint64_t)clock_wall_ns();

    (void)fprintf(stderr, "HOLDFAST_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

uint64_t support_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}
