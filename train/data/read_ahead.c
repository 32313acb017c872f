/* The ring of samples fetched ahead; see read_ahead.h.
 *
 * The n-th sample of the order (from `first` on) lies in slot n mod depth. Workers take the numbers
 * in turn, `fetched` being the next; `get` takes them out in turn, `taken` being the next:
 *     taken <= fetched <= taken + depth
 * A slot is WAITED for from when its number is given to a worker until the worker is done.
 */
#include "train/data/read_ahead.h"

#include <pthread.h>
#include <string.h>

#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"

struct slot {
    bool is_done;
    struct status_record error; /* of a failed fetch; code STATUS_OK: none */
    int32_t *tokens;            /* [sequence_length + 1] */
};

struct read_ahead {
    struct data_source below;
    struct read_ahead_config config;
    uint64_t depth;
    struct slot *slots; /* [depth] */
    int32_t *tokens;    /* of all slots */
    struct thread_task *tasks[READ_AHEAD_WORKERS_MAX];
    int task_count;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t room;  /* a number can be given to a worker, or all must stop */
    pthread_cond_t done;  /* a slot is done */
    uint64_t first, fetched, taken;
    int busy; /* workers in the source below */
    bool must_stop;
};

static uint64_t sample_of(const struct read_ahead *ahead, uint64_t number)
{
    return ahead->first + number / ahead->config.run * ahead->config.stride +
           number % ahead->config.run;
}

static enum status work(void *context)
{
    struct read_ahead *ahead = context;

    (void)pthread_mutex_lock(&ahead->lock);
    for (;;) {
        while (!ahead->must_stop && ahead->fetched == ahead->taken + ahead->depth) {
            (void)pthread_cond_wait(&ahead->room, &ahead->lock);
        }
        if (ahead->must_stop) {
            break;
        }
        uint64_t number = ahead->fetched++;
        uint64_t sample = sample_of(ahead, number);
        struct slot *slot = &ahead->slots[number % ahead->depth];

        ahead->busy++;
        (void)pthread_mutex_unlock(&ahead->lock);
        slot->error.code = ahead->below.get(ahead->below.context, sample, slot->tokens);
        if (slot->error.code != STATUS_OK) {
            status_take(&slot->error);
        }
        (void)pthread_mutex_lock(&ahead->lock);
        ahead->busy--;
        slot->is_done = true;
        (void)pthread_cond_signal(&ahead->done);
    }
    (void)pthread_mutex_unlock(&ahead->lock);
    return STATUS_OK;
}

/* The order begins anew at `sample`; nobody may be in a slot then. Called under the lock. */
static void begin_at(struct read_ahead *ahead, uint64_t sample)
{
    ahead->fetched = ahead->taken + ahead->depth; /* nothing new */
    while (ahead->busy > 0) {
        (void)pthread_cond_wait(&ahead->done, &ahead->lock);
    }
    for (uint64_t i = 0; i < ahead->depth; i++) {
        ahead->slots[i].is_done = false;
    }
    ahead->first = sample;
    ahead->fetched = 0;
    ahead->taken = 0;
    (void)pthread_cond_broadcast(&ahead->room);
}

static enum status start_workers(struct read_ahead *ahead)
{
    enum status st = STATUS_OK;

    while (ahead->task_count < ahead->config.workers) {
        TRY(st, thread_task_start(work, ahead, &ahead->tasks[ahead->task_count]), done);
        ahead->task_count++;
    }
done:
    return st;
}

static enum status ahead_get(void *context, uint64_t sample, int32_t *out_tokens)
{
    enum status st = STATUS_OK;
    struct read_ahead *ahead = context;

    (void)pthread_mutex_lock(&ahead->lock);
    if (ahead->task_count == 0 || sample != sample_of(ahead, ahead->taken)) {
        begin_at(ahead, sample);
    }
    (void)pthread_mutex_unlock(&ahead->lock);
    TRY(st, start_workers(ahead), done);

    (void)pthread_mutex_lock(&ahead->lock);
    struct slot *slot = &ahead->slots[ahead->taken % ahead->depth];
    while (!slot->is_done) {
        (void)pthread_cond_wait(&ahead->done, &ahead->lock);
    }
    if (slot->error.code == STATUS_OK) {
        memcpy(out_tokens, slot->tokens,
               (size_t)(ahead->config.sequence_length + 1) * sizeof *out_tokens);
    } else {
        st = status_give(&slot->error);
    }
    slot->is_done = false;
    ahead->taken++;
    (void)pthread_cond_signal(&ahead->room);
    (void)pthread_mutex_unlock(&ahead->lock);
done:
    return st;
}

static void destroy(struct read_ahead *ahead)
{
    (void)pthread_mutex_lock(&ahead->lock);
    ahead->must_stop = true;
    (void)pthread_cond_broadcast(&ahead->room);
    (void)pthread_mutex_unlock(&ahead->lock);
    for (int i = 0; i < ahead->task_count; i++) {
        CHECK(thread_task_join(ahead->tasks[i]) == STATUS_OK);
    }
    (void)pthread_cond_destroy(&ahead->done);
    (void)pthread_cond_destroy(&ahead->room);
    (void)pthread_mutex_destroy(&ahead->lock);
    mem_free(&ahead->slots);
    mem_free(&ahead->tokens);
    mem_free(&ahead);
}

static void ahead_close(void *context)
{
    struct read_ahead *ahead = context;
    struct data_source below = ahead->below;

    destroy(ahead);
    data_loader_close(&below);
}

/* Two micro-batches for each worker, but no more than the bound. */
static uint64_t choose_depth(const struct read_ahead_config *config)
{
    uint64_t sample_bytes = ((uint64_t)config->sequence_length + 1) * sizeof(int32_t);
    uint64_t most = READ_AHEAD_BYTES_MAX / sample_bytes;
    uint64_t depth = 2 * (uint64_t)config->workers * config->run;

    depth = depth < most ? depth : most;
    return depth > 0 ? depth : 1;
}

enum status read_ahead_open(const struct read_ahead_config *config, struct data_source *source)
{
    enum status st = STATUS_OK;
    struct read_ahead *ahead = NULL;
    size_t tokens = (size_t)config->sequence_length + 1;

    CHECK(config->workers >= 1 && config->workers <= READ_AHEAD_WORKERS_MAX);
    CHECK(config->run >= 1 && config->stride >= config->run && config->sequence_length > 0);
    TRY(st, mem_alloc(&ahead, 1, sizeof *ahead), done);
    ahead->config = *config;
    ahead->depth = choose_depth(config);
    (void)pthread_mutex_init(&ahead->lock, NULL);
    (void)pthread_cond_init(&ahead->room, NULL);
    (void)pthread_cond_init(&ahead->done, NULL);
    TRY(st, mem_alloc(&ahead->slots, ahead->depth, sizeof *ahead->slots), done);
    TRY(st, mem_alloc(&ahead->tokens, ahead->depth * tokens, sizeof *ahead->tokens), done);
    for (uint64_t i = 0; i < ahead->depth; i++) {
        ahead->slots[i].tokens = ahead->tokens + i * tokens;
    }
    ahead->below = *source;
    *source = (struct data_source){
        .context = ahead, .get = ahead_get, .close = ahead_close, .count = source->count};
done:
    if (st != STATUS_OK && ahead != NULL) {
        destroy(ahead);
    }
    return st;
}
