/* Starts the ranks of one world as real processes, without an agent, and collects their ends.
 *
 * Each rank gets RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, HOLDFAST_RUN_DIR (a fresh folder),
 * HOLDFAST_RUN_ID and HOLDFAST_GENERATION, and writes stdout and stderr to one file. The ranks die
 * with this process. Failures to start are Criterion failures.
 */
#ifndef TESTS_SUPPORT_RANKS_H
#define TESTS_SUPPORT_RANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define RANKS_MAX 16
#define RANKS_ARGS_MAX 128
#define RANKS_PATH_MAX 512

struct ranks {
    int size;
    char folder[RANKS_PATH_MAX]; /* holds the run folder and rank_N.out */
    pid_t pids[RANKS_MAX];
    int exit_codes[RANKS_MAX]; /* after ranks_wait; 128 + signal for a killed one */
};

/* A command line grows word by word; the words stay the caller's. */
struct ranks_command {
    const char *words[RANKS_ARGS_MAX];
    size_t count;
    const char *run_id; /* NULL: a new one for each start */
};

void ranks_add(struct ranks_command *command, const char *const *words, size_t count);
/* words[0] is the program's path. `committed_step` is what an agent would remember; -1: nothing. */
void ranks_start(struct ranks *ranks, int size, const struct ranks_command *command,
                 long committed_step);
void ranks_signal(const struct ranks *ranks, int rank, int signal_number);
/* Waits for all; after `timeout_s` the rest are killed. */
void ranks_wait(struct ranks *ranks, int timeout_s);
/* The text of a rank so far, freed by free. */
char *ranks_output(const struct ranks *ranks, int rank);
bool ranks_all_left_with(const struct ranks *ranks, int exit_code);
/* Prints every rank's exit code and output to stderr: for a test that is about to fail. */
void ranks_dump(const struct ranks *ranks);
void ranks_remove(struct ranks *ranks); /* the folder */

#endif
