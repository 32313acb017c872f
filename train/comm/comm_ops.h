/* What an implementation of comm.h provides. comm.c checks arguments and dispatches here; an
 * implementation (comm_local) embeds struct comm as its first member.
 *
 * Every operation is present; one that an implementation lacks returns STATUS_UNSUPPORTED. Groups
 * of one reach the operations too, so that an abort is seen there as well.
 */
#ifndef TRAIN_COMM_COMM_OPS_H
#define TRAIN_COMM_COMM_OPS_H

#include "train/comm/comm.h"

struct comm_ops {
    enum status (*split)(struct comm *world, const char *name, const int *world_ranks, int count,
                         struct comm **out_group);
    enum status (*all_reduce)(struct comm *group, void *buffer, size_t count, enum comm_type type,
                              enum comm_op op);
    enum status (*reduce_scatter)(struct comm *group, void *buffer, const size_t *counts,
                                  enum comm_type type);
    enum status (*all_gather)(struct comm *group, void *buffer, const size_t *byte_counts);
    enum status (*broadcast)(struct comm *group, void *buffer, size_t bytes, int root);
    enum status (*barrier)(struct comm *group);
    enum status (*exchange)(struct comm *group, const struct comm_transfer *transfers, int count);
    enum status (*poll)(struct comm *group);
    int (*lost_rank)(const struct comm *group);
    void (*abort)(struct comm *world, const char *reason);
    void (*close)(struct comm *group);
};

struct comm {
    const struct comm_ops *ops;
    int rank, size;
    bool is_world;
    uint64_t sequence; /* collectives done */
};

/* The implementations. */
enum status comm_local_open(const struct comm_config *config, struct comm **out_world)
    STATUS_MUST_CHECK;

#endif
