/* Ranks of one host: the implementation of comm.h by sockets and shared memory.
 *
 * Before it: comm.c. What it stands on: rendezvous (the ranks find each other), mesh (deaths,
 * handing over memory), fault (the first fault, known to all), wait (no wait is for
 * ever), segment with window (collectives) and ring (point to point).
 *
 * The memory of a group is a memfd that its first member makes and hands to the others through
 * their sockets: it has no name, so nothing is left behind whoever is killed when.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ckpt/base/hash.h"
#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"
#include "train/comm/comm_ops.h"
#include "train/comm/ring.h"
#include "train/comm/window.h"
#include "train/comm/rendezvous.h"

#define SPINS_WITH_CORES 200 /* some 10 us, when every rank has a core */
#define SPINS_WITHOUT 20     /* a peer may need this core to get here */

struct local_world {
    struct wait_world wait;
    int group_count; /* groups split and not closed */
};

struct local_group {
    struct comm comm;          /* first: ops see this */
    struct local_world *world; /* owned by the group that is the world */
    char name[COMM_NAME_MAX];
    int *world_ranks;
    struct segment segment; /* no memory in a group of one */
    struct window window;
};

static const struct comm_ops local_ops;

static struct local_group *local_group(struct comm *comm)
{
    return (struct local_group *)comm;
}

/* Maps memory that the listed members share: the first makes it, the others receive it. */
static enum status share_memory(struct wait_world *world, struct wait *wait, uint64_t tag,
                                const int *world_ranks, int count, size_t bytes, void **out_base)
{
    int leader = world_ranks[0];
    enum status st = STATUS_OK;
    int fd = -1;

    if (leader == world->rank) {
        fd = memfd_create("holdfast-comm", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
            st = FAIL_ERRNO("cannot make %zu bytes of shared memory", bytes);
            goto done;
        }
        for (int i = 1; i < count; i++) {
            TRY(st, mesh_send_file(&world->mesh, world_ranks[i], tag, fd), done);
        }
    }
    while (fd < 0) {
        struct pollfd on_leader = {.fd = world->mesh.sockets[leader], .events = POLLIN};

        poll(&on_leader, 1, WAIT_SLICE_MS);
        TRY(st, mesh_take_file(&world->mesh, leader, tag, &fd), done);
        if (fd < 0) {
            TRY(st, wait_turn(wait, &leader, 1), done);
        }
    }
    *out_base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (*out_base == MAP_FAILED) {
        *out_base = NULL;
        st = FAIL_ERRNO("cannot map %zu bytes of shared memory", bytes);
    }
done:
    wait_end(wait);
    if (fd >= 0) {
        close(fd);
    }
    return st;
}

/* A failure of this rank alone (no memory, no files) breaks the world too: the others would wait
 * for it. A fault that is known already stays the first one. */
static enum status spread_failure(struct wait_world *world, enum status st)
{
    return st == STATUS_OK ? st
                           : fault_break(&world->fault, st, world->rank, status_last()->message);
}

static void group_free(struct local_group *group)
{
    if (group->segment.base != NULL) {
        CHECK(munmap(group->segment.base, group->segment.bytes) == 0);
    }
    window_deinit(&group->window);
    mem_free(&group->segment.missing);
    mem_free(&group->world_ranks);
    mem_free(&group);
}

static enum status group_fill(struct local_group *group, const int *world_ranks, int count)
{
    size_t bytes = (size_t)count * sizeof(int);
    struct segment *segment = &group->segment;
    enum status st = STATUS_OK;

    TRY(st, mem_alloc(&group->world_ranks, (size_t)count, sizeof(int)), done);
    TRY(st, mem_alloc(&segment->missing, (size_t)count, sizeof(int)), done);
    memcpy(group->world_ranks, world_ranks, bytes);
    segment_plan(segment, count);
    segment->world = &group->world->wait;
    segment->name = group->name;
    segment->rank = group->comm.rank;
    segment->world_ranks = group->world_ranks;
    TRY(st, window_init(&group->window, segment), done);
done:
    return st;
}

/* Makes a group of the listed ranks, of which this is one, and waits until all have mapped it. */
static enum status group_create(struct local_world *world, const char *name, const int *world_ranks,
                                int count, int64_t timeout_ms, struct comm **out_group)
{
    uint64_t tag =
        hash_bytes64(world_ranks, (size_t)count * sizeof(int)) ^ hash_bytes64(name, strlen(name));
    struct local_group *group = NULL;
    struct wait wait;
    void *base = NULL;
    enum status st = STATUS_OK;

    TRY(st, mem_alloc(&group, 1, sizeof(*group)), done);
    snprintf(group->name, sizeof(group->name), "%s", name);
    group->comm.ops = &local_ops;
    group->comm.rank = -1;
    group->comm.size = count;
    group->world = world;
    for (int i = 0; i < count; i++) {
        if (world_ranks[i] == world->wait.rank) {
            CHECK(group->comm.rank < 0);
            group->comm.rank = i;
        }
    }
    CHECK(group->comm.rank >= 0);
    TRY(st, group_fill(group, world_ranks, count), done);
    if (count > 1) {
        wait = wait_begin(&world->wait, timeout_ms, window_call_name(WINDOW_SETUP), group->name, 0);
        TRY(st,
            share_memory(&world->wait, &wait, tag, world_ranks, count, group->segment.bytes, &base),
            done);
        group->segment.base = base;
        TRY(st, window_barrier(&group->window, &wait, WINDOW_SETUP), done);
    }
    *out_group = &group->comm;
done:
    if (st != STATUS_OK && group != NULL) {
        group_free(group);
    }
    return st;
}

static enum status local_split(struct comm *comm, const char *name, const int *world_ranks,
                               int count, struct comm **out_group)
{
    struct local_world *world = local_group(comm)->world;
    enum status st = STATUS_OK;

    TRY(st, wait_look(&world->wait, "a split"), done);
    st = group_create(world, name, world_ranks, count, world->wait.call_timeout_ms, out_group);
    TRY(st, spread_failure(&world->wait, st), done);
    world->group_count++;
done:
    return st;
}

/* The page of faults, then the group of all. */
static enum status join_world(struct local_world *world, const struct comm_config *config,
                              int64_t timeout_ms, struct comm **out_world)
{
    struct wait_world *shared = &world->wait;
    struct wait wait = wait_begin(shared, timeout_ms, window_call_name(WINDOW_SETUP), "world", 0);
    enum status st = STATUS_OK;
    void *page = NULL;
    int *all = NULL;

    TRY(st, mem_alloc(&all, (size_t)config->size, sizeof(int)), done);
    for (int i = 0; i < config->size; i++) {
        all[i] = i;
    }
    if (config->size > 1) {
        TRY(st, mesh_watch(&shared->mesh), done);
        TRY(st,
            share_memory(shared, &wait, config->generation, all, config->size,
                         fault_page_bytes(config->size), &page),
            done);
        fault_share(&shared->fault, page);
    }
    TRY(st, group_create(world, "world", all, config->size, timeout_ms, out_world), done);
    (*out_world)->is_world = true;
done:
    mem_free(&all);
    return st;
}

static void world_free(struct local_world *world)
{
    mesh_deinit(&world->wait.mesh);
    fault_deinit(&world->wait.fault);
    mem_free(&world);
}

enum status comm_local_open(const struct comm_config *config, struct comm **out_world)
{
    struct deadline deadline = deadline_in_ms(config->init_timeout_ms);
    bool has_cores = config->size <= thread_cpu_count();
    struct local_world *world = NULL;
    struct wait_world *shared = NULL;
    enum status st = STATUS_OK;

    TRY(st, mem_alloc(&world, 1, sizeof(*world)), done);
    shared = &world->wait;
    shared->rank = config->rank;
    shared->size = config->size;
    shared->spin_count = has_cores ? SPINS_WITH_CORES : SPINS_WITHOUT;
    shared->call_timeout_ms = config->call_timeout_ms;
    shared->on_wait = config->on_wait;
    shared->on_wait_context = config->on_wait_context;
    TRY(st, mesh_init(&shared->mesh, config->rank, config->size, config->generation), done);
    TRY(st, fault_init(&shared->fault, config->rank, config->size), done);
    if (config->size > 1) {
        TRY(st, rendezvous_join(config, &shared->mesh), done);
    }
    TRY(st, join_world(world, config, deadline_left_ms(deadline) + 1, out_world), done);
done:
    if (st != STATUS_OK && world != NULL) {
        /* The message is copied before the calls below can make another one. */
        struct status_record record;

        status_take(&record);
        if (shared->fault.page != NULL) {
            int culprit = fault_culprit(&shared->fault);

            (void)!spread_failure(shared, st);
            mesh_say_bye(&shared->mesh, st, culprit, record.message);
        }
        world_free(world);
        st = status_give(&record);
    }
    return st;
}

/* Starts a call of `group`: fails when the world is broken. */
static enum status begin(struct local_group *group, const char *what, struct wait *out_wait)
{
    struct wait_world *world = &group->world->wait;

    *out_wait = wait_begin(world, world->call_timeout_ms, what, group->name, group->comm.sequence);
    return fault_check(&world->fault);
}

static enum status local_all_reduce(struct comm *comm, void *buffer, size_t count,
                                    enum comm_type type, enum comm_op op)
{
    struct local_group *group = local_group(comm);
    enum status st = STATUS_OK;
    struct wait wait;

    TRY(st, begin(group, window_call_name(WINDOW_ALL_REDUCE), &wait), done);
    if (comm->size > 1) {
        TRY(st, window_all_reduce(&group->window, &wait, buffer, count, type, op), done);
    }
done:
    return st;
}

static enum status local_reduce_scatter(struct comm *comm, void *buffer, const size_t *counts,
                                        enum comm_type type)
{
    struct local_group *group = local_group(comm);
    enum status st = STATUS_OK;
    struct wait wait;

    TRY(st, begin(group, window_call_name(WINDOW_REDUCE_SCATTER), &wait), done);
    if (comm->size > 1) {
        TRY(st, window_reduce_scatter(&group->window, &wait, buffer, counts, type), done);
    }
done:
    return st;
}

static enum status local_all_gather(struct comm *comm, void *buffer, const size_t *byte_counts)
{
    struct local_group *group = local_group(comm);
    enum status st = STATUS_OK;
    struct wait wait;

    TRY(st, begin(group, window_call_name(WINDOW_ALL_GATHER), &wait), done);
    if (comm->size > 1) {
        TRY(st, window_all_gather(&group->window, &wait, buffer, byte_counts), done);
    }
done:
    return st;
}

static enum status local_broadcast(struct comm *comm, void *buffer, size_t bytes, int root)
{
    struct local_group *group = local_group(comm);
    enum status st = STATUS_OK;
    struct wait wait;

    TRY(st, begin(group, window_call_name(WINDOW_BROADCAST), &wait), done);
    if (comm->size > 1) {
        TRY(st, window_broadcast(&group->window, &wait, buffer, bytes, root), done);
    }
done:
    return st;
}

static enum status local_barrier(struct comm *comm)
{
    struct local_group *group = local_group(comm);
    enum status st = STATUS_OK;
    struct wait wait;

    TRY(st, begin(group, window_call_name(WINDOW_BARRIER), &wait), done);
    if (comm->size > 1) {
        TRY(st, window_barrier(&group->window, &wait, WINDOW_BARRIER), done);
    }
done:
    return st;
}

static enum status local_exchange(struct comm *comm, const struct comm_transfer *transfers,
                                  int count)
{
    struct local_group *group = local_group(comm);
    enum status st = STATUS_OK;
    struct wait wait;

    TRY(st, begin(group, "exchange", &wait), done);
    if (count > 0) {
        TRY(st, ring_exchange(&group->segment, &wait, transfers, count), done);
    }
done:
    return st;
}

static enum status local_poll(struct comm *comm)
{
    return wait_look(&local_group(comm)->world->wait, "a poll");
}

static int local_lost_rank(const struct comm *comm)
{
    return fault_culprit(&((const struct local_group *)comm)->world->wait.fault);
}

static void local_abort(struct comm *comm, const char *reason)
{
    struct wait_world *world = &local_group(comm)->world->wait;
    char text[FAULT_TEXT_MAX];

    /* Nobody needs waking: all who wait look at the page at every slice. */
    snprintf(text, sizeof(text), "aborted by rank %d: %s", world->rank, reason);
    (void)!fault_break(&world->fault, STATUS_ABORTED, world->rank, text);
}

static void local_close(struct comm *comm)
{
    struct local_group *group = local_group(comm);
    struct local_world *world = group->world;
    bool is_world = comm->is_world;

    group_free(group);
    if (is_world) {
        CHECK(world->group_count == 0);
        atomic_store(&world->wait.fault.page->members[world->wait.rank].left, 1);
        world_free(world);
    } else {
        world->group_count--;
    }
}

static const struct comm_ops local_ops = {
    .split = local_split,
    .all_reduce = local_all_reduce,
    .reduce_scatter = local_reduce_scatter,
    .all_gather = local_all_gather,
    .broadcast = local_broadcast,
    .barrier = local_barrier,
    .exchange = local_exchange,
    .poll = local_poll,
    .lost_rank = local_lost_rank,
    .abort = local_abort,
    .close = local_close,
};
