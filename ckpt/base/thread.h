/* Threads: a pool for parallel loops, and one background thread with a result.
 *
 * Not for the trainer's mathematics (OpenMP's there); for hashing, compression, I/O and beats.
 */
#ifndef CKPT_BASE_THREAD_H
#define CKPT_BASE_THREAD_H

#include <stddef.h>

#include "ckpt/base/status.h"

#define THREAD_COUNT_MAX 256

struct thread_pool;

/* One piece of a parallel loop: `index` in 0 .. count - 1; any thread, any order. */
typedef enum status (*thread_loop_fn)(void *context, size_t index);

/* thread_count includes the caller of thread_pool_run: 1 starts no thread. */
enum status thread_pool_create(int thread_count, struct thread_pool **out_pool) STATUS_MUST_CHECK;
/* Runs all pieces and waits. After the first failure no new piece starts; that failure is the
 * result, its record is the caller's. One run at a time per pool. */
enum status thread_pool_run(struct thread_pool *pool, thread_loop_fn piece, void *context,
                            size_t count) STATUS_MUST_CHECK;
void thread_pool_destroy(struct thread_pool *pool);
int thread_cpu_count(void); /* processors this process may run on */

struct thread_task;

/* One thread; SIGTERM, SIGINT and SIGUSR1 are blocked in it, so that the main thread gets them. */
typedef enum status (*thread_task_fn)(void *context);
enum status thread_task_start(thread_task_fn run, void *context, struct thread_task **out_task)
    STATUS_MUST_CHECK;
/* Waits for the end, frees the task, gives its status (and record) to the caller. NULL: OK. */
enum status thread_task_join(struct thread_task *task) STATUS_MUST_CHECK;

#endif
