/* A permutation for each epoch; see cyclic_order.h. */
#include "train/data/cyclic_order.h"

#include <pthread.h>

#include "ckpt/base/mem.h"
#include "train/data/mt19937.h"

/* Threads that read ahead are in two epochs at most. */
#define EPOCHS_KEPT 2

struct epoch {
    uint64_t number;
    bool is_made;
    uint32_t *order; /* [permuted_count] */
};

struct cyclic_source {
    struct data_source below;
    struct cyclic_order_config config;
    uint64_t active_count; /* samples of an epoch */
    uint32_t permuted_count;
    pthread_mutex_t lock; /* of the epochs */
    struct epoch epochs[EPOCHS_KEPT];
};

void cyclic_order_permute(uint32_t seed, uint32_t *out_order, uint32_t count)
{
    struct mt19937 stream;

    mt19937_init(&stream, seed);
    for (uint32_t i = 0; i < count; i++) {
        out_order[i] = i;
    }
    for (uint32_t i = 0; i + 1 < count; i++) {
        uint32_t other = i + mt19937_next(&stream) % (count - i);
        uint32_t taken = out_order[i];
        out_order[i] = out_order[other];
        out_order[other] = taken;
    }
}

/* The place in the epoch's permutation of its n-th sample, and what is added to what stands there:
 * n counts micro-batches of all ranks, in each rank after rank. */
static uint64_t place_of(const struct cyclic_source *source, uint64_t n, uint64_t *out_base)
{
    uint64_t micro_batch = source->config.micro_batch, dp = source->config.dp;
    uint64_t round = n / (micro_batch * dp), rank = n / micro_batch % dp;
    uint64_t own = round * micro_batch + n % micro_batch; /* of this rank's samples */

    *out_base = source->config.data_sharding ? rank * source->permuted_count : 0;
    return source->config.data_sharding ? own : own * dp + rank;
}

/* The sample that comes when `consumed` are. */
static uint64_t draw(struct cyclic_source *source, uint64_t consumed)
{
    uint64_t number = consumed / source->active_count, base = 0;
    uint64_t place = place_of(source, consumed % source->active_count, &base);

    CHECK(pthread_mutex_lock(&source->lock) == 0);
    struct epoch *epoch = &source->epochs[number % EPOCHS_KEPT];
    if (!epoch->is_made || epoch->number != number) {
        cyclic_order_permute((uint32_t)number, epoch->order, source->permuted_count);
        epoch->number = number;
        epoch->is_made = true;
    }
    uint64_t sample = base + epoch->order[place];
    CHECK(pthread_mutex_unlock(&source->lock) == 0);
    return sample;
}

static enum status cyclic_get(void *context, uint64_t sample, int32_t *out_tokens)
{
    struct cyclic_source *source = context;

    return source->below.get(source->below.context, draw(source, sample), out_tokens);
}

static void cyclic_close(void *context)
{
    struct cyclic_source *source = context;

    data_loader_close(&source->below);
    for (int i = 0; i < EPOCHS_KEPT; i++) {
        mem_free(&source->epochs[i].order);
    }
    (void)pthread_mutex_destroy(&source->lock);
    mem_free(&source);
}

enum status cyclic_order_open(const struct cyclic_order_config *config, struct data_source *source)
{
    enum status st = STATUS_OK;
    struct cyclic_source *made = NULL;
    uint64_t at_once = config->micro_batch * config->dp;
    uint64_t permuted = config->data_sharding
                            ? source->count / at_once * config->micro_batch
                            : source->count / config->micro_batch * config->micro_batch;

    if (source->count < at_once || permuted >= CYCLIC_ORDER_SAMPLES_MAX) {
        return FAIL(STATUS_BAD_DATA,
                    "--dataloader-type cyclic of %llu samples: wanted at least --micro-batch-size "
                    "%llu x DP %llu, and fewer than %llu to permute",
                    (unsigned long long)source->count, (unsigned long long)config->micro_batch,
                    (unsigned long long)config->dp, (unsigned long long)CYCLIC_ORDER_SAMPLES_MAX);
    }
    TRY(st, mem_alloc(&made, 1, sizeof *made), fail);
    made->config = *config;
    made->active_count = source->count - source->count % at_once;
    made->permuted_count = (uint32_t)permuted;
    for (int i = 0; i < EPOCHS_KEPT; i++) {
        TRY(st, mem_alloc(&made->epochs[i].order, permuted, sizeof(uint32_t)), fail);
    }
    CHECK(pthread_mutex_init(&made->lock, NULL) == 0);
    made->below = *source;
    *source = (struct data_source){
        .context = made, .count = source->count, .get = cyclic_get, .close = cyclic_close};
    return STATUS_OK;
fail:
    for (int i = 0; made != NULL && i < EPOCHS_KEPT; i++) {
        mem_free(&made->epochs[i].order);
    }
    mem_free(&made);
    return st;
}
