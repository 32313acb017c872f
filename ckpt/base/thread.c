/* The pool and the background thread; see thread.h. */
#include "ckpt/base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "ckpt/base/mem.h"

struct thread_pool {
    pthread_mutex_t mutex;
    pthread_cond_t work_there, work_done;
    pthread_t threads[THREAD_COUNT_MAX];
    int thread_count; /* started ones: without the caller */
    bool stop;
    uint64_t run_number; /* a worker that has seen it has no new work */
    int busy;            /* workers inside the current run */
    thread_loop_fn piece;
    void *context;
    size_t next, count;
    struct status_record failure;
};

/* Signals are the main thread's: it decides at step boundaries. */
static int start_thread(pthread_t *thread, void *(*body)(void *), void *argument)
{
    sigset_t all, before;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, body, argument);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* Takes pieces until there are none; the mutex is held on entry and on return. */
static void work(struct thread_pool *pool)
{
    while (pool->next < pool->count && pool->failure.code == STATUS_OK) {
        size_t index = pool->next++;
        (void)pthread_mutex_unlock(&pool->mutex);
        enum status st = pool->piece(pool->context, index);
        (void)pthread_mutex_lock(&pool->mutex);
        if (st != STATUS_OK && pool->failure.code == STATUS_OK) {
            status_take(&pool->failure);
            pool->failure.code = st;
        }
    }
}

static void *worker(void *argument)
{
    struct thread_pool *pool = argument;
    uint64_t seen = 0;

    (void)pthread_mutex_lock(&pool->mutex);
    for (;;) {
        while (!pool->stop && pool->run_number == seen) {
            (void)pthread_cond_wait(&pool->work_there, &pool->mutex);
        }
        if (pool->stop) {
            break;
        }
        seen = pool->run_number;
        pool->busy++;
        work(pool);
        pool->busy--;
        (void)pthread_cond_broadcast(&pool->work_done);
    }
    (void)pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

enum status thread_pool_create(int thread_count, struct thread_pool **out_pool)
{
    enum status st = STATUS_OK;
    struct thread_pool *pool = NULL;

    *out_pool = NULL;
    if (thread_count < 1 || thread_count > THREAD_COUNT_MAX) {
        return FAIL(STATUS_USAGE, "%d threads asked for, 1 to %d are possible", thread_count,
                    THREAD_COUNT_MAX);
    }
    TRY(st, mem_alloc(&pool, 1, sizeof *pool), done);
    CHECK(pthread_mutex_init(&pool->mutex, NULL) == 0);
    CHECK(pthread_cond_init(&pool->work_there, NULL) == 0);
    CHECK(pthread_cond_init(&pool->work_done, NULL) == 0);
    while (pool->thread_count < thread_count - 1) {
        int error = start_thread(&pool->threads[pool->thread_count], worker, pool);
        if (error != 0) {
            st = FAIL(STATUS_NO_MEMORY, "cannot start thread %d of %d", pool->thread_count + 1,
                      thread_count - 1);
            goto done;
        }
        pool->thread_count++;
    }
done:
    if (st == STATUS_OK) {
        *out_pool = pool;
    } else {
        thread_pool_destroy(pool);
    }
    return st;
}

enum status thread_pool_run(struct thread_pool *pool, thread_loop_fn piece, void *context,
                            size_t count)
{
    (void)pthread_mutex_lock(&pool->mutex);
    pool->piece = piece;
    pool->context = context;
    pool->next = 0;
    pool->count = count;
    pool->failure.code = STATUS_OK;
    pool->run_number++;
    (void)pthread_cond_broadcast(&pool->work_there);
    work(pool);
    while (pool->busy > 0) {
        (void)pthread_cond_wait(&pool->work_done, &pool->mutex);
    }
    pool->count = 0; /* a worker that wakes only now finds nothing */
    (void)pthread_mutex_unlock(&pool->mutex);
    return pool->failure.code == STATUS_OK ? STATUS_OK : status_give(&pool->failure);
}

void thread_pool_destroy(struct thread_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&pool->mutex);
    pool->stop = true;
    (void)pthread_cond_broadcast(&pool->work_there);
    (void)pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < pool->thread_count; i++) {
        (void)pthread_join(pool->threads[i], NULL);
    }
    (void)pthread_cond_destroy(&pool->work_there);
    (void)pthread_cond_destroy(&pool->work_done);
    (void)pthread_mutex_destroy(&pool->mutex);
    mem_free(&pool);
}

int thread_cpu_count(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return 1;
    }
    int count = CPU_COUNT(&set);
    return count < THREAD_COUNT_MAX ? count : THREAD_COUNT_MAX;
}

struct thread_task {
    pthread_t thread;
    thread_task_fn run;
    void *context;
    struct status_record result;
};

static void *task_body(void *argument)
{
    struct thread_task *task = argument;
    enum status st = task->run(task->context);

    status_take(&task->result);
    task->result.code = st;
    return NULL;
}

enum status thread_task_start(thread_task_fn run, void *context, struct thread_task **out_task)
{
    enum status st = STATUS_OK;
    struct thread_task *task = NULL;

    *out_task = NULL;
    TRY(st, mem_alloc(&task, 1, sizeof *task), done);
    task->run = run;
    task->context = context;
    if (start_thread(&task->thread, task_body, task) != 0) {
        mem_free(&task);
        return FAIL(STATUS_NO_MEMORY, "cannot start a thread");
    }
    *out_task = task;
done:
    return st;
}

enum status thread_task_join(struct thread_task *task)
{
    enum status st = STATUS_OK;

    if (task != NULL) {
        (void)pthread_join(task->thread, NULL);
        st = task->result.code == STATUS_OK ? STATUS_OK : status_give(&task->result);
        mem_free(&task);
    }
    return st;
}
