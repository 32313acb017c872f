/* Rank processes for tests (see ranks.h). fork + exec at once, nothing in between but async-safe
 * calls, so it may be used after OpenMP regions. */
#include "tests/support/ranks.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/fs.h"

#define ENV_MAX 256
#define OWN_ENV 7

extern char **environ;

void ranks_add(struct ranks_command *command, const char *const *words, size_t count)
{
    cr_assert_lt(command->count + count, RANKS_ARGS_MAX);
    for (size_t i = 0; i < count; i++) {
        command->words[command->count++] = words[i];
    }
}

static void start_rank(struct ranks *ranks, int rank, const struct ranks_command *command,
                       long committed_step)
{
    static char own[OWN_ENV][RANKS_PATH_MAX + 64];
    char *env[ENV_MAX], *argv[RANKS_ARGS_MAX + 1], path[RANKS_PATH_MAX + 32];
    size_t count = 0;

    snprintf(own[0], sizeof(own[0]), "RANK=%d", rank);
    snprintf(own[1], sizeof(own[1]), "WORLD_SIZE=%d", ranks->size);
    snprintf(own[2], sizeof(own[2]), "LOCAL_WORLD_SIZE=%d", ranks->size);
    snprintf(own[3], sizeof(own[3]), "HOLDFAST_RUN_DIR=%s/run", ranks->folder);
    snprintf(own[4], sizeof(own[4]), "HOLDFAST_RUN_ID=%s",
             command->run_id != NULL ? command->run_id : strrchr(ranks->folder, '/') + 1);
    snprintf(own[5], sizeof(own[5]), "HOLDFAST_GENERATION=0");
    snprintf(own[6], sizeof(own[6]), "HOLDFAST_COMMITTED_STEP=%ld", committed_step);
    for (char **entry = environ; *entry != NULL && count < ENV_MAX - OWN_ENV - 1; entry++) {
        env[count++] = *entry;
    }
    for (size_t i = 0; i < OWN_ENV; i++) {
        env[count++] = own[i];
    }
    env[count] = NULL;
    memcpy(argv, command->words, command->count * sizeof(argv[0]));
    argv[command->count] = NULL;
    snprintf(path, sizeof(path), "%s/rank_%d.out", ranks->folder, rank);
    int out = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC | O_APPEND, 0600);
    cr_assert_geq(out, 0, "cannot make '%s'", path);
    pid_t pid = fork();
    cr_assert_geq(pid, 0, "cannot fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(out, STDOUT_FILENO);
        dup2(out, STDERR_FILENO);
        execve(argv[0], argv, env);
        _exit(127);
    }
    close(out);
    ranks->pids[rank] = pid;
    ranks->exit_codes[rank] = -1;
}

void ranks_start(struct ranks *ranks, int size, const struct ranks_command *command,
                 long committed_step)
{
    const char *parent = getenv("TMPDIR");
    char run[RANKS_PATH_MAX + 8];

    cr_assert_leq(size, RANKS_MAX);
    memset(ranks, 0, sizeof(*ranks));
    ranks->size = size;
    snprintf(ranks->folder, sizeof(ranks->folder), "%s/ranks-XXXXXX",
             parent != NULL ? parent : "/tmp");
    cr_assert_not_null(mkdtemp(ranks->folder));
    snprintf(run, sizeof(run), "%s/run", ranks->folder);
    cr_assert_eq(mkdir(run, 0700), 0);
    for (int rank = 0; rank < size; rank++) {
        start_rank(ranks, rank, command, committed_step);
    }
}

void ranks_signal(const struct ranks *ranks, int rank, int signal_number)
{
    if (ranks->exit_codes[rank] < 0) {
        kill(ranks->pids[rank], signal_number);
    }
}

static bool collect(struct ranks *ranks, int flags)
{
    bool all = true;

    for (int rank = 0; rank < ranks->size; rank++) {
        int status = 0;
        if (ranks->exit_codes[rank] >= 0) {
            continue;
        }
        if (waitpid(ranks->pids[rank], &status, flags) == ranks->pids[rank]) {
            ranks->exit_codes[rank] =
                WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        } else {
            all = false;
        }
    }
    return all;
}

void ranks_wait(struct ranks *ranks, int timeout_s)
{
    struct deadline deadline = deadline_in_ms((int64_t)timeout_s * 1000);

    while (!collect(ranks, WNOHANG)) {
        if (deadline_passed(deadline)) {
            for (int rank = 0; rank < ranks->size; rank++) {
                ranks_signal(ranks, rank, SIGKILL);
            }
            collect(ranks, 0);
            return;
        }
        clock_sleep_ms(5);
    }
}

char *ranks_output(const struct ranks *ranks, int rank)
{
    char path[RANKS_PATH_MAX + 32];
    struct stat file = {0};

    snprintf(path, sizeof(path), "%s/rank_%d.out", ranks->folder, rank);
    int in = open(path, O_RDONLY | O_CLOEXEC);
    cr_assert(in >= 0 && fstat(in, &file) == 0);
    char *text = calloc(1, (size_t)file.st_size + 1);
    cr_assert_not_null(text);
    ssize_t got = read(in, text, (size_t)file.st_size);
    close(in);
    text[got < 0 ? 0 : got] = 0;
    return text;
}

bool ranks_all_left_with(const struct ranks *ranks, int exit_code)
{
    for (int rank = 0; rank < ranks->size; rank++) {
        if (ranks->exit_codes[rank] != exit_code) {
            return false;
        }
    }
    return true;
}

void ranks_dump(const struct ranks *ranks)
{
    for (int rank = 0; rank < ranks->size; rank++) {
        char *text = ranks_output(ranks, rank);
        fprintf(stderr, "--- rank %d left with %d:\n%s\n", rank, ranks->exit_codes[rank], text);
        free(text);
    }
}

void ranks_remove(struct ranks *ranks)
{
    cr_assert_eq(fs_remove_tree(fs_posix(), ranks->folder), STATUS_OK);
}
