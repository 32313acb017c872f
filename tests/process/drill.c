/* See drill.h. */
#include "tests/process/drill.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/mem.h"

extern char **environ;

void drill_init(struct drill *drill)
{
    const char *parent = getenv("TMPDIR");

    *drill = (struct drill){.fd = -1};
    (void)snprintf(drill->parent, sizeof drill->parent, "%s/drill-XXXXXX",
                   parent != NULL ? parent : "/tmp");
    cr_assert_not_null(mkdtemp(drill->parent));
    cr_assert_eq(fs_join(drill->run_dir, drill->parent, "the run"), STATUS_OK);
}

void drill_deinit(struct drill *drill)
{
    if (drill->agent != 0) {
        (void)kill(drill->agent, SIGKILL);
        (void)waitpid(drill->agent, NULL, 0);
        clock_sleep_ms(50); /* its ranks die of its death */
    }
    if (drill->fd >= 0) {
        (void)close(drill->fd);
    }
    mem_free(&drill->text);
    cr_assert_eq(fs_remove_tree(fs_posix(), drill->parent), STATUS_OK);
}

void drill_start(struct drill *drill, const char *const *arguments)
{
    char program[FS_PATH_MAX];
    const char *argv[DRILL_ARGUMENTS_MAX] = {program, "run", "--run-dir", drill->run_dir};
    int count = 4, fds[2];
    posix_spawn_file_actions_t actions;

    (void)snprintf(program, sizeof program, "%s/holdfast", getenv("HOLDFAST_BIN"));
    for (; *arguments != NULL; arguments++) {
        cr_assert_lt(count, DRILL_ARGUMENTS_MAX - 1);
        argv[count++] = *arguments;
    }
    if (drill->fd >= 0) {
        (void)close(drill->fd);
    }
    cr_assert_eq(pipe2(fds, O_CLOEXEC), 0);
    cr_assert_eq(posix_spawn_file_actions_init(&actions), 0);
    cr_assert_eq(posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO), 0);
    cr_assert_eq(posix_spawn_file_actions_adddup2(&actions, fds[1], STDERR_FILENO), 0);
    cr_assert_eq(posix_spawn(&drill->agent, program, &actions, NULL, (char *const *)argv, environ),
                 0, "cannot start '%s'", program);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(fds[1]);
    drill->fd = fds[0];
    drill->bytes = 0;
    drill->read_to = 0;
}

/* Reads once, within the deadline; false at the end of the output. */
static bool read_more(struct drill *drill, struct deadline deadline)
{
    struct pollfd in = {.fd = drill->fd, .events = POLLIN};

    if (poll(&in, 1, deadline_left_ms(deadline)) <= 0) {
        return true;
    }
    cr_assert_eq(
        mem_grow((void **)&drill->text, &drill->capacity, drill->bytes + DRILL_LINE_MAX + 1, 1),
        STATUS_OK);
    ssize_t got = read(drill->fd, drill->text + drill->bytes, DRILL_LINE_MAX);

    if (got > 0) {
        drill->bytes += (size_t)got;
    }
    drill->text[drill->bytes] = '\0';
    return got > 0;
}

const char *drill_wait_line(struct drill *drill, const char *text, int timeout_ms)
{
    static char line[DRILL_LINE_MAX];
    struct deadline deadline = deadline_in_ms(timeout_ms);
    bool more = true;

    for (;;) {
        while (drill->read_to < drill->bytes) {
            const char *begin = drill->text + drill->read_to;
            const char *end = memchr(begin, '\n', drill->bytes - drill->read_to);

            if (end == NULL) {
                break;
            }
            (void)snprintf(line, sizeof line, "%.*s", (int)(end - begin), begin);
            drill->read_to += (size_t)(end - begin) + 1;
            if (strstr(line, text) != NULL) {
                return line;
            }
        }
        cr_assert(more && !deadline_passed(deadline), "no line with '%s' in:\n%s", text,
                  drill->text != NULL ? drill->text : "");
        more = read_more(drill, deadline);
    }
}

int drill_wait_exit(struct drill *drill, int timeout_ms)
{
    struct deadline deadline = deadline_in_ms(timeout_ms);
    int status;

    while (read_more(drill, deadline)) {
        cr_assert(!deadline_passed(deadline), "the agent did not end:\n%s", drill->text);
    }
    cr_assert_eq(waitpid(drill->agent, &status, 0), drill->agent);
    drill->agent = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void drill_wait_ranks(struct drill *drill, int count, pid_t *out_pids)
{
    for (int i = 0; i < count; i++) {
        char text[64];

        (void)snprintf(text, sizeof text, ": rank %d of %d started, pid ", i, count);
        const char *line = drill_wait_line(drill, text, 10000);

        out_pids[i] = (pid_t)strtol(strstr(line, ", pid ") + 6, NULL, 10);
    }
}

int drill_is_gone(pid_t pid)
{
    char path[64], text[512];

    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");

    if (file == NULL) {
        return 1;
    }
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    (void)fclose(file);
    const char *end = strrchr(text, ')');

    return end == NULL || end[2] == 'Z' || end[2] == 'X';
}

void drill_wait_gone(pid_t pid, int timeout_ms)
{
    struct deadline deadline = deadline_in_ms(timeout_ms);

    while (!drill_is_gone(pid)) {
        cr_assert(!deadline_passed(deadline), "process %d still lives", (int)pid);
        clock_sleep_ms(1);
    }
}
