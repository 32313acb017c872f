/* The detector as tables: observations in, verdict out. Time is a number here. */
#include <criterion/criterion.h>
#include <signal.h>

#include "recover/detector.h"

#define MS 1000000LL

static const struct detector_limits limits = {
    .silent_ms = {[PROGRESS_NONE] = 0,
                  [PROGRESS_START] = 60000,
                  [PROGRESS_LOAD] = 60000,
                  [PROGRESS_STEP] = 30000,
                  [PROGRESS_SAVE] = 100000,
                  [PROGRESS_EVAL] = 100000,
                  [PROGRESS_EXIT] = 30000},
    .stopped_ms = 1000,
};

static struct detector start(int ranks, int64_t base_step)
{
    struct detector detector;

    cr_assert_eq(detector_init(&detector, ranks, &limits, base_step, 0), STATUS_OK);
    return detector;
}

static void observe(struct detector *detector, int rank, int64_t now_ms, uint64_t beat,
                    enum progress_phase phase, uint64_t step, bool in_collective,
                    uint64_t collective)
{
    struct detector_sample sample = {.beat = beat,
                                     .phase = phase,
                                     .step = step,
                                     .in_collective = in_collective,
                                     .collective = collective};

    detector_observe(detector, rank, &sample, now_ms * MS);
}

/* Both ranks do 10 steps of step_ms each. */
static int64_t warm_up(struct detector *detector, int64_t step_ms)
{
    for (int i = 0; i <= 10; i++) {
        detector_tick(detector, i * step_ms * MS);
        for (int rank = 0; rank < detector->rank_count; rank++) {
            observe(detector, rank, i * step_ms, (uint64_t)i + 1, PROGRESS_STEP, (uint64_t)i, false,
                    (uint64_t)i);
        }
    }
    return 10 * step_ms;
}

/* Time passes; every rank but `silent` beats each 100 ms while it waits in a collective. */
static int64_t pass_time(struct detector *detector, int silent, int64_t from_ms, int64_t to_ms,
                         struct verdict *verdict, bool *found)
{
    *found = false;
    for (int64_t now = from_ms; now <= to_ms; now += 100) {
        detector_tick(detector, now * MS);
        for (int rank = 0; rank < detector->rank_count; rank++) {
            if (rank != silent) {
                observe(detector, rank, now, 100 + (uint64_t)now, PROGRESS_STEP, 10, true, 11);
            }
        }
        if (detector_suspect(detector, now * MS, verdict)) {
            *found = true;
            return now;
        }
    }
    return to_ms;
}

static void leave(struct detector *detector, int rank, int signal, int code, bool ordered,
                  enum status status)
{
    struct detector_exit exit = {
        .signal = signal, .code = code, .ordered = ordered, .status = status};

    detector_note_exit(detector, rank, &exit);
}

Test(detector, names_the_silent_rank_within_three_seconds_when_steps_are_short)
{
    struct detector detector = start(4, 0);
    struct verdict verdict;
    bool found;
    int64_t at = warm_up(&detector, 100);
    int64_t noticed = pass_time(&detector, 2, at, at + 60000, &verdict, &found);

    cr_assert(found);
    cr_assert_eq(verdict.kind, VERDICT_SILENT);
    cr_assert_eq(verdict.rank, 2);
    cr_assert_eq(verdict.phase, PROGRESS_STEP);
    cr_assert_eq(verdict.step, 10);
    cr_assert_gt(noticed - at, DETECTOR_STEP_FLOOR_MS);
    cr_assert_leq(noticed - at, 3000);
    detector_deinit(&detector);
}

Test(detector, allows_slow_steps_a_multiple_of_the_slowest)
{
    struct detector detector = start(2, 0);

    (void)warm_up(&detector, 900);
    cr_assert_eq(detector_silence_limit_ms(&detector, 0), 900 * DETECTOR_STEP_FACTOR);
    detector_deinit(&detector);
}

Test(detector, never_exceeds_the_bound_given)
{
    struct detector detector = start(1, 0);

    cr_assert_eq(detector.slowest_step_ns, 0);
    for (int i = 0; i < 4; i++) {
        detector.observed_ns = i * 20000 * MS;
        observe(&detector, 0, i * 20000, (uint64_t)i, PROGRESS_STEP, (uint64_t)i, false, 0);
    }
    cr_assert_eq(detector_silence_limit_ms(&detector, 0), 30000);
    detector_deinit(&detector);
}

Test(detector, takes_a_long_save_for_no_hang_but_a_hung_one_for_one)
{
    struct detector detector = start(1, 0);
    struct verdict verdict;
    bool found = false;
    int64_t at = warm_up(&detector, 50), now = at;

    observe(&detector, 0, at, 1000, PROGRESS_SAVE, 10, false, 10);
    for (; now < at + 99000; now += 500) {
        detector_tick(&detector, now * MS);
        cr_assert_not(detector_suspect(&detector, now * MS, &verdict));
    }
    for (; now < at + 110000 && !found; now += 500) {
        detector_tick(&detector, now * MS);
        found = detector_suspect(&detector, now * MS, &verdict);
    }
    cr_assert(found);
    cr_assert_eq(verdict.phase, PROGRESS_SAVE);
    detector_deinit(&detector);
}

Test(detector, counts_time_in_which_it_did_not_run_against_nobody)
{
    struct detector detector = start(2, 0);
    struct verdict verdict;
    int64_t at = warm_up(&detector, 100);

    detector_tick(&detector, (at + 50000) * MS);
    cr_assert_not(detector_suspect(&detector, (at + 50000) * MS, &verdict));
    detector_deinit(&detector);
}

Test(detector, names_a_stopped_rank_unless_it_goes_on_in_time)
{
    struct detector detector = start(2, 0);
    struct verdict verdict;

    detector_note_stopped(&detector, 1, 100 * MS);
    cr_assert_not(detector_suspect(&detector, 1000 * MS, &verdict));
    detector_note_continued(&detector, 1, 1050 * MS);
    cr_assert_not(detector_suspect(&detector, 5000 * MS, &verdict));
    detector_note_stopped(&detector, 1, 6000 * MS);
    cr_assert(detector_suspect(&detector, 7000 * MS, &verdict));
    cr_assert_eq(verdict.kind, VERDICT_STOPPED);
    cr_assert_eq(verdict.rank, 1);
    detector_deinit(&detector);
}

Test(detector, names_the_rank_outside_of_collectives_when_all_are_silent)
{
    struct detector detector = start(3, 0);
    struct verdict verdict;
    int64_t at = warm_up(&detector, 100);
    bool found = false;

    /* The victims went silent a little before the culprit. */
    observe(&detector, 0, at, 500, PROGRESS_STEP, 10, true, 11);
    observe(&detector, 2, at, 500, PROGRESS_STEP, 10, true, 11);
    observe(&detector, 1, at + 300, 500, PROGRESS_STEP, 10, false, 10);
    for (int64_t now = at; now < at + 4000 && !found; now += 100) {
        detector_tick(&detector, now * MS);
        found = detector_suspect(&detector, now * MS, &verdict);
    }
    cr_assert(found);
    cr_assert_eq(verdict.rank, 1);
    detector_deinit(&detector);
}

Test(detector, names_the_rank_that_skipped_a_collective_while_all_beat)
{
    struct detector detector = start(3, 0);
    struct verdict verdict;
    bool found = false;

    for (int64_t now = 0; now < 40000 && !found; now += 100) {
        detector_tick(&detector, now * MS);
        for (int rank = 0; rank < 3; rank++) {
            observe(&detector, rank, now, (uint64_t)now, PROGRESS_STEP, 4, true, rank == 1 ? 7 : 8);
        }
        found = detector_suspect(&detector, now * MS, &verdict);
    }
    cr_assert(found);
    cr_assert_eq(verdict.kind, VERDICT_STALLED);
    cr_assert_eq(verdict.rank, 1);
    cr_assert_gt(verdict.silent_ms, 30000 - 1);
    detector_deinit(&detector);
}

Test(detector, leaves_a_program_without_beats_alone)
{
    struct detector detector = start(1, 0);
    struct verdict verdict;

    for (int64_t now = 0; now < 1000000; now += 500) {
        detector_tick(&detector, now * MS);
        observe(&detector, 0, now, 0, PROGRESS_NONE, 0, false, 0);
        cr_assert_not(detector_suspect(&detector, now * MS, &verdict));
    }
    detector_deinit(&detector);
}

/* One group of three ranks that leaves in the order of the array. */
struct leaving {
    int rank, signal, code;
    bool ordered;
    enum status status;
};

struct judgement {
    const char *what;
    struct leaving exits[3];
    int64_t silent_rank; /* silent and alive when the others had gone; -1: none */
    enum verdict_kind kind;
    int rank;
    enum status status;
    int cascade, teardown;
};

static const struct judgement judgements[] = {
    {"all done",
     {{0, 0, 0, false, 0}, {1, 0, 0, false, 0}, {2, 0, 0, false, 0}},
     -1,
     VERDICT_DONE,
     -1,
     STATUS_OK,
     0,
     0},
    {"saved and stopped",
     {{0, 0, 75, false, 0}, {1, 0, 75, false, 0}, {2, 0, 0, false, 0}},
     -1,
     VERDICT_SAVED,
     -1,
     STATUS_OK,
     0,
     0},
    {"killed first",
     {{1, SIGKILL, 0, false, 0}, {0, 0, 13, false, STATUS_PEER_LOST}, {2, SIGKILL, 0, true, 0}},
     -1,
     VERDICT_SIGNAL,
     1,
     STATUS_FAILED,
     1,
     1},
    {"a victim was seen first",
     {{0, 0, 13, false, STATUS_PEER_LOST}, {1, SIGKILL, 0, false, 0}, {2, 0, 13, false, 0}},
     -1,
     VERDICT_SIGNAL,
     1,
     STATUS_FAILED,
     2,
     0},
    {"own error behind an abort",
     {{0, 0, 13, false, STATUS_ABORTED}, {2, 0, 13, false, 0}, {1, 0, 12, false, STATUS_CORRUPT}},
     -1,
     VERDICT_EXIT,
     1,
     STATUS_CORRUPT,
     2,
     0},
    {"last words of a rank that had to be killed",
     {{0, 0, 13, false, STATUS_ABORTED},
      {2, 0, 13, false, 0},
      {1, SIGKILL, 0, true, STATUS_CORRUPT}},
     -1,
     VERDICT_SIGNAL,
     1,
     STATUS_CORRUPT,
     2,
     0},
    {"two faults: the earlier one",
     {{2, SIGSEGV, 0, false, 0}, {1, 0, 1, false, STATUS_IO}, {0, 0, 13, false, 0}},
     -1,
     VERDICT_SIGNAL,
     2,
     STATUS_FAILED,
     2,
     0},
    {"a time-out gives way to a fault",
     {{0, 0, 1, false, STATUS_TIMEOUT}, {1, 0, 1, false, STATUS_NUMERIC}, {2, 0, 13, false, 0}},
     -1,
     VERDICT_EXIT,
     1,
     STATUS_NUMERIC,
     2,
     0},
    {"time-outs blame the silent one",
     {{0, 0, 1, false, STATUS_TIMEOUT}, {2, 0, 13, false, 0}, {1, SIGKILL, 0, true, 0}},
     1,
     VERDICT_SILENT,
     1,
     STATUS_TIMEOUT,
     2,
     0},
    {"left early though well",
     {{1, 0, 0, false, 0}, {0, 0, 13, false, STATUS_PEER_LOST}, {2, 0, 13, false, 0}},
     -1,
     VERDICT_EXIT,
     1,
     STATUS_OK,
     2,
     0},
    {"ended by order",
     {{0, 0, 75, false, 0}, {1, SIGKILL, 0, true, 0}, {2, SIGTERM, 0, true, 0}},
     -1,
     VERDICT_ENDED,
     -1,
     STATUS_OK,
     0,
     2},
    {"lost a peer that the order had ended",
     {{0, SIGTERM, 0, true, 0}, {1, 0, 13, false, STATUS_PEER_LOST}, {2, SIGTERM, 0, true, 0}},
     -1,
     VERDICT_ENDED,
     -1,
     STATUS_OK,
     1,
     2},
    {"lost a peer before anybody was ended",
     {{1, 0, 13, false, STATUS_PEER_LOST}, {0, SIGKILL, 0, true, 0}, {2, SIGKILL, 0, true, 0}},
     -1,
     VERDICT_EXIT,
     1,
     STATUS_PEER_LOST,
     0,
     2},
    {"exit code without last words",
     {{2, 0, 14, false, 0}, {0, 0, 13, false, 0}, {1, 0, 13, false, 0}},
     -1,
     VERDICT_EXIT,
     2,
     STATUS_OPTIONS_DIFFER,
     2,
     0},
};

Test(detector, judges_the_first_cause)
{
    for (size_t i = 0; i < sizeof judgements / sizeof judgements[0]; i++) {
        const struct judgement *want = &judgements[i];
        struct detector detector = start(3, 0);
        struct verdict verdict;

        for (int rank = 0; rank < 3; rank++) {
            observe(&detector, rank, rank == want->silent_rank ? 0 : 10000, 1, PROGRESS_STEP, 5,
                    false, 5);
        }
        for (int j = 0; j < 3; j++) {
            if (want->exits[j].ordered) {
                detector_note_order(&detector, 10000 * MS);
            }
            leave(&detector, want->exits[j].rank, want->exits[j].signal, want->exits[j].code,
                  want->exits[j].ordered, want->exits[j].status);
        }
        detector_judge(&detector, &verdict);
        cr_expect_eq(verdict.kind, want->kind, "%s: kind %d", want->what, verdict.kind);
        cr_expect_eq(verdict.rank, want->rank, "%s: rank %d", want->what, verdict.rank);
        cr_expect_eq(verdict.status, want->status, "%s: %s", want->what,
                     status_name(verdict.status));
        cr_expect_eq(verdict.cascade_count, want->cascade, "%s: cascade %d", want->what,
                     verdict.cascade_count);
        cr_expect_eq(verdict.teardown_count, want->teardown, "%s: teardown %d", want->what,
                     verdict.teardown_count);
        detector_deinit(&detector);
    }
}

Test(detector, keeps_to_its_conviction_when_the_culprit_has_been_killed)
{
    struct detector detector = start(2, 0);
    struct verdict suspect, verdict;
    bool found;
    int64_t at = warm_up(&detector, 100);

    (void)pass_time(&detector, 1, at, at + 10000, &suspect, &found);
    cr_assert(found);
    detector_convict(&detector, &suspect);
    leave(&detector, 0, 0, 13, false, STATUS_PEER_LOST);
    leave(&detector, 1, SIGKILL, 0, true, STATUS_OK);
    detector_judge(&detector, &verdict);
    cr_assert_eq(verdict.kind, VERDICT_SILENT);
    cr_assert_eq(verdict.rank, 1);
    cr_assert(verdict.any_step);
    cr_assert_eq(detector.ranks[0].role, DETECTOR_CASCADE);
    cr_assert_eq(detector.ranks[1].role, DETECTOR_INITIATING);
    detector_deinit(&detector);
}

Test(detector, takes_the_first_step_it_sees_for_the_beginning_when_it_is_unknown)
{
    struct detector detector = start(1, -1);

    observe(&detector, 0, 0, 1, PROGRESS_LOAD, 0, false, 0);
    observe(&detector, 0, 1, 2, PROGRESS_STEP, 100, false, 0);
    cr_assert_not(detector.any_step);
    observe(&detector, 0, 2, 3, PROGRESS_STEP, 101, false, 0);
    cr_assert(detector.any_step);
    detector_deinit(&detector);
}

Test(detector, knows_whether_a_generation_got_beyond_where_it_began)
{
    struct detector detector = start(1, 40);

    observe(&detector, 0, 0, 1, PROGRESS_STEP, 40, false, 0);
    cr_assert_not(detector.any_step);
    observe(&detector, 0, 1, 2, PROGRESS_STEP, 41, false, 0);
    cr_assert(detector.any_step);
    detector_deinit(&detector);
}
