/* The global batch against Megatron's own tables (tests/refs/sched). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/json.h"
#include "ckpt/base/mem.h"
#include "train/batch_schedule.h"

static struct batch_schedule schedule;

static cJSON *read_tables(void)
{
    char path[FS_PATH_MAX];
    const char *refs = getenv("HOLDFAST_TEST_REFS");
    cJSON *tables = NULL;

    cr_assert_not_null(refs, "HOLDFAST_TEST_REFS is not set; run the test through ctest");
    snprintf(path, sizeof(path), "%s/sched/batch_size.json", refs);
    cr_assert_eq(json_read_file(fs_posix(), path, &tables), STATUS_OK, "%s",
                 status_last()->message);
    return tables;
}

static int64_t number(const cJSON *list, int index)
{
    return (int64_t)cJSON_GetArrayItem(list, index)->valuedouble;
}

/* Rows of iteration, samples consumed before it, its batch, its micro-batches. */
static void expect_table(const cJSON *test)
{
    const cJSON *row = NULL;
    int64_t at_once = (int64_t)cJSON_GetObjectItem(test, "micro_batch_size")->valuedouble *
                      (int64_t)cJSON_GetObjectItem(test, "data_parallel_size")->valuedouble;
    int rows = 0;

    cJSON_ArrayForEach(row, cJSON_GetObjectItem(test, "iteration_consumed_before_gbs_microbatches"))
    {
        uint64_t consumed = (uint64_t)number(row, 1);
        int64_t batch = batch_schedule_at(&schedule, consumed);
        cr_assert_eq(batch, number(row, 2), "at %lu: %ld, not %ld", consumed, batch,
                     number(row, 2));
        cr_assert_eq(batch / at_once, number(row, 3));
        uint64_t steps = (uint64_t)number(row, 0) - 1;
        cr_assert_eq(batch_schedule_sample_count(&schedule, steps), consumed);
        cr_assert_eq(batch_schedule_step_count(&schedule, consumed), steps);
        cr_assert_eq(batch_schedule_step_count(&schedule, consumed + (uint64_t)batch - 1), steps);
        rows++;
    }
    cr_assert_gt(rows, 50);
}

Test(batch_schedule, ramps_as_megatron)
{
    cJSON *tables = read_tables();
    const cJSON *test = NULL;
    int tests = 0;

    cJSON_ArrayForEach(test, cJSON_GetObjectItem(tables, "rampup_megatron_core_0.14.0"))
    {
        const cJSON *ramp = cJSON_GetObjectItem(test, "rampup_batch_size");
        char text[128];
        snprintf(text, sizeof(text), "%ld %ld %ld", number(ramp, 0), number(ramp, 1),
                 number(ramp, 2));
        int64_t batch = (int64_t)cJSON_GetObjectItem(test, "global_batch_size")->valuedouble;
        cr_assert_eq(batch_schedule_ramp(text, batch, &schedule), STATUS_OK);
        expect_table(test);
        tests++;
    }
    cr_assert_eq(tests, 4);
    cJSON_Delete(tables);
}

Test(batch_schedule, steps_as_megatron)
{
    cJSON *tables = read_tables();
    const cJSON *test = NULL;
    int tests = 0;

    cJSON_ArrayForEach(test, cJSON_GetObjectItem(tables, "step_schedule_megatron_core_0.19.2"))
    {
        const cJSON *tokens = cJSON_GetObjectItem(test, "seq_length");
        cr_assert_eq(batch_schedule_steps(
                         cJSON_GetObjectItem(test, "step_batch_size_schedule")->valuestring,
                         cJSON_IsNumber(tokens) ? (int64_t)tokens->valuedouble : 1, &schedule),
                     STATUS_OK);
        expect_table(test);
        tests++;
    }
    cr_assert_eq(tests, 3);
    cJSON_Delete(tables);
}

Test(batch_schedule, every_begin_of_a_stage_is_where_the_division_steps_up)
{
    for (uint64_t samples = 1; samples < 400; samples += 7) {
        char text[64];
        snprintf(text, sizeof(text), "3 3 %lu", samples);
        cr_assert_eq(batch_schedule_ramp(text, 33, &schedule), STATUS_OK);
        double part = (double)samples / 10.0;
        for (uint64_t at = 0; at <= samples + 1; at++) {
            int64_t wanted = at > samples ? 33 : 3 + 3 * (int64_t)((double)at / part);
            cr_assert_eq(batch_schedule_at(&schedule, at), wanted, "%lu of %lu", at, samples);
        }
    }
}

/* 9 / (9 / 7) is less than 7: Megatron too reaches the last batch only past the ramp then. */
Test(batch_schedule, a_rounding_at_the_end_of_the_ramp_is_megatrons_too)
{
    cr_assert_lt((int)(9.0 / (9.0 / 7.0)), 7);
    cr_assert_eq(batch_schedule_ramp("1 1 9", 8, &schedule), STATUS_OK);
    cr_assert_eq(batch_schedule_at(&schedule, 9), 7);
    cr_assert_eq(batch_schedule_at(&schedule, 10), 8);
}

Test(batch_schedule, ramps_without_length_or_increments_are_constant)
{
    cr_assert_eq(batch_schedule_ramp("4 4 0", 16, &schedule), STATUS_OK);
    cr_assert_eq(batch_schedule_at(&schedule, 0), 16);
    cr_assert_eq(batch_schedule_ramp("16 4 100", 16, &schedule), STATUS_OK);
    cr_assert_eq(batch_schedule_at(&schedule, 0), 16);
    batch_schedule_constant(6, &schedule);
    cr_assert_eq(batch_schedule_sample_count(&schedule, 7), 42);
    cr_assert_eq(batch_schedule_step_count(&schedule, 41), 6);
}

Test(batch_schedule, steps_may_go_down_and_end_where_the_samples_do)
{
    cr_assert_eq(batch_schedule_steps("0:8 100:2", 1, &schedule), STATUS_OK);
    cr_assert_eq(batch_schedule_step_count(&schedule, 15), 1); /* not one of 8 and three of 2 */
    cr_assert_eq(batch_schedule_step_count(&schedule, 104), 13);
    cr_assert_eq(batch_schedule_step_count(&schedule, 109), 15);
    cr_assert_eq(batch_schedule_largest(&schedule), 8);
}

Test(batch_schedule, refuses_what_is_no_schedule)
{
    static const char *const ramps[] = {"",       "4",       "4 4",      "4 4 64 1",
                                        "0 4 64", "4 0 1",   "4 -4 100", "a 4 64",
                                        "4 5 64", "20 4 64", "4 4 1e3"};
    static const char *const steps[] = {"",     "4:8",       "0:0",     "0:4 0:8", "0:4 10",
                                        "0:4,", "0:4 8:16x", "0:4 X:8", "0:-4",    "0:4 5:8 3:9"};

    for (size_t i = 0; i < sizeof(ramps) / sizeof(ramps[0]); i++) {
        cr_assert_eq(batch_schedule_ramp(ramps[i], 16, &schedule), STATUS_USAGE, "'%s'", ramps[i]);
        cr_assert_not_null(strstr(status_last()->message, "--rampup-batch-size"));
    }
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        cr_assert_eq(batch_schedule_steps(steps[i], 1, &schedule), STATUS_USAGE, "'%s'", steps[i]);
    }
    cr_assert_eq(batch_schedule_ramp("1 1 100000", 2000, &schedule), STATUS_USAGE);
}
