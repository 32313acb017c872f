/* The agent: starts the ranks of one machine, watches them, and restarts them after a failure.
 *
 * Before it: recover_main.c with a command and limits; after it: the ranks, and a report. The
 * states are drawn in agent.c. All waiting is one epoll: a death arrives by pidfd, a stop by
 * SIGCHLD, output by pipes; only silence is found by looking at the progress pages every
 * AGENT_TICK_MS.
 */
#ifndef RECOVER_AGENT_H
#define RECOVER_AGENT_H

#include <stdint.h>

#include "ckpt/base/status.h"
#include "recover/detector.h"

#define AGENT_TICK_MS 100
#define AGENT_GRACE_MS 1000      /* for ranks to leave by themselves after a failure */
#define AGENT_KILL_WAIT_MS 30000 /* for a SIGKILL to work; then the machine is broken */
#define AGENT_STOPPED_MS 1000    /* a stopped rank may be continued within this time */
#define AGENT_SAME_SIGNAL_MS 500 /* the same stop, delivered twice (a terminal, Slurm) */

struct agent_config {
    int rank_count;
    int max_restarts;    /* without a newly committed step */
    const char *run_dir; /* "": a fresh one */
    char *const *words;  /* the command, "train", "--save", ... */
    int word_count;
    int64_t start_timeout_ms; /* silence allowed in the phases start and load */
    int64_t hang_timeout_ms;  /* at most, in a step and at exit; less once learned */
    int64_t save_timeout_ms;  /* in the phases save and eval */
};

/* Runs until the ranks are done or nothing helps. OK: all ranks finished. STATUS_STOPPED: all saved
 * and stopped, start again to go on. STATUS_GAVE_UP: the budget is used up. Else the first cause's
 * status. The message names the first cause.
 * Uses the whole process: its signals, its children. */
enum status agent_run(const struct agent_config *config) STATUS_MUST_CHECK;

#endif
