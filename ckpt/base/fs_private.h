/* What every implementation of struct fs puts at the head of its open files; for fs.c and the
 * implementations only. */
#ifndef CKPT_BASE_FS_PRIVATE_H
#define CKPT_BASE_FS_PRIVATE_H

#include "ckpt/base/fs.h"

struct fs_file {
    struct fs *fs;
    char *path; /* ops->open allocates both, ops->close frees both */
};

#endif
