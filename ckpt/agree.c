/* Agreement of ranks; see agree.h. Takes no memory from the heap: a rank that has none left must
 * still be able to say so.
 */
#include "ckpt/agree.h"

#include <stdio.h>
#include <string.h>

#define AGREE_MESSAGE_MAX 512
#define AGREE_BUFFER_BYTES LAYOUT_RANKS_MAX /* a byte of every rank */

struct opinion {
    uint8_t status;
    char message[AGREE_MESSAGE_MAX];
};

_Static_assert(STATUS_COUNT <= UINT8_MAX, "a status travels as a byte");

static struct opinion own_opinion(enum status mine)
{
    struct opinion opinion = {.status = (uint8_t)mine};

    if (mine != STATUS_OK) {
        (void)snprintf(opinion.message, sizeof opinion.message, "%.*s", AGREE_MESSAGE_MAX - 1,
                       status_last()->message);
    }
    return opinion;
}

/* The decided status as this rank's result: its own record where it is its own fault. */
static enum status conclude(const struct ckpt_group *group, enum status mine, int rank,
                            const struct opinion *opinion)
{
    if (opinion->status >= STATUS_COUNT) {
        return FAIL(STATUS_FAILED, "rank %d sent no status; are all ranks of one build?", rank);
    }
    if (opinion->status == STATUS_OK || (rank == group->rank && mine != STATUS_OK)) {
        return (enum status)opinion->status;
    }
    return FAIL((enum status)opinion->status, "rank %d: %.*s", rank, AGREE_MESSAGE_MAX - 1,
                opinion->message);
}

/* The rank that has the first cause; a status that is none counts as one. */
static int find_first(const uint8_t *statuses, int size)
{
    int first = 0;

    for (int rank = 1; rank < size && statuses[first] < STATUS_COUNT; rank++) {
        enum status before = (enum status)statuses[first];
        if (statuses[rank] >= STATUS_COUNT ||
            status_first_cause(before, (enum status)statuses[rank]) != before) {
            first = rank;
        }
    }
    return first;
}

/* Rank `first`'s message to all, as many bytes at once as the buffer holds of every rank. */
static enum status gather_message(const struct ckpt_group *group, const char *mine, int first,
                                  char out_message[AGREE_MESSAGE_MAX])
{
    enum status st = STATUS_OK;
    char parts[AGREE_BUFFER_BYTES];
    size_t most = sizeof parts / (size_t)group->size;

    for (size_t begin = 0; begin < AGREE_MESSAGE_MAX; begin += most) {
        size_t left = AGREE_MESSAGE_MAX - begin, now = left < most ? left : most;
        TRY(st, group->all_gather(group->context, mine + begin, now, parts), done);
        memcpy(out_message + begin, parts + now * (size_t)first, now);
    }
    out_message[AGREE_MESSAGE_MAX - 1] = '\0';
done:
    return st;
}

enum status agree(const struct ckpt_group *group, enum status mine)
{
    enum status st = STATUS_OK;
    struct opinion own = own_opinion(mine), decided = {.status = STATUS_OK};
    uint8_t statuses[LAYOUT_RANKS_MAX];
    struct status_record record;

    if (group->size == 1) {
        return mine;
    }
    CHECK(group->size <= LAYOUT_RANKS_MAX);
    status_take(&record);
    TRY(st, group->all_gather(group->context, &own.status, sizeof own.status, statuses), done);
    int first = find_first(statuses, group->size);
    decided.status = statuses[first];
    if (decided.status != STATUS_OK) {
        TRY(st, gather_message(group, own.message, first, decided.message), done);
    }
    if (mine != STATUS_OK) {
        (void)status_give(&record);
    }
    st = conclude(group, mine, first, &decided);
done:
    return st;
}

enum status agree_with_first(const struct ckpt_group *group, enum status mine)
{
    enum status st = STATUS_OK;
    struct opinion opinion = own_opinion(mine);
    struct status_record record;

    if (group->size == 1) {
        return mine;
    }
    status_take(&record);
    TRY(st, group->broadcast(group->context, &opinion, sizeof opinion), done);
    if (group->rank == 0 && mine != STATUS_OK) {
        (void)status_give(&record);
    }
    st = conclude(group, group->rank == 0 ? mine : STATUS_OK, 0, &opinion);
done:
    return st;
}

enum status agree_gather(const struct ckpt_group *group, const void *mine, size_t bytes, void *all)
{
    if (group->size == 1) {
        memcpy(all, mine, bytes);
        return STATUS_OK;
    }
    return group->all_gather(group->context, mine, bytes, all);
}

enum status agree_broadcast(const struct ckpt_group *group, void *buffer, size_t bytes)
{
    return group->size == 1 ? STATUS_OK : group->broadcast(group->context, buffer, bytes);
}
