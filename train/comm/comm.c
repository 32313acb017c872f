/* The face of communication: checks what callers pass, counts collectives, dispatches.
 *
 * Before it: parallel/. After it: one implementation behind struct comm_ops. Wrong arguments are
 * broken invariants (CHECK), not statuses: each member would find another one of them.
 */
#include "train/comm/comm.h"

#include "train/comm/comm_ops.h"

static enum status count_done(struct comm *group, enum status st)
{
    if (st == STATUS_OK) {
        group->sequence++;
    }
    return st;
}

size_t comm_type_bytes(enum comm_type type)
{
    static const size_t bytes[] = {
        [COMM_F32] = sizeof(float),
        [COMM_F64] = sizeof(double),
        [COMM_U64] = sizeof(uint64_t),
        [COMM_I32] = sizeof(int32_t),
    };

    CHECK((size_t)type < sizeof(bytes) / sizeof(bytes[0]));
    return bytes[type];
}

enum status comm_open(const struct comm_config *config, struct comm **out_world)
{
    if (config->size < 1 || config->size > COMM_RANKS_MAX) {
        return FAIL(STATUS_USAGE, "bad number of ranks '%d'; give 1 to %d", config->size,
                    COMM_RANKS_MAX);
    }
    if (config->rank < 0 || config->rank >= config->size) {
        return FAIL(STATUS_USAGE, "bad rank '%d'; give 0 to %d", config->rank, config->size - 1);
    }
    if (config->size > 1 && config->rendezvous_dir == NULL) {
        return FAIL(STATUS_USAGE, "no rendezvous folder for '%d' ranks; give one", config->size);
    }
    if (config->init_timeout_ms <= 0 || config->call_timeout_ms <= 0) {
        return FAIL(STATUS_USAGE, "bad time limit; give more than 0 ms");
    }
    return comm_local_open(config, out_world);
}

enum status comm_split(struct comm *world, const char *name, const int *world_ranks, int count,
                       struct comm **out_group)
{
    CHECK(world->is_world);
    CHECK(count >= 1 && count <= world->size);
    for (int i = 0; i < count; i++) {
        CHECK(world_ranks[i] >= 0 && world_ranks[i] < world->size);
    }
    return world->ops->split(world, name, world_ranks, count, out_group);
}

int comm_rank(const struct comm *group)
{
    return group->rank;
}

int comm_size(const struct comm *group)
{
    return group->size;
}

uint64_t comm_sequence(const struct comm *group)
{
    return group->sequence;
}

enum status comm_all_reduce(struct comm *group, void *buffer, size_t count, enum comm_type type,
                            enum comm_op op)
{
    CHECK(op == COMM_SUM || op == COMM_MAX || op == COMM_MIN);
    CHECK(count <= SIZE_MAX / 2 / comm_type_bytes(type));
    return count_done(group, group->ops->all_reduce(group, buffer, count, type, op));
}

enum status comm_reduce_scatter(struct comm *group, void *buffer, const size_t *counts,
                                enum comm_type type)
{
    return count_done(group, group->ops->reduce_scatter(group, buffer, counts, type));
}

enum status comm_all_gather(struct comm *group, void *buffer, const size_t *byte_counts)
{
    return count_done(group, group->ops->all_gather(group, buffer, byte_counts));
}

enum status comm_broadcast(struct comm *group, void *buffer, size_t bytes, int root)
{
    CHECK(root >= 0 && root < group->size);
    return count_done(group, group->ops->broadcast(group, buffer, bytes, root));
}

enum status comm_barrier(struct comm *group)
{
    return count_done(group, group->ops->barrier(group));
}

enum status comm_exchange(struct comm *group, const struct comm_transfer *transfers, int count)
{
    CHECK(count >= 0 && count <= COMM_EXCHANGE_MAX);
    for (int i = 0; i < count; i++) {
        CHECK(transfers[i].peer >= 0 && transfers[i].peer < group->size);
        CHECK(transfers[i].peer != group->rank);
    }
    return group->ops->exchange(group, transfers, count);
}

enum status comm_poll(struct comm *group)
{
    return group->ops->poll(group);
}

int comm_lost_rank(const struct comm *group)
{
    return group->ops->lost_rank(group);
}

void comm_abort(struct comm *world, const char *reason)
{
    world->ops->abort(world, reason);
}

void comm_close(struct comm **group)
{
    if (*group != NULL) {
        (*group)->ops->close(*group);
        *group = NULL;
    }
}
