/* Layouts, coordinates, and the names of steps and shards: pure functions.
 *
 * Rank order is Megatron's default (tp fastest, then dp, then pp):
 *     rank = tp + TP * (dp + DP * pp)
 * Coordinates are always written in the order tp, pp, dp.
 */
#ifndef CKPT_META_LAYOUT_H
#define CKPT_META_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/base/status.h"

#define LAYOUT_NAME_MAX 64
#define LAYOUT_RANKS_MAX 65536

struct layout {
    int tp, pp, dp; /* sizes, each at least 1 */
};

struct coords {
    int tp, pp, dp;
};

int layout_size(struct layout layout);
int layout_rank(struct layout layout, struct coords coords);
struct coords layout_coords(struct layout layout, int rank);
/* "TP 2 x PP 1 x DP 4" */
void layout_format(struct layout layout, char out_text[LAYOUT_NAME_MAX]);

/* "step_0000500"; longer numbers take more digits. */
void layout_step_name(uint64_t step, char out_name[LAYOUT_NAME_MAX]);
/* Whether `name` is a step's name, digits of any width (at least 7); numbers that do not fit are
 * no step. */
bool layout_parse_step_name(const char *name, uint64_t *out_step);
/* "tp00_pp00_dp00.h5" */
void layout_shard_name(struct coords coords, char out_name[LAYOUT_NAME_MAX]);
bool layout_parse_shard_name(const char *name, struct coords *out_coords);

#endif
