/* A rank without a model: keeps step with its peers through shared memory, beats, commits, and
 * misbehaves where it is told to. It stands in for holdfast-train in tests of the agent.
 *
 *     fake_rank [--steps N] [--step-ms N] [--save-every N] [--lines N --line-bytes N]
 *               [--do RANK:GENERATION:STEP:ACTION]...
 *
 * A generation of 0 means every one; step 0 is before the first step. Actions: kill, segv, stop,
 * loop (never beats again), skip (beats, but never joins the others), save (hangs in a save),
 * linger (leaves a child in a session of its own, then dies), exit=CODE, fail=STATUS (with a
 * failure record). A checkpoint is the agent's own HOLDFAST_COMMITTED_STEP.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ckpt/base/clock.h"
#include "ckpt/meta/run_env.h"

#define RANKS_MAX 512
#define BEAT_MS 20

struct world {
    _Atomic uint64_t stop_step;         /* all leave after it; 0: go on */
    _Atomic uint64_t joined[RANKS_MAX]; /* the step that the rank waits to begin, + 1 */
    _Atomic int pid[RANKS_MAX];
};

struct fake {
    struct run_env env;
    struct progress *progress;
    struct progress_page *page;
    struct world *world;
    uint64_t steps, save_every, lines, line_bytes;
    int64_t step_ms;
    char **argv;
};

static volatile sig_atomic_t stop_asked;

static void ask_stop(int signal)
{
    (void)signal;
    stop_asked = 1;
}

static _Noreturn void leave(struct fake *fake, enum status status, const char *message)
{
    struct failure_record record = {.rank = fake->env.rank,
                                    .generation = fake->env.generation,
                                    .status = status,
                                    .step = atomic_load(&fake->page->step),
                                    .phase = (enum progress_phase)atomic_load(&fake->page->phase),
                                    .wall_ns = clock_wall_ns()};

    (void)snprintf(record.message, sizeof record.message, "%s", message);
    failure_write(&fake->env, &record);
    progress_set_phase(fake->progress, PROGRESS_EXIT);
    (void)fprintf(stderr, "%s\n", message);
    progress_close(&fake->progress);
    exit(status_exit_code(status));
}

static enum status find_status(const char *name)
{
    for (int code = 0; code < STATUS_COUNT; code++) {
        if (strcmp(name, status_name((enum status)code)) == 0) {
            return (enum status)code;
        }
    }
    return STATUS_USAGE;
}

static void linger(void)
{
    (void)fflush(NULL);
    if (fork() == 0) {
        if (fork() == 0) {
            (void)setsid();
            clock_sleep_ms(600000);
        }
        _exit(0);
    }
    clock_sleep_ms(50);
    (void)raise(SIGKILL);
}

static void act(struct fake *fake, const char *action)
{
    if (strcmp(action, "kill") == 0) {
        (void)raise(SIGKILL);
    } else if (strcmp(action, "segv") == 0) {
        (void)signal(SIGSEGV, SIG_DFL);
        (void)raise(SIGSEGV);
    } else if (strcmp(action, "stop") == 0) {
        (void)raise(SIGSTOP);
    } else if (strcmp(action, "loop") == 0) {
        for (volatile uint64_t i = 0;; i++) {
        }
    } else if (strcmp(action, "save") == 0) {
        progress_set_phase(fake->progress, PROGRESS_SAVE);
        clock_sleep_ms(600000);
    } else if (strcmp(action, "linger") == 0) {
        linger();
    } else if (strncmp(action, "exit=", 5) == 0) {
        _exit((int)strtol(action + 5, NULL, 10));
    } else if (strncmp(action, "fail=", 5) == 0) {
        leave(fake, find_status(action + 5), "cannot read 'some file'");
    } else if (strcmp(action, "skip") == 0) {
        for (;;) {
            clock_sleep_ms(BEAT_MS);
            progress_beat(fake->progress);
        }
    }
}

/* Does what the command line wants of this rank, generation and step. */
static void misbehave(struct fake *fake, uint64_t step)
{
    for (char **word = fake->argv; *word != NULL; word++) {
        int rank, length = 0;
        uint64_t generation, at;

        if (strcmp(*word, "--do") == 0 && word[1] != NULL &&
            sscanf(word[1], "%d:%" SCNu64 ":%" SCNu64 ":%n", &rank, &generation, &at, &length) ==
                3 &&
            length > 0 && rank == fake->env.rank && at == step &&
            (generation == 0 || generation == fake->env.generation)) {
            act(fake, word[1] + length);
        }
    }
}

static bool is_dead(int pid)
{
    char path[64], text[512], state = 'X';

    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");

    if (file != NULL) {
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        const char *end = strrchr(text, ')');

        state = end != NULL && end[1] == ' ' ? end[2] : 'X';
        (void)fclose(file);
    }
    return state == 'X' || state == 'Z';
}

/* A collective: waits until all ranks have come, as long as they live. */
static void join_peers(struct fake *fake, uint64_t step)
{
    char message[64];

    atomic_store(&fake->world->joined[fake->env.rank], step + 1);
    atomic_store(&fake->page->in_collective, 1);
    for (int peer = 0; peer < fake->env.world_size; peer++) {
        while (atomic_load(&fake->world->joined[peer]) < step + 1) {
            int pid = atomic_load(&fake->world->pid[peer]);

            if (pid != 0 && is_dead(pid)) {
                (void)snprintf(message, sizeof message, "lost rank %d", peer);
                leave(fake, STATUS_PEER_LOST, message);
            }
            progress_beat(fake->progress);
            clock_sleep_ms(1);
        }
    }
    atomic_store(&fake->page->in_collective, 0);
    atomic_fetch_add(&fake->page->collective, 1);
}

static void print_lines(const struct fake *fake, uint64_t step)
{
    for (uint64_t i = 0; i < fake->lines; i++) {
        for (uint64_t j = 0; j < fake->line_bytes; j++) {
            (void)putchar('a' + fake->env.rank % 26);
        }
        (void)printf(" step %" PRIu64 " line %" PRIu64 "\n", step, i);
    }
    (void)fflush(stdout);
}

static void save(struct fake *fake, uint64_t step)
{
    progress_set_phase(fake->progress, PROGRESS_SAVE);
    atomic_store(&fake->page->committed_step, (int64_t)step);
    if (fake->env.rank == 0) {
        (void)printf("committed %" PRIu64 "\n", step);
        (void)fflush(stdout);
    }
    progress_set_phase(fake->progress, PROGRESS_STEP);
}

static int train(struct fake *fake)
{
    uint64_t step = fake->env.committed_step > 0 ? (uint64_t)fake->env.committed_step : 0;

    atomic_store(&fake->page->step, step);
    misbehave(fake, 0);
    progress_set_phase(fake->progress, PROGRESS_STEP);
    while (step < fake->steps) {
        uint64_t none = 0;

        if (stop_asked) {
            (void)atomic_compare_exchange_strong(&fake->world->stop_step, &none, step + 2);
        }
        join_peers(fake, step);
        clock_sleep_ms(fake->step_ms);
        step++;
        atomic_store(&fake->page->step, step);
        progress_beat(fake->progress);
        print_lines(fake, step);
        misbehave(fake, step);
        if (step == atomic_load(&fake->world->stop_step)) {
            save(fake, step);
            progress_set_phase(fake->progress, PROGRESS_EXIT);
            return status_exit_code(STATUS_STOPPED);
        }
        if (fake->save_every > 0 && step % fake->save_every == 0) {
            save(fake, step);
        }
    }
    join_peers(fake, step);
    progress_set_phase(fake->progress, PROGRESS_EXIT);
    return 0;
}

static bool open_world(struct fake *fake)
{
    char path[FS_PATH_MAX + 64];

    (void)snprintf(path, sizeof path, "%s/comm-%" PRIu64 "/world", fake->env.run_dir,
                   fake->env.generation);
    int fd = open(path, O_RDWR | O_CREAT, 0600);

    if (fd < 0 || ftruncate(fd, sizeof *fake->world) != 0) {
        perror(path);
        return false;
    }
    fake->world = mmap(NULL, sizeof *fake->world, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (fake->world == MAP_FAILED) {
        return false;
    }
    atomic_store(&fake->world->pid[fake->env.rank], getpid());
    return true;
}

static uint64_t find_number(char **argv, const char *name, uint64_t value)
{
    for (char **word = argv; *word != NULL; word++) {
        if (strcmp(*word, name) == 0 && word[1] != NULL) {
            value = strtoull(word[1], NULL, 10);
        }
    }
    return value;
}

int main(int argc, char **argv)
{
    struct fake fake = {.argv = argv,
                        .steps = find_number(argv, "--steps", 10),
                        .save_every = find_number(argv, "--save-every", 0),
                        .lines = find_number(argv, "--lines", 0),
                        .line_bytes = find_number(argv, "--line-bytes", 0),
                        .step_ms = (int64_t)find_number(argv, "--step-ms", 5)};

    (void)argc;
    (void)signal(SIGTERM, ask_stop);
    (void)signal(SIGINT, ask_stop);
    (void)signal(SIGUSR1, ask_stop);
    if (run_env_read(&fake.env) != STATUS_OK ||
        progress_open(&fake.env, &fake.progress) != STATUS_OK) {
        status_print("fake_rank", true);
        return 1;
    }
    fake.page = progress_page(fake.progress);
    progress_set_phase(fake.progress, PROGRESS_START);
    int code = open_world(&fake) ? train(&fake) : 1;

    progress_close(&fake.progress);
    return code;
}
