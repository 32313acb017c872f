/* A drill: `holdfast run` as a child process in a temporary run folder, and its output read line by
 * line while it runs. Every wait has a deadline; a failed one fails the test with the last output.
 */
#ifndef TESTS_PROCESS_DRILL_H
#define TESTS_PROCESS_DRILL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "ckpt/base/fs.h"

#define DRILL_ARGUMENTS_MAX 64
#define DRILL_LINE_MAX 65536

struct drill {
    char parent[FS_PATH_MAX];  /* temporary; removed by drill_deinit */
    char run_dir[FS_PATH_MAX]; /* PARENT/the run, with a space in its name */
    pid_t agent;               /* 0: not running */
    int fd;                    /* stdout and stderr of the agent */
    char *text;                /* all output so far */
    size_t bytes, capacity;
    size_t read_to; /* drill_wait_line has looked at what is before */
};

void drill_init(struct drill *drill);
/* Ends what still runs. */
void drill_deinit(struct drill *drill);
/* Starts `holdfast run --run-dir RUN_DIR ARGUMENTS...`; may be called again after the end. */
void drill_start(struct drill *drill, const char *const *arguments);
/* The next line that holds `text`; later calls look behind it. Valid until the next call. */
const char *drill_wait_line(struct drill *drill, const char *text, int timeout_ms);
/* Waits for the agent's end; its exit code, or -SIGNAL. Reads the rest of the output. */
int drill_wait_exit(struct drill *drill, int timeout_ms);
/* All ranks of a generation have said that they started; their pids. */
void drill_wait_ranks(struct drill *drill, int count, pid_t *out_pids);
/* Dead or a zombie: the state letter decides, because orphans may be reaped late. */
int drill_is_gone(pid_t pid);
void drill_wait_gone(pid_t pid, int timeout_ms);

#endif
