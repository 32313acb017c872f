/* The table of all tensors of a save: the union of what the ranks hold, checked.
 *
 * Before it: writer (each rank's list). After it: the manifest. Ranks send their lists by message;
 * rank 0 merges them. A tensor that two ranks describe differently, or whose owned boxes do not add
 * up to the whole, fails the save: such a checkpoint could not be loaded.
 */
#ifndef CKPT_TENSOR_TABLE_H
#define CKPT_TENSOR_TABLE_H

#include "ckpt/base/status.h"
#include "ckpt/ckpt.h"

/* Collective. On rank 0 the tensors are added to `manifest`; elsewhere it is not looked at. */
enum status tensor_table_gather(const struct ckpt_group *group, const struct ckpt_tensor *tensors,
                                size_t count, struct manifest *manifest) STATUS_MUST_CHECK;

#endif
