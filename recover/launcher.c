/* fork, exec and reap; see launcher.h. Invariant: between fork and exec the child only sets up its
 * own process; the agent has one thread, so that this is safe. */
#include "recover/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"
#include "ckpt/meta/run_env.h"

#define EXEC_FAILED_CODE 127
#define STRAY_RETRY_MS 5

enum pipe_end { PIPE_READ, PIPE_WRITE, PIPE_ENDS };

enum status launcher_init(void)
{
    struct rlimit files;

    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) {
        return FAIL_ERRNO("cannot become the subreaper of the ranks");
    }
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files); /* launcher_start says when it was too low */
    }
    return STATUS_OK;
}

/* "DIRECTORY/holdfast-WORD", DIRECTORY being this executable's. */
static enum status find_beside(const char *word, char out_path[FS_PATH_MAX])
{
    char self[FS_PATH_MAX], directory[FS_PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);

    if (length < 0) {
        return FAIL_ERRNO("cannot read '/proc/self/exe'");
    }
    self[length] = '\0';
    fs_parent(directory, self);
    if (snprintf(out_path, FS_PATH_MAX, "%s/holdfast-%s", directory, word) >= FS_PATH_MAX) {
        return FAIL(STATUS_USAGE, "command '%s' is too long", word);
    }
    if (access(out_path, X_OK) != 0) {
        return FAIL(STATUS_USAGE,
                    "no command '%s': no program '%s'; other programs need a '/' in "
                    "their path",
                    word, out_path);
    }
    return STATUS_OK;
}

enum status launcher_resolve(char *const *words, int count, struct launch_command *out_command)
{
    enum status st = STATUS_OK;

    CHECK(count > 0);
    *out_command = (struct launch_command){.argv = NULL};
    if (strchr(words[0], '/') == NULL) {
        TRY(st, find_beside(words[0], out_command->program), done);
    } else if (strlen(words[0]) >= FS_PATH_MAX) {
        st = FAIL(STATUS_USAGE, "path '%.64s...' is too long", words[0]);
        goto done;
    } else {
        memcpy(out_command->program, words[0], strlen(words[0]) + 1);
    }
    TRY(st, mem_alloc(&out_command->argv, (size_t)count + 1, sizeof *out_command->argv), done);
    memcpy(out_command->argv, words, (size_t)count * sizeof *words);
    out_command->argv[0] = out_command->program;
done:
    return st;
}

void launcher_command_deinit(struct launch_command *command)
{
    mem_free(&command->argv);
}

bool launcher_is_foreign(const struct launch_command *command, const char *first_word)
{
    const char *name = strrchr(command->program, '/');

    return strchr(first_word, '/') != NULL && strncmp(name + 1, "holdfast-", 9) != 0;
}

const char *launcher_find_option(char *const *words, int count, const char *name)
{
    const char *value = NULL;
    size_t length = strlen(name);

    for (int i = 0; i < count; i++) {
        if (strncmp(words[i], "--", 2) != 0 || strncmp(words[i] + 2, name, length) != 0) {
            continue;
        }
        if (words[i][2 + length] == '=') {
            value = words[i] + 3 + length;
        } else if (words[i][2 + length] == '\0' && i + 1 < count) {
            value = words[i + 1];
        }
    }
    return value;
}

static void set_number(const char *name, int64_t value)
{
    char text[32];

    (void)snprintf(text, sizeof text, "%" PRId64, value);
    (void)setenv(name, text, 1);
}

static void set_environment(const struct run_dir *dir, int rank, int world_size)
{
    int threads = thread_cpu_count() / world_size;

    set_number(RUN_ENV_RANK, rank);
    set_number(RUN_ENV_WORLD_SIZE, world_size);
    set_number(RUN_ENV_LOCAL_RANK, rank);
    set_number(RUN_ENV_LOCAL_WORLD_SIZE, world_size);
    set_number(RUN_ENV_GENERATION, (int64_t)dir->generation);
    set_number(RUN_ENV_COMMITTED_STEP, dir->committed_step);
    (void)setenv(RUN_ENV_RUN_DIR, dir->path, 1);
    (void)setenv(RUN_ENV_RUN_ID, dir->run_id, 1);
    if (getenv("OMP_NUM_THREADS") == NULL) {
        set_number("OMP_NUM_THREADS", threads > 0 ? threads : 1);
    }
}

/* The child's side; ends in exec, or writes errno into `error_fd` and leaves. */
static _Noreturn void become_rank(const struct launch_command *command, const struct run_dir *dir,
                                  int rank, int world_size, pid_t agent, int out_fd, int err_fd,
                                  int error_fd)
{
    sigset_t none;
    int null_fd = open("/dev/null", O_RDONLY);

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != agent) {
        _exit(EXEC_FAILED_CODE); /* the agent died before the death signal was set */
    }
    (void)setsid();
    (void)signal(SIGPIPE, SIG_DFL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (null_fd >= 0 && dup2(null_fd, STDIN_FILENO) >= 0 && dup2(out_fd, STDOUT_FILENO) >= 0 &&
        dup2(err_fd, STDERR_FILENO) >= 0) {
        if (null_fd > STDERR_FILENO) {
            (void)close(null_fd);
        }
        set_environment(dir, rank, world_size);
        (void)execv(command->program, command->argv);
    }
    int error_number = errno;
    ssize_t told = write(error_fd, &error_number, sizeof error_number);

    _exit(told == sizeof error_number ? EXEC_FAILED_CODE : EXEC_FAILED_CODE + 1);
}

static void close_pipe(int fds[PIPE_ENDS])
{
    for (int i = 0; i < PIPE_ENDS; i++) {
        if (fds[i] >= 0) {
            (void)close(fds[i]);
            fds[i] = -1;
        }
    }
}

/* Waits until the child has exec'd (the pipe closes) or could not. */
static enum status await_exec(const struct launch_command *command, int error_fd, pid_t pid)
{
    int error_number = 0;
    ssize_t got;

    do {
        got = read(error_fd, &error_number, sizeof error_number);
    } while (got < 0 && errno == EINTR);
    if (got == 0) {
        return STATUS_OK;
    }
    (void)waitpid(pid, NULL, 0);
    errno = got == sizeof error_number ? error_number : EIO;
    return FAIL_ERRNO("cannot run '%s'", command->program);
}

enum status launcher_start(const struct launch_command *command, const struct run_dir *dir,
                           int rank, int world_size, struct launch_child *out_child)
{
    enum status st = STATUS_OK;
    int out[PIPE_ENDS] = {-1, -1}, err[PIPE_ENDS] = {-1, -1}, error[PIPE_ENDS] = {-1, -1};
    pid_t agent = getpid(), pid = -1;

    *out_child = LAUNCH_CHILD_NONE;
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0 || pipe2(error, O_CLOEXEC) != 0 ||
        fcntl(out[PIPE_READ], F_SETFL, O_NONBLOCK) != 0 ||
        fcntl(err[PIPE_READ], F_SETFL, O_NONBLOCK) != 0) {
        st = FAIL_ERRNO("cannot make the pipes of rank %d", rank);
        goto done;
    }
    pid = fork();
    if (pid < 0) {
        st = FAIL_ERRNO("cannot start rank %d", rank);
        goto done;
    }
    if (pid == 0) {
        become_rank(command, dir, rank, world_size, agent, out[PIPE_WRITE], err[PIPE_WRITE],
                    error[PIPE_WRITE]);
    }
    (void)close(error[PIPE_WRITE]);
    error[PIPE_WRITE] = -1;
    TRY(st, await_exec(command, error[PIPE_READ], pid), done);
    out_child->pidfd = pidfd_open(pid, 0);
    if (out_child->pidfd < 0) {
        st = FAIL_ERRNO("cannot watch rank %d", rank);
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
        goto done;
    }
    out_child->pid = pid;
    out_child->out_fd = out[PIPE_READ];
    out_child->err_fd = err[PIPE_READ];
    out[PIPE_READ] = -1;
    err[PIPE_READ] = -1;
done:
    close_pipe(out);
    close_pipe(err);
    close_pipe(error);
    return st;
}

void launcher_signal(const struct launch_child *child, int signal)
{
    (void)pidfd_send_signal(child->pidfd, signal, NULL, 0);
}

void launcher_kill(const struct launch_child *child)
{
    (void)pidfd_send_signal(child->pidfd, SIGKILL, NULL, 0);
    (void)kill(-child->pid, SIGKILL);
}

bool launcher_peek_exit(const struct launch_child *child, int *out_signal, int *out_code)
{
    siginfo_t info = {0};

    if (waitid(P_PIDFD, (id_t)child->pidfd, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0) {
        return false;
    }
    *out_signal = info.si_code == CLD_EXITED ? 0 : info.si_status;
    *out_code = info.si_code == CLD_EXITED ? info.si_status : 0;
    return true;
}

void launcher_reap(struct launch_child *child)
{
    if (child->pid == 0) {
        return;
    }
    (void)waitpid(child->pid, NULL, 0);
    child->pid = 0;
}

void launcher_close(struct launch_child *child)
{
    if (child->pidfd >= 0) {
        (void)close(child->pidfd);
    }
    if (child->out_fd >= 0) {
        (void)close(child->out_fd);
    }
    if (child->err_fd >= 0) {
        (void)close(child->err_fd);
    }
    *child = LAUNCH_CHILD_NONE;
}

/* SIGKILL to every child of this process. */
static void kill_children(void)
{
    char path[64];
    int pid;

    (void)snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *file = fopen(path, "re");

    if (file == NULL) {
        return; /* a kernel without it: strays are reaped when they end by themselves */
    }
    while (fscanf(file, "%d", &pid) == 1) {
        (void)kill(pid, SIGKILL);
    }
    (void)fclose(file);
}

int launcher_end_strays(int64_t timeout_ms)
{
    struct deadline deadline = deadline_in_ms(timeout_ms);
    int count = 0;

    for (;;) {
        siginfo_t info = {0};

        /* A stray's own children come to us when it dies, hence again and again. */
        kill_children();
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG) != 0) {
            return count; /* ECHILD: nobody is left */
        }
        if (info.si_pid != 0) {
            count += info.si_code == CLD_KILLED; /* others had ended by themselves */
        } else if (deadline_passed(deadline)) {
            return count;
        } else {
            clock_sleep_ms(STRAY_RETRY_MS);
        }
    }
}
