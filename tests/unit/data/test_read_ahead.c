/* Claims about read-ahead: the same samples and errors in the same order, and a bounded lead. */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/mem.h"
#include "tests/unit/data/data_support.h"
#include "train/data/read_ahead.h"

#define LENGTH 3
#define LIMIT 1000 /* samples of the source below */
#define DELAY_US 200

struct below {
    atomic_int calls;
    atomic_int closed;
};

/* Sample n counts from n; samples take differently long, so that workers overtake each other. */
static enum status below_get(void *context, uint64_t sample, int32_t *out_tokens)
{
    struct below *below = context;

    atomic_fetch_add(&below->calls, 1);
    (void)usleep((useconds_t)(sample * 7 % 5 * DELAY_US));
    if (sample >= LIMIT) {
        return FAIL(STATUS_BAD_DATA, "no sample %d", (int)sample);
    }
    for (int i = 0; i <= LENGTH; i++) {
        out_tokens[i] = (int32_t)sample + i;
    }
    return STATUS_OK;
}

static void below_close(void *context)
{
    atomic_fetch_add(&((struct below *)context)->closed, 1);
}

static struct data_source open_source(struct below *below, int workers, uint64_t run,
                                      uint64_t stride)
{
    struct data_source source = {.context = below, .get = below_get, .close = below_close};
    struct read_ahead_config config = {
        .workers = workers, .sequence_length = LENGTH, .run = run, .stride = stride};

    cr_assert_eq(read_ahead_open(&config, &source), STATUS_OK);
    return source;
}

static void check_sample(const struct data_source *source, uint64_t sample)
{
    int32_t got[LENGTH + 1] = {-1, -1, -1, -1};

    cr_assert_eq(source->get(source->context, sample, got), STATUS_OK);
    for (int i = 0; i <= LENGTH; i++) {
        cr_assert_eq(got[i], (int32_t)sample + i, "sample %d", (int)sample);
    }
}

static void check_end(struct data_source *source, struct below *below)
{
    data_loader_close(source);
    cr_assert_eq(atomic_load(&below->closed), 1);
    cr_assert_eq(mem_used_bytes(), 0);
}

/* As the trainer asks: micro-batches of `run`, each DP rank its own. */
Test(read_ahead, samples_come_in_the_order_of_the_rank)
{
    for (int workers = 1; workers <= 4; workers++) {
        struct below below = {0};
        struct data_source source = open_source(&below, workers, 2, 6);

        for (uint64_t position = 4; position < 200; position += 6) {
            check_sample(&source, position);
            check_sample(&source, position + 1);
        }
        /* Nothing was fetched twice, or for nothing. */
        cr_assert_leq(atomic_load(&below.calls), 2 * 33 + 2 * workers * 2);
        check_end(&source, &below);
    }
}

Test(read_ahead, jumps_begin_anew)
{
    const uint64_t asked[] = {10, 11, 12, 500, 501, 3, 3, 3, 4, 999, 0, 1, 2};
    struct below below = {0};
    struct data_source source = open_source(&below, 3, 4, 4);

    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        check_sample(&source, asked[i]);
    }
    for (uint64_t i = 0; i < 400; i++) { /* also while workers are busy with the old order */
        check_sample(&source, i / 8 * 37 % 900 + i % 8);
    }
    check_end(&source, &below);
}

Test(read_ahead, errors_come_with_their_sample_and_not_before)
{
    struct below below = {0};
    struct data_source source = open_source(&below, 2, 4, 4);
    int32_t got[LENGTH + 1];

    for (uint64_t sample = LIMIT - 6; sample < LIMIT; sample++) {
        check_sample(&source, sample);
    }
    cr_assert_eq(source.get(source.context, LIMIT, got), STATUS_BAD_DATA);
    cr_assert(support_message_has("no sample 1000"));
    cr_assert_eq(source.get(source.context, LIMIT + 1, got), STATUS_BAD_DATA);
    cr_assert(support_message_has("no sample 1001"));
    check_sample(&source, 5);
    check_end(&source, &below);
}

Test(read_ahead, lead_is_bounded)
{
    struct below below = {0};
    struct data_source source = open_source(&below, 2, 3, 3);

    check_sample(&source, 0);
    (void)usleep(50 * DELAY_US);
    cr_assert_eq(atomic_load(&below.calls), 1 + 2 * 2 * 3, "%d", atomic_load(&below.calls));
    check_end(&source, &below);
}

Test(read_ahead, source_that_nobody_asks_is_closed_too)
{
    struct below below = {0};
    struct data_source source = open_source(&below, 2, 1, 1);

    check_end(&source, &below);
    cr_assert_eq(atomic_load(&below.calls), 0);
}

Test(read_ahead, failed_allocations_leave_the_source_as_it_was)
{
    struct below below = {0};
    struct data_source source = {.context = &below, .get = below_get, .close = below_close};
    struct read_ahead_config config = {
        .workers = 2, .sequence_length = LENGTH, .run = 1, .stride = 1};

    for (uint64_t n = 1; n <= 3; n++) {
        mem_fail_at(n);
        cr_assert_eq(read_ahead_open(&config, &source), STATUS_NO_MEMORY);
        cr_assert_eq(mem_used_bytes(), 0);
        cr_assert(source.context == &below && source.get == below_get);
    }
    mem_fail_at(0);
}
