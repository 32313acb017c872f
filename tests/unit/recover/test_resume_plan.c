/* The resume plan as tables: histories of verdicts in, decisions out. */
#include <criterion/criterion.h>
#include <signal.h>

#include "recover/resume_plan.h"

static const struct verdict sigkill = {.kind = VERDICT_SIGNAL,
                                       .signal = SIGKILL,
                                       .status = STATUS_FAILED,
                                       .phase = PROGRESS_STEP,
                                       .step = 17,
                                       .any_step = true};

static struct resume_history fresh(void)
{
    return (struct resume_history){.committed_step = -1};
}

static struct resume_plan plan(struct resume_history *history, struct verdict verdict,
                               int64_t committed, int max_restarts)
{
    struct resume_plan out;

    resume_plan_make(history, &verdict, committed, max_restarts, false, &out);
    return out;
}

Test(resume_plan, ends_well_when_all_ranks_did)
{
    struct resume_history history = fresh();

    cr_assert_eq(plan(&history, (struct verdict){.kind = VERDICT_DONE}, 5, 3).status, STATUS_OK);
    cr_assert_eq(plan(&history, (struct verdict){.kind = VERDICT_SAVED}, 5, 3).status,
                 STATUS_STOPPED);
    cr_assert_eq(history.failures, 0);
}

Test(resume_plan, counts_restarts_without_a_new_commit)
{
    struct resume_history history = fresh();

    for (uint64_t i = 0; i < 3; i++) {
        struct verdict verdict = sigkill;

        verdict.step += i;
        cr_assert_eq(plan(&history, verdict, 10, 3).action, RESUME_RESTART);
    }
    struct verdict verdict = sigkill;

    verdict.step = 99;
    struct resume_plan last = plan(&history, verdict, 10, 3);

    cr_assert_eq(last.action, RESUME_GIVE_UP);
    cr_assert_eq(last.status, STATUS_GAVE_UP);
}

Test(resume_plan, starts_counting_anew_after_a_commit)
{
    struct resume_history history = fresh();

    for (int64_t i = 0; i < 100; i++) {
        cr_assert_eq(plan(&history, sigkill, i, 1).action, RESUME_RESTART);
        cr_assert_eq(history.failures, 1);
    }
}

Test(resume_plan, gives_up_at_the_third_equal_failure)
{
    struct resume_history history = fresh();

    cr_assert_eq(plan(&history, sigkill, 10, 100).action, RESUME_RESTART);
    cr_assert_eq(plan(&history, sigkill, 10, 100).action, RESUME_RESTART);
    cr_assert_eq(plan(&history, sigkill, 10, 100).status, STATUS_GAVE_UP);
}

Test(resume_plan, takes_another_step_for_another_failure)
{
    struct resume_history history = fresh();
    struct verdict other = sigkill;

    other.step = 18;
    for (int i = 0; i < 10; i++) {
        cr_assert_eq(plan(&history, i % 2 == 0 ? sigkill : other, 10, 100).action, RESUME_RESTART);
    }
}

Test(resume_plan, does_not_retry_what_fails_the_same_way)
{
    static const enum status never[] = {STATUS_USAGE,   STATUS_NO_CHECKPOINT,  STATUS_NOT_OWNER,
                                        STATUS_CORRUPT, STATUS_OPTIONS_DIFFER, STATUS_BAD_DATA,
                                        STATUS_GAVE_UP, STATUS_INTERRUPTED};

    for (size_t i = 0; i < sizeof never / sizeof never[0]; i++) {
        struct resume_history history = fresh();
        struct verdict verdict = {.kind = VERDICT_EXIT, .status = never[i], .any_step = true};
        struct resume_plan got = plan(&history, verdict, 10, 3);

        cr_expect_eq(got.action, RESUME_GIVE_UP, "%s", status_name(never[i]));
        cr_expect_eq(got.status, never[i], "%s", status_name(never[i]));
    }
}

Test(resume_plan, retries_a_code_error_before_the_first_step_once)
{
    struct resume_history history = fresh();
    struct verdict verdict = {
        .kind = VERDICT_EXIT, .exit_code = 1, .status = STATUS_FAILED, .phase = PROGRESS_START};
    struct verdict segv = {.kind = VERDICT_SIGNAL, .signal = SIGSEGV, .status = STATUS_FAILED};

    cr_assert_eq(plan(&history, verdict, -1, 100).action, RESUME_RESTART);
    cr_assert_eq(plan(&history, segv, -1, 100).status, STATUS_GAVE_UP);
}

Test(resume_plan, does_not_take_a_kill_before_the_first_step_for_a_code_error)
{
    struct resume_history history = fresh();
    struct verdict verdict = {.kind = VERDICT_SIGNAL, .signal = SIGKILL, .status = STATUS_FAILED};

    for (uint64_t i = 0; i < 10; i++) {
        verdict.step = i;
        cr_assert_eq(plan(&history, verdict, -1, 100).action, RESUME_RESTART);
    }
}

Test(resume_plan, waits_longer_each_time_and_never_too_long)
{
    struct resume_history history = fresh();
    int64_t before = -1;

    for (uint64_t i = 0; i < 40; i++) {
        struct verdict verdict = sigkill;

        verdict.step = i;
        int64_t wait = plan(&history, verdict, 10, 100).backoff_ms;

        cr_assert_geq(wait, before);
        cr_assert_leq(wait, RESUME_BACKOFF_MS_MAX);
        before = wait;
    }
    cr_assert_eq(before, RESUME_BACKOFF_MS_MAX);
}

Test(resume_plan, restarts_at_once_after_the_first_failure_but_waits_for_space)
{
    struct resume_history history = fresh();
    struct verdict full = {
        .kind = VERDICT_EXIT, .exit_code = 1, .status = STATUS_NO_SPACE, .any_step = true};

    cr_assert_eq(plan(&history, sigkill, 1, 3).backoff_ms, 0);
    cr_assert_eq(plan(&history, full, 2, 3).backoff_ms, RESUME_BACKOFF_PLACE_MS);
}

Test(resume_plan, does_not_restart_when_asked_to_stop)
{
    struct resume_history history = fresh();
    struct resume_plan got;

    resume_plan_make(&history, &sigkill, 10, 3, true, &got);
    cr_assert_eq(got.action, RESUME_DONE);
    cr_assert_eq(got.status, STATUS_FAILED);
}

Test(resume_plan, tells_lost_steps_from_a_stop_before_the_first)
{
    struct resume_history history = fresh();
    struct verdict ended = {.kind = VERDICT_ENDED, .any_step = true};

    cr_assert_eq(plan(&history, ended, 10, 3).status, STATUS_INTERRUPTED);
    ended.any_step = false;
    cr_assert_eq(plan(&history, ended, 10, 3).status, STATUS_STOPPED);
    cr_assert_eq(plan(&history, ended, -1, 3).status, STATUS_INTERRUPTED);
}
