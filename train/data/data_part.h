/* One split of one data set: its token file, its index, and the proof that its ids can be used.
 *
 * Before it: token_file, sample_index, index_cache. After it: data_loader, for which it is the
 * whole data or a part of a blend.
 * Threads: an open part may be read from any thread.
 */
#ifndef TRAIN_DATA_DATA_PART_H
#define TRAIN_DATA_DATA_PART_H

#include <stdint.h>

#include "ckpt/base/status.h"
#include "train/data/data_loader.h"
#include "train/data/sample_index.h"
#include "train/data/token_file.h"

struct data_part {
    struct token_file file;
    struct sample_index index;
};

/* Of `config` everything but `path` and `samples`, which are the part's own: its prefix, and how
 * many samples are asked of it (0: as many as one epoch has, maybe none). Errors as those of
 * data_loader_open. */
enum status data_part_open(const struct data_config *config, enum data_split split,
                           const char *prefix, uint64_t samples, struct data_part *out_part)
    STATUS_MUST_CHECK;
/* Takes a zeroed part. */
void data_part_close(struct data_part *part);

#endif
