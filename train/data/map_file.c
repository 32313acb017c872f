/* Mapping files; see map_file.h. After it: token_file, preprocess. */
#include "train/data/map_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum status map_file_open(const char *path, struct map_file *out_map)
{
    enum status st = STATUS_OK;
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    *out_map = (struct map_file){0};
    if (fd < 0) {
        return FAIL_ERRNO("cannot open '%s'", path);
    }
    if (fstat(fd, &info) != 0) {
        st = FAIL_ERRNO("cannot look at '%s'", path);
    } else if (!S_ISREG(info.st_mode)) {
        st = FAIL(STATUS_BAD_DATA, "%s instead of a regular file: '%s'",
                  S_ISDIR(info.st_mode) ? "folder" : "pipe or device", path);
    } else if (info.st_size > 0) {
        void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);

        if (bytes == MAP_FAILED) {
            st = FAIL_ERRNO("cannot map '%s'", path);
        } else {
            *out_map = (struct map_file){bytes, (size_t)info.st_size};
        }
    }
    (void)close(fd);
    return st;
}

void map_file_close(struct map_file *map)
{
    if (map->bytes != NULL) {
        (void)munmap((void *)(uintptr_t)map->bytes, map->count);
    }
    *map = (struct map_file){0};
}
