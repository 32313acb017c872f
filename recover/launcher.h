/* The launcher: starts rank processes, and sees to it that none is left over.
 *
 * Before it: agent.c with the words of a command; after it: the ranks, which read their place from
 * the environment (ckpt/meta/run_env.h).
 *
 * A rank gets its own session (so that a terminal's ^C reaches only the agent, and that the whole
 * group can be killed at once), stdin from /dev/null, two pipes for stdout and stderr, and SIGKILL
 * as parent-death signal. Processes that a rank leaves behind become children of this process
 * (subreaper) and are killed by launcher_end_strays; this holds because the agent starts no other
 * processes than ranks.
 * A rank that has died stays a zombie until launcher_reap, so that its number cannot be reused
 * while somebody may still send a signal to it. Threads: the one that called launcher_init.
 */
#ifndef RECOVER_LAUNCHER_H
#define RECOVER_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"
#include "recover/run_dir.h"

#define LAUNCHER_RANKS_MAX 512

/* What is run: argv[0] replaced by a path. */
struct launch_command {
    char program[FS_PATH_MAX];
    char **argv; /* NULL-terminated; argv[0] is `program` */
};

struct launch_child {
    pid_t pid;          /* 0: none */
    int pidfd;          /* readable when it has died */
    int out_fd, err_fd; /* non-blocking read ends; -1: closed */
};

#define LAUNCH_CHILD_NONE ((struct launch_child){.pidfd = -1, .out_fd = -1, .err_fd = -1})

/* Makes this process the subreaper and lets it open enough files. */
enum status launcher_init(void) STATUS_MUST_CHECK;
/* words[0] with a '/' is any program; else the holdfast command words[0] ("train" is the program
 * holdfast-train beside this one). The words must outlive the command. */
enum status launcher_resolve(char *const *words, int count, struct launch_command *out_command)
    STATUS_MUST_CHECK;
void launcher_command_deinit(struct launch_command *command);
/* Whether it is a program that need not know the progress page. */
bool launcher_is_foreign(const struct launch_command *command, const char *first_word);
/* The value of "--NAME value" or "--NAME=value" among the words, the last one given; NULL: none. */
const char *launcher_find_option(char *const *words, int count, const char *name);

/* Starts rank `rank` of `world_size`. A program that cannot be run is an error
 * here, not an exit. */
enum status launcher_start(const struct launch_command *command, const struct run_dir *dir,
                           int rank, int world_size, struct launch_child *out_child)
    STATUS_MUST_CHECK;
/* Sends `signal` to the rank alone. */
void launcher_signal(const struct launch_child *child, int signal);
/* SIGKILL to the rank and its whole process group, dead or alive. */
void launcher_kill(const struct launch_child *child);
/* How a dead rank ended; it stays a zombie. `false` when it lives. */
bool launcher_peek_exit(const struct launch_child *child, int *out_signal, int *out_code);
/* Reaps a dead rank (its number is free from then on); its pipes stay readable. */
void launcher_reap(struct launch_child *child);
/* Closes what is open. Takes LAUNCH_CHILD_NONE too. */
void launcher_close(struct launch_child *child);
/* Kills and reaps whatever descendants are left, for at most timeout_ms; how many lived. */
int launcher_end_strays(int64_t timeout_ms);

#endif
