/* The rules of resume_plan.h, in their order. */
#include "recover/resume_plan.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>

static void set_plan(struct resume_plan *plan, enum resume_action action, enum status status,
                     const char *format, ...) __attribute__((format(printf, 4, 5)));

static void set_plan(struct resume_plan *plan, enum resume_action action, enum status status,
                     const char *format, ...)
{
    va_list args;

    plan->action = action;
    plan->status = status;
    plan->backoff_ms = 0;
    va_start(args, format);
    (void)vsnprintf(plan->reason, sizeof plan->reason, format, args);
    va_end(args);
}

/* Which rank it was does not matter: a bad step or a full node may strike any of them. */
static bool same_cause(const struct verdict *a, const struct verdict *b)
{
    return a->kind == b->kind && a->signal == b->signal && a->exit_code == b->exit_code &&
           a->status == b->status && a->phase == b->phase && a->step == b->step;
}

/* A fault of the program itself, as against a machine, a peer or somebody with kill(1). */
static bool is_program_fault(const struct verdict *verdict)
{
    if (verdict->kind == VERDICT_SIGNAL) {
        return verdict->signal == SIGSEGV || verdict->signal == SIGABRT ||
               verdict->signal == SIGILL || verdict->signal == SIGFPE || verdict->signal == SIGBUS;
    }
    return verdict->kind == VERDICT_EXIT && verdict->status != STATUS_PEER_LOST &&
           verdict->status != STATUS_ABORTED && status_retry_class(verdict->status) != RETRY_SAME;
}

static void count_failure(struct resume_history *history, const struct verdict *verdict,
                          int64_t committed_step)
{
    if (committed_step > history->committed_step) {
        *history = (struct resume_history){.committed_step = committed_step};
    }
    history->same_cause =
        history->failures > 0 && same_cause(&history->last, verdict) ? history->same_cause + 1 : 1;
    history->early = !verdict->any_step && is_program_fault(verdict) ? history->early + 1 : 0;
    history->failures++;
    history->last = *verdict;
}

static int64_t backoff_ms(const struct resume_history *history)
{
    int64_t wait_ms = 0;

    if (history->failures > 1) {
        int doublings = history->failures - 2 < 16 ? history->failures - 2 : 16;

        wait_ms = (int64_t)RESUME_BACKOFF_MS << doublings;
    }
    if (status_retry_class(history->last.status) == RETRY_SAME &&
        wait_ms < RESUME_BACKOFF_PLACE_MS) {
        wait_ms = RESUME_BACKOFF_PLACE_MS;
    }
    return wait_ms < RESUME_BACKOFF_MS_MAX ? wait_ms : RESUME_BACKOFF_MS_MAX;
}

/* Rules 1 and 2; false when there is something to recover from. */
static bool plan_end(const struct verdict *verdict, int64_t committed_step, bool stop_requested,
                     struct resume_plan *plan)
{
    switch (verdict->kind) {
    case VERDICT_DONE:
        set_plan(plan, RESUME_DONE, STATUS_OK, "all ranks finished");
        return true;
    case VERDICT_SAVED:
        set_plan(plan, RESUME_DONE, STATUS_STOPPED, "all ranks saved and stopped");
        return true;
    case VERDICT_ENDED:
        if (!verdict->any_step && committed_step >= 0) {
            set_plan(plan, RESUME_DONE, STATUS_STOPPED, "stopped before the first new step");
        } else {
            set_plan(plan, RESUME_DONE, STATUS_INTERRUPTED, "ended before they had saved");
        }
        return true;
    default:
        break;
    }
    if (stop_requested) {
        enum status status = verdict->status != STATUS_OK ? verdict->status : STATUS_FAILED;

        set_plan(plan, RESUME_DONE, status, "failed while it was stopping; not restarted");
        return true;
    }
    return false;
}

void resume_plan_make(struct resume_history *history, const struct verdict *verdict,
                      int64_t committed_step, int max_restarts, bool stop_requested,
                      struct resume_plan *out_plan)
{
    if (plan_end(verdict, committed_step, stop_requested, out_plan)) {
        return;
    }
    count_failure(history, verdict, committed_step);
    if (verdict->kind == VERDICT_EXIT && verdict->status != STATUS_OK &&
        status_retry_class(verdict->status) == RETRY_NEVER) {
        set_plan(out_plan, RESUME_GIVE_UP, verdict->status,
                 "%s: starting again would fail the same way", status_text(verdict->status));
    } else if (history->early >= RESUME_EARLY_MAX) {
        set_plan(out_plan, RESUME_GIVE_UP, STATUS_GAVE_UP,
                 "failed %d times before the first step: the program or its options are wrong",
                 history->early);
    } else if (history->same_cause >= RESUME_SAME_CAUSE_MAX) {
        set_plan(out_plan, RESUME_GIVE_UP, STATUS_GAVE_UP,
                 "the same failure at the same step %d times", history->same_cause);
    } else if (history->failures > max_restarts) {
        set_plan(out_plan, RESUME_GIVE_UP, STATUS_GAVE_UP,
                 "all %d restarts without a new commit are used up", max_restarts);
    } else {
        set_plan(out_plan, RESUME_RESTART, STATUS_OK, "restart %d of %d without a new commit",
                 history->failures, max_restarts);
        out_plan->backoff_ms = backoff_ms(history);
    }
}
