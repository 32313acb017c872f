/* Folds the members' values in rank order: ((r0 + r1) + r2) + ..., in the element's own type. */
#ifndef TRAIN_COMM_FOLD_H
#define TRAIN_COMM_FOLD_H

#include <stddef.h>

#include "train/comm/comm.h"

/* sources[i] holds `count` elements of member i. The result goes to `out`, which may be one of the
 * sources, and to `out_copy` unless that is NULL. A NaN stays a NaN in MAX and MIN too. */
void fold_members(const void *const *sources, int source_count, size_t count, enum comm_type type,
                  enum comm_op op, void *out, void *out_copy);

#endif
