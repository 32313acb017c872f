/* holdfast-train: one rank of a training. Before it: a launcher (RANK, WORLD_SIZE and what
 * run_env.h lists) or a user alone. After it: trainer.
 *
 * Order: options and data are checked before any rank waits for another (only with a
 * --data-cache-path the others wait until rank 0 has filled it); then the ranks meet, then they
 * train. Whoever fails writes its failure record, wakes the others out of every wait and leaves
 * with the code of its status.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"
#include "train/data/tokenizer.h"
#include "train/parallel/schedule_view.h"
#include "train/train_data.h"
#include "train/trainer.h"

#define EXIT_INTERRUPTED 130

static _Atomic int stop_signal;

/* Waits for the signals that ask to stop. The first asks for a stop after this step; a second
 * SIGINT does not wait for it. */
static enum status watch_signals(void *context)
{
    const sigset_t *signals = context;

    for (;;) {
        int number = 0;
        CHECK(sigwait(signals, &number) == 0);
        if (number == SIGINT && stop_signal == SIGINT) {
            _exit(EXIT_INTERRUPTED);
        }
        stop_signal = number;
    }
}

/* Called before any other thread starts, so that all of them have these signals blocked. No handler
 * may run on a computing thread: oneDNN's matrix kernels use the stack pointer for data, and the
 * kernel would write the handler's frame into the heap. */
static enum status catch_signals(void)
{
    static sigset_t signals;
    static struct thread_task *watcher; /* ends with the process */

    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGUSR1);
    (void)sigaddset(&signals, SIGINT);
    CHECK(pthread_sigmask(SIG_BLOCK, &signals, NULL) == 0);
    /* A closed pipe and a file size limit are errors of the call, not deaths. */
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN);
    return thread_task_start(watch_signals, &signals, &watcher);
}

/* One rank and all that it holds. */
struct rank {
    struct train_options options;
    struct train_plan plan;
    struct run_env env;
    struct progress *progress;
    struct data_source train, valid, test;
    int64_t begin_ns;
    struct comm *world;
    struct trainer *trainer;
    int thread_count;
};

static void on_wait(void *context)
{
    struct rank *rank = context;

    atomic_store(&progress_page(rank->progress)->in_collective, 1);
    progress_beat(rank->progress);
}

/* What all ranks see alike, rank 0 tells. */
static void init_log(const struct run_env *env)
{
    char prefix[32] = "";

    if (env->world_size > 1) {
        snprintf(prefix, sizeof(prefix), "rank %d", env->rank);
    }
    log_init(env->rank == 0 ? LOG_LEVEL_INFO : LOG_LEVEL_WARN, prefix);
}

/* Threads of this rank: the processors are shared by the ranks of this host. */
static int count_threads(const struct rank *rank)
{
    int share = thread_cpu_count() / rank->env.local_world_size;

    if (rank->options.num_threads > 0) {
        return (int)rank->options.num_threads;
    }
    return share > 0 ? share : 1;
}

/* Scripts give the vocabulary's files, not its size and its ids. */
static enum status derive_from_tokenizer(struct train_options *options)
{
    enum status st = STATUS_OK;
    struct tokenizer *tokenizer = NULL;
    bool has_tokenizer = options->vocab_file[0] != 0 || options->merge_file[0] != 0 ||
                         options->tokenizer_model[0] != 0 ||
                         strcmp(options->tokenizer_type, "ByteTokenizer") == 0;

    bool wants_size = options->vocab_size == 0;
    bool wants_eod = train_data_needs_eod(options) && options->eod_id < 0;

    if (!has_tokenizer || (!wants_size && !wants_eod)) {
        return STATUS_OK;
    }
    TRY(st,
        tokenizer_create(&(struct tokenizer_config){.type = options->tokenizer_type,
                                                    .vocab_path = options->vocab_file,
                                                    .merges_path = options->merge_file,
                                                    .model_path = options->tokenizer_model,
                                                    .legacy = options->legacy_tokenizer},
                         &tokenizer),
        done);
    if (wants_size) {
        options->vocab_size = tokenizer->vocab_size;
    }
    if (wants_eod) {
        options->eod_id = tokenizer->end_of_document;
    }
done:
    tokenizer_destroy(tokenizer);
    return st;
}

/* Nobody asks for the test set by name: a part of --split that is too small for it is no error. */
static enum status open_test(struct rank *rank)
{
    const struct train_options *options = &rank->options;
    uint64_t samples = (uint64_t)(options->eval_iters * options->global_batch_size);
    bool is_own = options->test_data_path[0] != 0;

    if (options->train_data_path[0] != 0 && !is_own) {
        return STATUS_OK;
    }
    enum status st = train_data_open(options, &rank->plan, DATA_TEST, samples, &rank->test);
    if (st == STATUS_BAD_DATA && !is_own) {
        log_info("no test after the training: %s", status_last()->message);
        st = STATUS_OK;
    }
    return st;
}

static enum status open_data(struct rank *rank)
{
    enum status st = STATUS_OK;
    const struct train_options *options = &rank->options;
    uint64_t batch = (uint64_t)options->global_batch_size;
    uint64_t evaluations = options->eval_interval == 0
                               ? 0
                               : rank->plan.train_steps / (uint64_t)options->eval_interval + 1;
    uint64_t valid = evaluations * (uint64_t)options->eval_iters * batch;

    TRY(st,
        train_data_open(options, &rank->plan, DATA_TRAIN, rank->plan.train_samples, &rank->train),
        done);
    TRY(st, train_data_open(options, &rank->plan, DATA_VALID, valid, &rank->valid), done);
    if (valid > 0) {
        TRY(st, open_test(rank), done);
    }
done:
    return st;
}

static enum status meet(struct rank *rank)
{
    enum status st = STATUS_OK;
    char name[64], folder[FS_PATH_MAX] = "";
    int64_t timeout_ms = (int64_t)(rank->options.distributed_timeout_minutes * 60e3);
    struct comm_config config = {.rank = rank->env.rank,
                                 .size = rank->env.world_size,
                                 .generation = rank->env.generation,
                                 .init_timeout_ms = timeout_ms,
                                 .call_timeout_ms = timeout_ms,
                                 .on_wait = on_wait,
                                 .on_wait_context = rank};

    if (rank->env.world_size > 1 && !rank->env.has_agent) {
        return FAIL(STATUS_USAGE,
                    "WORLD_SIZE is %d but %s names no folder where the ranks can meet: start them "
                    "with `holdfast run`",
                    rank->env.world_size, RUN_ENV_RUN_DIR);
    }
    if (rank->env.has_agent) {
        snprintf(name, sizeof(name), "comm-%" PRIu64, rank->env.generation);
        TRY(st, fs_join(folder, rank->env.run_dir, name), done);
        TRY(st, fs_make_dirs(fs_posix(), folder), done);
        config.rendezvous_dir = folder;
    }
    TRY(st, comm_open(&config, &rank->world), done);
done:
    return st;
}

static enum status run(struct rank *rank)
{
    enum status st = STATUS_OK;

    rank->thread_count = count_threads(rank);
    /* Of what is kept for all, rank 0 makes what is missing while the others wait for it. */
    bool waits = rank->env.rank > 0 && rank->options.data_cache_path[0] != 0;
    if (waits) {
        TRY(st, meet(rank), done);
    }
    TRY(st, open_data(rank), done);
    if (!waits) {
        TRY(st, meet(rank), done);
    }
    struct trainer_config config = {.options = &rank->options,
                                    .plan = &rank->plan,
                                    .env = &rank->env,
                                    .fs = fs_posix(),
                                    .world = rank->world,
                                    .progress = rank->progress,
                                    .train = rank->train,
                                    .valid = rank->valid,
                                    .test = rank->test,
                                    .begin_ns = rank->begin_ns,
                                    .stop_signal = &stop_signal,
                                    .out = stdout,
                                    .thread_count = rank->thread_count};
    TRY(st, trainer_create(&config, &rank->trainer), done);
    TRY(st, trainer_run(rank->trainer), done);
done:
    return st;
}

/* A stop that was asked for is no failure: it needs no record and wakes nobody. */
static bool is_failure(enum status status)
{
    return status != STATUS_OK && status != STATUS_STOPPED && status != STATUS_INTERRUPTED;
}

static void leave_record(const struct rank *rank)
{
    struct failure_record record = {.rank = rank->env.rank,
                                    .generation = rank->env.generation,
                                    .status = status_last()->code,
                                    .wall_ns = clock_wall_ns()};
    const struct progress_page *page =
        rank->progress == NULL ? NULL : progress_page(rank->progress);

    if (page != NULL) {
        record.phase = (enum progress_phase)atomic_load(&page->phase);
        record.step = atomic_load(&page->step);
    }
    snprintf(record.message, sizeof(record.message), "%s", status_last()->message);
    failure_write(&rank->env, &record);
}

/* The record comes first, then the others are woken, then memory goes. */
static void leave(struct rank *rank, enum status status)
{
    struct status_record error;

    status_take(&error);
    if (is_failure(status)) {
        leave_record(rank);
        if (rank->world != NULL) {
            comm_abort(rank->world, error.message);
        }
    }
    if (rank->progress != NULL) {
        progress_set_phase(rank->progress, PROGRESS_EXIT);
    }
    trainer_destroy(&rank->trainer);
    comm_close(&rank->world);
    data_loader_close(&rank->train);
    data_loader_close(&rank->valid);
    data_loader_close(&rank->test);
    progress_close(&rank->progress);
    (void)status_give(&error);
}

/* A launcher other than the agent gives a folder to meet in, but no page to beat on. */
static enum status open_progress(struct rank *rank)
{
    struct run_env unwatched = rank->env;
    enum status st = progress_open(&rank->env, &rank->progress);

    if (st != STATUS_NOT_FOUND) {
        return st;
    }
    unwatched.has_agent = false;
    return progress_open(&unwatched, &rank->progress);
}

/* With what Megatron has among its arguments once they are checked. */
static void print_arguments(const struct rank *rank)
{
    char world_size[16], dp[16];
    const struct option_fact facts[] = {
        {"world-size", world_size}, {"data-parallel-size", dp}, {"rank", "0"}};

    snprintf(world_size, sizeof(world_size), "%d", rank->env.world_size);
    snprintf(dp, sizeof(dp), "%d", rank->plan.layout.dp);
    options_print_values(&train_options_table, "arguments", &rank->options, facts,
                         sizeof(facts) / sizeof(facts[0]));
}

/* Of the largest step. It needs neither data nor other ranks, and the world may be any. */
static enum status print_schedule(const struct rank *rank)
{
    enum status st = STATUS_OK;
    struct schedule_view view = {0};
    struct schedule_shape shape = {.stages = rank->plan.layout.pp,
                                   .chunks = rank->plan.chunks,
                                   .micro_batches = (int)rank->plan.micro_batches};

    TRY(st, schedule_view_init(&shape, &view), done);
    TRY(st, schedule_view_print(&view, stdout), done);
done:
    schedule_view_deinit(&view);
    return st;
}

/* What needs no other rank: the environment, the options, the progress page. `*out_is_done`: all
 * that was asked for is printed. */
static enum status prepare(struct rank *rank, int argc, char **argv, bool *out_is_done)
{
    enum status st = STATUS_OK;
    const char **texts = NULL;

    TRY(st, mem_alloc(&texts, (size_t)argc + 1, sizeof(*texts)), done);
    struct option_positionals positionals = {.texts = texts};
    TRY(st, run_env_read(&rank->env), done);
    init_log(&rank->env);
    TRY(st,
        options_parse(&train_options_table, argc, argv, &rank->options, &positionals, out_is_done),
        done);
    if (*out_is_done) {
        goto done;
    }
    TRY(st, derive_from_tokenizer(&rank->options), done);
    TRY(st, train_options_resolve(&rank->options, rank->env.world_size, &rank->plan), done);
    if (rank->options.print_schedule) {
        *out_is_done = true;
        st = rank->env.rank == 0 ? print_schedule(rank) : STATUS_OK;
        goto done;
    }
    TRY(st, open_progress(rank), done);
    atomic_store(&progress_page(rank->progress)->pid, (int64_t)getpid());
    progress_set_phase(rank->progress, PROGRESS_START);
    if (rank->env.rank == 0) {
        print_arguments(rank);
        fflush(stdout);
    }
done:
    mem_free(&texts);
    return st;
}

/* Where an error came from is for those who mend the program. */
static bool wants_trail(enum status status)
{
    return status_retry_class(status) == RETRY_RESTART && status != STATUS_PEER_LOST &&
           status != STATUS_ABORTED;
}

int main(int argc, char **argv)
{
    struct rank *rank = NULL;
    bool is_done = false;
    enum status st = mem_alloc(&rank, 1, sizeof(*rank));

    if (st != STATUS_OK) {
        status_print("holdfast train", false);
        return status_exit_code(st);
    }
    rank->begin_ns = clock_monotonic_ns();
    st = catch_signals();
    st = st == STATUS_OK ? prepare(rank, argc, argv, &is_done) : st;
    if (st == STATUS_OK && !is_done) {
        st = run(rank);
    }
    leave(rank, st);
    if (st != STATUS_OK && (is_failure(st) || rank->env.rank == 0)) {
        status_print("holdfast train", wants_trail(st));
    }
    mem_free(&rank);
    return status_exit_code(st);
}
