/* Agreement: all ranks of a group leave a phase with the same status. Used by writer and reader, so
 * that no rank goes on into a collective that another has given up.
 */
#ifndef CKPT_AGREE_H
#define CKPT_AGREE_H

#include "ckpt/base/status.h"
#include "ckpt/ckpt.h"

/* Collective, also for ranks whose `mine` is an error. Every rank returns the first cause of all
 * (status_first_cause over ranks in order) with a message that names the rank; the rank itself
 * keeps its own record. A failure of the group itself is returned as it is. */
enum status agree(const struct ckpt_group *group, enum status mine) STATUS_MUST_CHECK;
/* As agree, but only rank 0's status counts: what it alone has done. */
enum status agree_with_first(const struct ckpt_group *group, enum status mine) STATUS_MUST_CHECK;
/* group->all_gather and broadcast that also work for a group of one. */
enum status agree_gather(const struct ckpt_group *group, const void *mine, size_t bytes, void *all)
    STATUS_MUST_CHECK;
enum status agree_broadcast(const struct ckpt_group *group, void *buffer, size_t bytes)
    STATUS_MUST_CHECK;

#endif
