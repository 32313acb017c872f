/* Agreement of ranks; see agree.h. */
#include "ckpt/agree.h"

#include <stdio.h>
#include <string.h>

#include "ckpt/base/mem.h"

#define AGREE_MESSAGE_MAX 512

struct opinion {
    int32_t status;
    char message[AGREE_MESSAGE_MAX];
};

static struct opinion own_opinion(enum status mine)
{
    struct opinion opinion = {.status = (int32_t)mine};

    if (mine != STATUS_OK) {
        (void)snprintf(opinion.message, sizeof opinion.message, "%.*s", AGREE_MESSAGE_MAX - 1,
                       status_last()->message);
    }
    return opinion;
}

static bool is_status(int32_t value)
{
    return value >= 0 && value < (int32_t)STATUS_COUNT;
}

/* The decided status as this rank's result: its own record where it is its own fault. */
static enum status conclude(const struct ckpt_group *group, enum status mine, int rank,
                            const struct opinion *opinion)
{
    if (!is_status(opinion->status)) {
        return FAIL(STATUS_FAILED, "rank %d sent no status; are all ranks of one build?", rank);
    }
    if (opinion->status == STATUS_OK || (rank == group->rank && mine != STATUS_OK)) {
        return (enum status)opinion->status;
    }
    return FAIL((enum status)opinion->status, "rank %d: %.*s", rank, AGREE_MESSAGE_MAX - 1,
                opinion->message);
}

enum status agree(const struct ckpt_group *group, enum status mine)
{
    enum status st = STATUS_OK;
    struct opinion own = own_opinion(mine);
    struct opinion *all = NULL;
    struct status_record record;
    int first = 0;

    if (group->size == 1) {
        return mine;
    }
    status_take(&record);
    TRY(st, mem_alloc(&all, (size_t)group->size, sizeof *all), done);
    TRY(st, group->all_gather(group->context, &own, sizeof own, all), done);
    for (int rank = 1; rank < group->size; rank++) {
        enum status before = (enum status)all[first].status, now = (enum status)all[rank].status;
        if (is_status(all[rank].status) && status_first_cause(before, now) != before) {
            first = rank;
        }
    }
    if (mine != STATUS_OK) {
        (void)status_give(&record);
    }
    st = conclude(group, mine, first, &all[first]);
done:
    mem_free(&all);
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
