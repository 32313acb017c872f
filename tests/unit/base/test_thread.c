/* Claims of thread.h. */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"
#include "tests/unit/base/base_support.h"

#define PIECES 1000

static enum status mark(void *context, size_t index)
{
    _Atomic int *marks = context;

    atomic_fetch_add(&marks[index], 1);
    return STATUS_OK;
}

Test(pool, every_piece_runs_once_whatever_the_number_of_threads)
{
    static _Atomic int marks[PIECES];
    static const int counts[] = {1, 2, 3, 8};

    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        struct thread_pool *pool = NULL;
        assert_ok(thread_pool_create(counts[c], &pool));
        for (size_t run = 0; run < 20; run++) {
            size_t pieces = run * 50;
            memset((void *)marks, 0, sizeof marks);
            assert_ok(thread_pool_run(pool, mark, (void *)marks, pieces));
            for (size_t i = 0; i < PIECES; i++) {
                cr_assert(marks[i] == (i < pieces ? 1 : 0));
            }
        }
        thread_pool_destroy(pool);
    }
}

struct failing {
    size_t at;
    _Atomic size_t started;
};

static enum status fail_at(void *context, size_t index)
{
    struct failing *failing = context;

    atomic_fetch_add(&failing->started, 1);
    if (index == failing->at) {
        return FAIL(STATUS_CORRUPT, "piece %zu is torn", index);
    }
    return STATUS_OK;
}

Test(pool, the_first_failure_is_the_callers_and_stops_the_loop)
{
    for (int threads = 1; threads <= 4; threads++) {
        struct thread_pool *pool = NULL;
        struct failing failing = {.at = 10};
        assert_ok(thread_pool_create(threads, &pool));
        assert_status(thread_pool_run(pool, fail_at, &failing, 1000000), STATUS_CORRUPT);
        assert_says("piece 10 is torn");
        cr_assert_str_eq(status_last()->trail[0].function, "fail_at");
        cr_assert(failing.started < 1000000, "no piece was left out");
        failing.at = SIZE_MAX; /* the pool is as good as new */
        failing.started = 0;
        assert_ok(thread_pool_run(pool, fail_at, &failing, 100));
        cr_assert(failing.started == 100);
        thread_pool_destroy(pool);
    }
}

Test(pool, odd_counts_and_missing_memory_are_errors)
{
    struct thread_pool *pool = NULL;

    assert_status(thread_pool_create(0, &pool), STATUS_USAGE);
    assert_status(thread_pool_create(THREAD_COUNT_MAX + 1, &pool), STATUS_USAGE);
    mem_fail_at(1);
    assert_status(thread_pool_create(2, &pool), STATUS_NO_MEMORY);
    cr_assert(pool == NULL);
    thread_pool_destroy(NULL);
}

Test(pool, processors_are_those_this_process_may_use)
{
    cpu_set_t one;

    cr_assert(thread_cpu_count() >= 1);
    cr_assert(sched_getaffinity(0, sizeof one, &one) == 0);
    for (int cpu = 0, kept = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &one) && kept++ > 0) {
            CPU_CLR(cpu, &one);
        }
    }
    cr_assert(sched_setaffinity(0, sizeof one, &one) == 0);
    cr_assert(thread_cpu_count() == 1);
}

static enum status fail_task(void *context)
{
    return FAIL(STATUS_NO_SPACE, "no room for '%s'", (const char *)context);
}

static enum status read_mask(void *context)
{
    (void)pthread_sigmask(SIG_BLOCK, NULL, context);
    return STATUS_OK;
}

Test(task, its_status_and_record_come_with_the_join)
{
    struct thread_task *task = NULL;
    char name[] = "x";

    assert_ok(thread_task_start(fail_task, name, &task));
    assert_status(thread_task_join(task), STATUS_NO_SPACE);
    assert_says("no room for 'x'");
    assert_ok(thread_task_join(NULL));
    mem_fail_at(1);
    assert_status(thread_task_start(fail_task, name, &task), STATUS_NO_MEMORY);
    cr_assert(task == NULL);
}

Test(task, signals_stay_with_the_main_thread)
{
    struct thread_task *task = NULL;
    sigset_t inside, outside;

    assert_ok(thread_task_start(read_mask, &inside, &task));
    assert_ok(thread_task_join(task));
    cr_assert(sigismember(&inside, SIGTERM) == 1 && sigismember(&inside, SIGINT) == 1 &&
              sigismember(&inside, SIGUSR1) == 1);
    cr_assert(pthread_sigmask(SIG_BLOCK, NULL, &outside) == 0);
    cr_assert(sigismember(&outside, SIGTERM) == 0);
}
