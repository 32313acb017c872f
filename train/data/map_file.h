/* A whole regular file, mapped read-only: how the data side reads what users bring.
 *
 * Not for checkpoints (these go through ckpt/base/fs.h). The file must not shrink while mapped.
 */
#ifndef TRAIN_DATA_MAP_FILE_H
#define TRAIN_DATA_MAP_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"

struct map_file {
    const unsigned char *bytes; /* page-aligned; NULL when the file is empty */
    size_t count;
};

/* A folder or a device is STATUS_BAD_DATA. */
enum status map_file_open(const char *path, struct map_file *out_map) STATUS_MUST_CHECK;
/* Takes a zeroed map. */
void map_file_close(struct map_file *map);

#endif
