/* Claims of cyclic_order.h: torch's permutations and Megatron's order, from any sample on. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/data/cyclic_order.h"

/* A source that gives the number of each sample. */
static enum status number_get(void *context, uint64_t sample, int32_t *out_tokens)
{
    struct data_source *self = context;

    if (sample >= self->count) {
        return FAIL(STATUS_BAD_DATA, "sample %llu", (unsigned long long)sample);
    }
    out_tokens[0] = out_tokens[1] = (int32_t)sample;
    return STATUS_OK;
}

static struct data_source numbers;

static enum status open_numbers(uint64_t count, uint64_t micro_batch, uint64_t dp, bool sharding,
                                struct data_source *out_source)
{
    struct cyclic_order_config config = {
        .micro_batch = micro_batch, .dp = dp, .data_sharding = sharding};

    numbers = (struct data_source){.context = &numbers, .get = number_get, .count = count};
    *out_source = numbers;
    return cyclic_order_open(&config, out_source);
}

static int32_t get(struct data_source *source, uint64_t sample)
{
    int32_t tokens[2] = {-1, -1};

    cr_assert_eq(source->get(source->context, sample, tokens), STATUS_OK, "sample %llu",
                 (unsigned long long)sample);
    return tokens[0];
}

static FILE *open_reference(const char *name)
{
    char path[4096];
    const char *folder = getenv("HOLDFAST_TEST_REFS");

    cr_assert_not_null(folder);
    snprintf(path, sizeof(path), "%s/cyclic/%s", folder, name);
    FILE *stream = fopen(path, "r");
    cr_assert_not_null(stream, "%s", path);
    return stream;
}

Test(cyclic_order, permutes_as_torch)
{
    FILE *stream = open_reference("randperm.txt");
    unsigned long seed, count;
    int cases = 0;

    while (fscanf(stream, "%lu %lu :", &seed, &count) == 2) {
        uint32_t *order = calloc(count, sizeof(*order)), shown = count < 4 ? (uint32_t)count : 4;
        cyclic_order_permute((uint32_t)seed, order, (uint32_t)count);
        for (uint32_t i = 0; i < 2 * shown; i++) {
            uint32_t wanted, at = i < shown ? i : (uint32_t)count - 2 * shown + i;
            cr_assert_eq(fscanf(stream, "%u", &wanted), 1);
            cr_assert_eq(order[at], wanted, "seed %lu, %lu numbers, at %u", seed, count, at);
        }
        free(order);
        cases++;
    }
    cr_assert_eq(cases, 6);
    fclose(stream);
}

Test(cyclic_order, gives_the_samples_in_megatrons_order_from_any_place)
{
    FILE *stream = open_reference("order.txt");
    unsigned long count, micro_batch, dp, sharding, begin;
    int cases = 0;

    while (fscanf(stream, "%lu %lu %lu %lu %lu :", &count, &micro_batch, &dp, &sharding, &begin) ==
           5) {
        struct data_source source;
        int32_t wanted;
        cr_assert_eq(open_numbers(count, micro_batch, dp, sharding == 1, &source), STATUS_OK);
        cr_assert_eq(source.count, count);
        for (unsigned long at = begin; fscanf(stream, "%d", &wanted) == 1; at++) {
            cr_assert_eq(get(&source, at), wanted, "%lu samples, %lu x %lu, sharding %lu: at %lu",
                         count, micro_batch, dp, sharding, at);
            int next = fgetc(stream);
            if (next == '\n' || next == EOF) {
                break;
            }
        }
        data_loader_close(&source);
        cases++;
    }
    cr_assert_eq(cases, 9);
    fclose(stream);
}

/* Threads that are epochs apart see the same order as one alone. */
static struct data_source shared;
static int32_t alone[600];

static void *look(void *context)
{
    for (uint64_t i = 0; i < 600; i++) {
        uint64_t at = (i * 7 + *(uint64_t *)context) % 600;
        if (get(&shared, at) != alone[at]) {
            return context;
        }
    }
    return NULL;
}

Test(cyclic_order, is_the_same_for_several_threads)
{
    pthread_t threads[4];
    uint64_t starts[4] = {0, 150, 300, 450};

    cr_assert_eq(open_numbers(101, 2, 2, true, &shared), STATUS_OK);
    for (uint64_t at = 0; at < 600; at++) {
        alone[at] = get(&shared, at);
    }
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, look, &starts[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *wrong = NULL;
        cr_assert_eq(pthread_join(threads[i], &wrong), 0);
        cr_assert_null(wrong);
    }
    data_loader_close(&shared);
}

Test(cyclic_order, refuses_too_few_and_too_many)
{
    struct data_source source;

    cr_assert_eq(open_numbers(7, 2, 4, true, &source), STATUS_BAD_DATA);
    cr_assert_str_eq(status_last()->message,
                     "--dataloader-type cyclic of 7 samples: wanted at least --micro-batch-size 2 "
                     "x DP 4, and fewer than 214748364 to permute");
    cr_assert(source.get == number_get && source.count == 7);
    cr_assert_eq(open_numbers(214748364, 1, 1, false, &source), STATUS_BAD_DATA);
}
