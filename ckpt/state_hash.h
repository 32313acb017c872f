/* The layout-free hash of what a rank owns of a state (base/hash.h has the formula). */
#ifndef CKPT_STATE_HASH_H
#define CKPT_STATE_HASH_H

#include <stdint.h>

#include "ckpt/base/status.h"
#include "ckpt/base/thread.h"
#include "ckpt/ckpt.h"

/* The sum over the owned boxes of the tensors; the ranks' sums are added up by hash_state_add.
 * Elements of two bytes count as 32-bit words with a zero upper half, of eight as two words. */
enum status state_hash_owned(const struct ckpt_tensor *tensors, size_t count,
                             struct thread_pool *pool, uint64_t *out_sum) STATUS_MUST_CHECK;
/* Of one box in memory. */
enum status state_hash_box(const char *name, enum manifest_type type, int dims,
                           const uint64_t *shape, const struct box *box, const void *data,
                           uint64_t *out_sum) STATUS_MUST_CHECK;

#endif
