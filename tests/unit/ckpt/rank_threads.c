/* Ranks as threads; see rank_threads.h. */
#include "tests/unit/ckpt/rank_threads.h"

#include <pthread.h>
#include <string.h>

#include "ckpt/base/mem.h"

/* What a rank brings to the exchange under way. */
struct offer {
    const char *kind;
    const void *bytes;
    size_t count;
};

struct rank {
    struct rank_threads *all;
    struct ckpt_group group;
    struct offer offer;
    struct status_record record;
};

struct rank_threads {
    int size;
    struct rank ranks[RANK_THREADS_MAX];
    rank_threads_fn run;
    void *context;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int waiting, left; /* ranks in the exchange; ranks that have ended */
    unsigned round;
};

/* All ranks meet; false when one has ended instead. */
static bool meet(struct rank_threads *all)
{
    (void)pthread_mutex_lock(&all->mutex);
    unsigned round = all->round;
    if (++all->waiting == all->size) {
        all->waiting = 0;
        all->round++;
        (void)pthread_cond_broadcast(&all->changed);
    }
    while (all->round == round && all->left == 0) {
        (void)pthread_cond_wait(&all->changed, &all->mutex);
    }
    bool met = all->round != round;
    (void)pthread_mutex_unlock(&all->mutex);
    return met;
}

static enum status offer(struct rank *rank, const char *kind, const void *bytes, size_t count)
{
    struct rank_threads *all = rank->all;

    rank->offer = (struct offer){kind, bytes, count};
    if (!meet(all)) {
        return FAIL(STATUS_FAILED, "rank %d waits in %s for a rank that has left", rank->group.rank,
                    kind);
    }
    for (int r = 0; r < all->size; r++) {
        if (strcmp(all->ranks[r].offer.kind, kind) != 0 || all->ranks[r].offer.count != count) {
            return FAIL(STATUS_FAILED, "rank %d is in %s of %zu bytes, rank %d in %s of %zu",
                        rank->group.rank, kind, count, r, all->ranks[r].offer.kind,
                        all->ranks[r].offer.count);
        }
    }
    return STATUS_OK;
}

static enum status finish(struct rank *rank, const char *kind)
{
    return meet(rank->all)
               ? STATUS_OK
               : FAIL(STATUS_FAILED, "rank %d lost a rank in %s", rank->group.rank, kind);
}

static enum status all_gather(void *context, const void *mine, size_t bytes, void *all)
{
    struct rank *rank = context;
    enum status st = STATUS_OK;

    TRY(st, offer(rank, "all_gather", mine, bytes), done);
    for (int r = 0; r < rank->all->size; r++) {
        memcpy((char *)all + bytes * (size_t)r, rank->all->ranks[r].offer.bytes, bytes);
    }
    TRY(st, finish(rank, "all_gather"), done);
done:
    return st;
}

static enum status broadcast(void *context, void *buffer, size_t bytes)
{
    struct rank *rank = context;
    enum status st = STATUS_OK;

    TRY(st, offer(rank, "broadcast", buffer, bytes), done);
    if (rank->group.rank != 0) {
        memcpy(buffer, rank->all->ranks[0].offer.bytes, bytes);
    }
    TRY(st, finish(rank, "broadcast"), done);
done:
    return st;
}

static void *run_rank(void *context)
{
    struct rank *rank = context;
    struct rank_threads *all = rank->all;

    rank->record = (struct status_record){.code = STATUS_OK};
    if (all->run(&rank->group, all->context) != STATUS_OK) {
        status_take(&rank->record);
    }
    (void)pthread_mutex_lock(&all->mutex);
    all->left++;
    (void)pthread_cond_broadcast(&all->changed);
    (void)pthread_mutex_unlock(&all->mutex);
    return NULL;
}

struct rank_threads *rank_threads_create(int size)
{
    struct rank_threads *all = NULL;

    CHECK(size >= 1 && size <= RANK_THREADS_MAX);
    CHECK(mem_alloc(&all, 1, sizeof *all) == STATUS_OK);
    all->size = size;
    CHECK(pthread_mutex_init(&all->mutex, NULL) == 0);
    CHECK(pthread_cond_init(&all->changed, NULL) == 0);
    for (int r = 0; r < size; r++) {
        all->ranks[r] = (struct rank){.all = all,
                                      .group = {.rank = r,
                                                .size = size,
                                                .context = &all->ranks[r],
                                                .all_gather = all_gather,
                                                .broadcast = broadcast}};
    }
    return all;
}

void rank_threads_destroy(struct rank_threads **ranks)
{
    if (*ranks != NULL) {
        (void)pthread_cond_destroy(&(*ranks)->changed);
        (void)pthread_mutex_destroy(&(*ranks)->mutex);
        mem_free(ranks);
    }
}

void rank_threads_run(struct rank_threads *ranks, rank_threads_fn run, void *context,
                      struct status_record out_records[RANK_THREADS_MAX])
{
    pthread_t threads[RANK_THREADS_MAX];

    ranks->run = run;
    ranks->context = context;
    ranks->waiting = ranks->left = 0;
    for (int r = 0; r < ranks->size; r++) {
        CHECK(pthread_create(&threads[r], NULL, run_rank, &ranks->ranks[r]) == 0);
    }
    for (int r = 0; r < ranks->size; r++) {
        (void)pthread_join(threads[r], NULL);
        out_records[r] = ranks->ranks[r].record;
    }
}
