/* The resume plan: restart, give up, or done. Pure.
 *
 * Before it: the detector's verdict and what is known to be committed. After it: agent.c does it.
 *
 * Rules, the first that fits:
 *   1. all ranks left well: done, with 0 or with STOPPED (75); ended by the agent's order before
 *      they had saved: INTERRUPTED (130), unless they had not done anything yet;
 *   2. the agent was asked to stop: done, no restart;
 *   3. the cause's status says that it would fail again the same way (RETRY_NEVER: usage, options,
 *      no checkpoint, not the owner, corrupt ...): done with that status;
 *   4. no step was completed in this generation and the rank failed by a fault of the program:
 *      one retry, then give up (the code or its configuration is wrong);
 *   5. the same cause at the same step RESUME_SAME_CAUSE_MAX times: give up;
 *   6. more than max_restarts restarts without a newly committed step: give up;
 *   7. restart, after a pause that grows while nothing is committed.
 * A newly committed step clears the counts of 4, 5 and 6.
 */
#ifndef RECOVER_RESUME_PLAN_H
#define RECOVER_RESUME_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "recover/detector.h"

#define RESUME_SAME_CAUSE_MAX 3
#define RESUME_EARLY_MAX 2    /* failures before the first step */
#define RESUME_BACKOFF_MS 100 /* after the second failure; doubles from there */
#define RESUME_BACKOFF_MS_MAX 10000
#define RESUME_BACKOFF_PLACE_MS 1000 /* at least, for what may pass: no space, no memory */
#define RESUME_REASON_MAX 256

enum resume_action { RESUME_RESTART, RESUME_GIVE_UP, RESUME_DONE };

struct resume_plan {
    enum resume_action action;
    enum status status; /* what the agent ends with, unless RESTART */
    int64_t backoff_ms;
    char reason[RESUME_REASON_MAX]; /* "2 of 3 restarts without a new commit" */
};

/* What earlier verdicts left; starts as {.committed_step = what is known at the start}. */
struct resume_history {
    int64_t committed_step; /* -1: none */
    int failures;           /* since that step was committed */
    int same_cause;
    int early;
    struct verdict last; /* of failures > 0 */
};

/* committed_step: the newest one known now; -1: none. */
void resume_plan_make(struct resume_history *history, const struct verdict *verdict,
                      int64_t committed_step, int max_restarts, bool stop_requested,
                      struct resume_plan *out_plan);

#endif
