/* How a call waits. See wait.h. */
#include "train/comm/wait.h"

#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "train/comm/rendezvous.h"

#define NS_PER_MS ((int64_t)1000 * 1000)

struct wait wait_begin(struct wait_world *world, int64_t timeout_ms, const char *what,
                       const char *group, uint64_t sequence)
{
    struct wait wait = {
        .world = world,
        .deadline = deadline_in_ms(timeout_ms),
        .next_beat_ns = clock_monotonic_ns() + WAIT_BEAT_MS * NS_PER_MS,
        .leaver = -1,
        .timeout_ms = timeout_ms,
        .what = what,
        .group = group,
        .sequence = sequence,
    };

    return wait;
}

void wait_sleep(_Atomic uint32_t *word, uint32_t seen)
{
    const struct timespec slice = {.tv_nsec = WAIT_SLICE_MS * NS_PER_MS};

    syscall(SYS_futex, word, FUTEX_WAIT, seen, &slice, NULL, 0);
}

void wait_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

bool wait_spin(const struct wait_world *world, _Atomic uint32_t *word, uint32_t seen)
{
    for (int i = 0; i < world->spin_count; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != seen) {
            return true;
        }
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    return false;
}

static enum status break_by_death(struct wait_world *world, int dead, const char *what)
{
    struct mesh_packet bye;
    char text[FAULT_TEXT_MAX];

    if (mesh_read_bye(&world->mesh, dead, &bye)) {
        return fault_break(&world->fault, (enum status)bye.code, bye.culprit, bye.text);
    }
    snprintf(text, sizeof(text),
             "rank %d died (seen by rank %d in %s); start a new generation "
             "from the last checkpoint",
             dead, world->rank, what);
    return fault_break(&world->fault, STATUS_PEER_LOST, dead, text);
}

static void describe(const struct wait *wait, char *out_text, size_t bytes)
{
    snprintf(out_text, bytes, "%s %" PRIu64 " of group '%s'", wait->what, wait->sequence,
             wait->group);
}

/* Follows who waits for whom from `rank` to one that does not wait: the cause of the delay. */
static int find_cause(const struct wait_world *world, int rank)
{
    for (int i = 0; i < world->size; i++) {
        uint32_t next = atomic_load(&world->fault.page->members[rank].waits_for);

        if (next == 0 || next > (uint32_t)world->size || (int)next - 1 == world->rank) {
            break;
        }
        rank = (int)next - 1;
    }
    return rank;
}

static enum status break_by_deadline(struct wait *wait, const int *missing, int count)
{
    struct wait_world *world = wait->world;
    int cause = count > 0 ? find_cause(world, missing[0]) : -1;
    char text[FAULT_TEXT_MAX];
    char names[160];
    char place[128];
    char why[64] = "";

    describe(wait, place, sizeof(place));
    for (int i = 0; count == 0 && i < world->size; i++) { /* stopped just as it had arrived */
        if (i != world->rank && atomic_load(&world->fault.page->members[i].waits_for) == 0) {
            cause = i;
        }
    }
    if (count > 0) {
        rendezvous_format_ranks(names, sizeof(names), missing, count);
        if (cause != missing[0]) {
            snprintf(why, sizeof(why), " (rank %d waits for rank %d)", missing[0], cause);
        }
    } else {
        rendezvous_format_ranks(names, sizeof(names), &cause, 1);
    }
    snprintf(text, sizeof(text),
             "%s did not come to %s within %" PRId64 " ms%s; rank %d waited "
             "for it; look whether it hangs or is stopped",
             names, place, wait->timeout_ms, why, world->rank);
    return fault_break(&world->fault, STATUS_TIMEOUT, cause, text);
}

enum status wait_look(struct wait_world *world, const char *what)
{
    enum status st = fault_check(&world->fault);
    int dead = -1;

    if (st == STATUS_OK) {
        dead = mesh_find_dead(&world->mesh, &world->fault);
        if (dead >= 0) {
            st = break_by_death(world, dead, what);
        }
    }
    return st;
}

/* A member that closed its world may have come here before it left, after the caller looked; so
 * it must be seen missing and gone twice. */
static enum status check_leavers(struct wait *wait, const int *missing, int count)
{
    struct fault *fault = &wait->world->fault;
    char place[128];
    char text[FAULT_TEXT_MAX];

    for (int i = 0; i < count; i++) {
        if (atomic_load(&fault->page->members[missing[i]].left) == 0) {
            continue;
        }
        if (wait->leaver != missing[i]) {
            wait->leaver = missing[i];
            return STATUS_OK;
        }
        describe(wait, place, sizeof(place));
        snprintf(text, sizeof(text), "rank %d left without coming to %s; look why it ended first",
                 missing[i], place);
        return fault_break(fault, STATUS_PEER_LOST, missing[i], text);
    }
    return STATUS_OK;
}

enum status wait_turn(struct wait *wait, const int *missing, int count)
{
    struct wait_world *world = wait->world;
    enum status st = STATUS_OK;
    char place[128];
    int64_t now = clock_monotonic_ns();

    if (count > 0) {
        wait->is_shown = true;
        atomic_store(&world->fault.page->members[world->rank].waits_for, (uint32_t)missing[0] + 1);
    }
    describe(wait, place, sizeof(place));
    TRY(st, wait_look(world, place), done);
    TRY(st, check_leavers(wait, missing, count), done);
    if (deadline_passed(wait->deadline)) {
        st = break_by_deadline(wait, missing, count);
        goto done;
    }
    if (world->on_wait != NULL && now >= wait->next_beat_ns) {
        wait->next_beat_ns = now + WAIT_BEAT_MS * NS_PER_MS;
        world->on_wait(world->on_wait_context);
    }
done:
    return st;
}

void wait_end(struct wait *wait)
{
    if (wait->is_shown) {
        struct wait_world *world = wait->world;

        wait->is_shown = false;
        atomic_store(&world->fault.page->members[world->rank].waits_for, 0);
    }
}
