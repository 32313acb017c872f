/* Communication between the rank processes of one epoch: groups, collectives, point to point.
 *
 * Before it: parallel/ (which data, which group). After it: the other ranks. One vtable, one
 * implementation so far: comm_local, for ranks of one host (Unix sockets in a full mesh as death
 * notice, shared memory for all bytes). NCCL is a second one behind the same interface, and so is
 * TCP between hosts: what a rank sees does not change.
 *
 * Promises, kept by every implementation:
 *  - No call blocks for ever: each ends by the group's deadline (STATUS_TIMEOUT names the ranks
 *    that did not come), by the death of a peer (STATUS_PEER_LOST names it, within milliseconds)
 *    or by comm_abort in any thread of any member (STATUS_ABORTED). After the first failure the
 *    group, and all groups split from the same world, are broken: every later call returns the
 *    same status at once. comm_close is always allowed.
 *  - Sums are taken in rank order 0, 1, 2 ... in the element's type, so that a result does not
 *    depend on timing and is the same bits on every member.
 *  - Members call the collectives of one group in the same order. Different groups are
 *    independent.
 * Ranks in errors are world ranks; `root`, `peer` and indices of counts are ranks in the group.
 * Threads: one thread at a time per group; comm_abort from any thread.
 * Buffers are host memory here; a device implementation takes device memory and its stream.
 */
#ifndef TRAIN_COMM_COMM_H
#define TRAIN_COMM_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"

#define COMM_RANKS_MAX 4096
#define COMM_EXCHANGE_MAX 16

struct comm; /* one group of ranks */

enum comm_type { COMM_F32, COMM_F64, COMM_U64, COMM_I32 };
enum comm_op { COMM_SUM, COMM_MAX, COMM_MIN };

struct comm_config {
    int rank, size;             /* in the world */
    const char *rendezvous_dir; /* a folder that exists, of this generation alone, on one
                                         * host: where the members find each other; it is empty
                                         * again after comm_open; may be NULL for size 1 */
    uint64_t generation;        /* a member of another generation is refused, by both:
                                         * the older one gets STATUS_ABORTED, the newer waits on */
    int64_t init_timeout_ms;    /* all must have come by then */
    int64_t call_timeout_ms;    /* for each later call, comm_split too */
    /* Called (when not NULL) by a waiting call about every 100 ms, so that a rank that waits in a
     * collective can show that it lives. */
    void (*on_wait)(void *context);
    void *on_wait_context;
};

/* One send or receive of a batch. A receive of another length than was sent is STATUS_CORRUPT. */
struct comm_transfer {
    int peer; /* rank in the group */
    void *buffer;
    size_t bytes;
    int is_send;
};

/* Collective over all `size` ranks. STATUS_TIMEOUT names the ranks that did not arrive. */
enum status comm_open(const struct comm_config *config, struct comm **out_world) STATUS_MUST_CHECK;
/* A group of the listed world ranks, in that order. Collective over exactly these members. `name`
 * ("tp", "dp", "embedding") is used in errors. A group of one is legal and does nothing. Ranks that
 * meet in several groups split them in the same order. */
enum status comm_split(struct comm *world, const char *name, const int *world_ranks, int count,
                       struct comm **out_group) STATUS_MUST_CHECK;
int comm_rank(const struct comm *group);
int comm_size(const struct comm *group);
/* Collectives done on this group so far: equal on all members between calls. Exchanges are not
 * counted, since only the peers named take part in one. */
uint64_t comm_sequence(const struct comm *group);
size_t comm_type_bytes(enum comm_type type); /* of one element */

/* The members' calls must agree in kind, counts, type and operation, else STATUS_CORRUPT.
 *
 * In place: every member ends with the reduction of all `buffer`s. A NaN of any member stays one,
 * in MAX and MIN too; sums of I32 wrap round. After a failure buffers hold anything. */
enum status comm_all_reduce(struct comm *group, void *buffer, size_t count, enum comm_type type,
                            enum comm_op op) STATUS_MUST_CHECK;
/* `buffer` holds the members' parts one after the other, part r has counts[r] elements (0 is
 * legal). Afterwards this member's own part of `buffer` holds the sum over the members; what the
 * other parts hold is undefined. */
enum status comm_reduce_scatter(struct comm *group, void *buffer, const size_t *counts,
                                enum comm_type type) STATUS_MUST_CHECK;
/* The other way: this member's own part of `buffer` is sent to all, every part is filled. Counts
 * are in bytes. */
enum status comm_all_gather(struct comm *group, void *buffer, const size_t *byte_counts)
    STATUS_MUST_CHECK;
enum status comm_broadcast(struct comm *group, void *buffer, size_t bytes, int root)
    STATUS_MUST_CHECK;
enum status comm_barrier(struct comm *group) STATUS_MUST_CHECK;
/* Does all transfers of the batch at once (at most COMM_EXCHANGE_MAX), so that two ranks that send
 * to each other cannot block each other. Several transfers with one peer keep their order. Only
 * the peers named take part: other members, not this one. A send is done when its bytes are on
 * their way, which may be before the peer asks for them. */
enum status comm_exchange(struct comm *group, const struct comm_transfer *transfers, int count)
    STATUS_MUST_CHECK;

/* OK while all members of the world live; else what broke it. Does not block. */
enum status comm_poll(struct comm *group) STATUS_MUST_CHECK;
/* The world rank that is to blame for what broke the world (died, did not come, aborted), the same
 * on all members; -1 while the world is whole or when it is not known. */
int comm_lost_rank(const struct comm *group);
/* Wakes every member out of every call with STATUS_ABORTED; `reason` is in their message. */
void comm_abort(struct comm *world, const char *reason);
/* Frees a group; the world last. Takes NULL inside, leaves NULL. A peer that closes its world
 * without abort has not died, but calls that still wait for it fail with STATUS_PEER_LOST. */
void comm_close(struct comm **group);

#endif
