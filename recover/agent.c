/* The agent's states; see agent.h.
 *
 *               restart_ranks               a rank failed: watch_ranks
 *     RESTART --------------------> WATCH ------------------------------------------> STOP
 *        ^                          |   ^                                              ^ |
 *        |       silent or stopped: |   | a debugger holds it:                         | |
 *        |              watch_ranks v   | suspect_rank                                 | |
 *        |                        SUSPECT ---------------------------------------------+ |
 *        |                                 evidence taken, culprit killed: suspect_rank  |
 *        |                                                                               |
 *        | a plan to restart: plan_resume                    all ranks gone: stop_ranks  |
 *        +------------------------------------ PLAN <------------------------------------+
 *                                                |
 *                                                | done, or nothing helps: plan_resume
 *                                                v
 *                                               END
 *
 * Before it: recover_main.c. What happens to the ranks comes from agent_events.c, what it means
 * from detector.c, what to do from resume_plan.c; launcher.c does it.
 * Invariants: a new generation starts only when every process of the old one has been reaped; a
 * rank's number (pid) is used only while it is unreaped; ranks that have left are told apart by who
 * ended them (agent_rank.killed).
 */
#include "recover/agent_private.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/meta/catalog.h"
#include "recover/evidence.h"

#define STRAYS_WAIT_MS 2000
#define DRAIN_MS 2000
#define LAST_LINES_MS 500
#define ERROR_WAIT_MS 2000 /* for ranks to die when the agent itself has failed */
#define STEP_UNKNOWN (-1)

/* ---- WATCH ---------------------------------------------------------------------------------- */

static enum status watch_ranks(struct agent *agent)
{
    enum status st = STATUS_OK;
    struct deadline look = {agent->next_look_ns};

    TRY(st, agent_events_wait(agent, deadline_left_ms(look)), done);
    if (agent->failed || agent->alive == 0 || agent->stop_now) {
        agent->state = AGENT_STOP;
        goto done;
    }
    if (deadline_passed(look)) {
        int64_t now_ns = clock_monotonic_ns();

        agent_events_sample(agent, now_ns);
        agent->next_look_ns = deadline_in_ms(AGENT_TICK_MS).at_ns;
        if (detector_suspect(&agent->detector, now_ns, &agent->suspect)) {
            agent->state = AGENT_SUSPECT;
        }
    }
done:
    return st;
}

/* ---- SUSPECT -------------------------------------------------------------------------------- */

static void suspect_rank(struct agent *agent)
{
    int index = agent->suspect.rank;
    struct agent_rank *rank = &agent->ranks[index];
    char text[REPORT_CAUSE_MAX];

    bool traced = evidence_is_traced(rank->child.pid);

    if (traced || rank->traced) {
        if (!rank->traced) {
            log_info("rank %d (pid %d) stands still in a debugger; it is left alone", index,
                     (int)rank->child.pid);
        }
        rank->traced = traced; /* one that has just been let go gets its whole time too */
        detector_excuse(&agent->detector, index, clock_monotonic_ns());
        agent->state = AGENT_WATCH;
        return;
    }
    evidence_collect(rank->child.pid, agent->evidence, sizeof agent->evidence);
    report_describe(&agent->suspect, rank->child.pid, "", text);
    log_warn("generation %" PRIu64 ": noticed: %s; %s; killing it", agent->dir.generation, text,
             agent->evidence);
    detector_convict(&agent->detector, &agent->suspect);
    agent->noticed_ns = clock_monotonic_ns();
    agent->failed = true;
    rank->killed = true;
    launcher_kill(&rank->child);
    agent->state = AGENT_STOP;
}

/* ---- STOP ----------------------------------------------------------------------------------- */

static void kill_ranks(struct agent *agent)
{
    for (int i = 0; i < agent->config->rank_count; i++) {
        struct agent_rank *rank = &agent->ranks[i];

        if (rank->started && !rank->exited) {
            rank->killed = true;
            launcher_kill(&rank->child);
        }
    }
}

/* A rank that cannot be killed (uninterruptible I/O) could still write beside its successor. */
static enum status fail_unkillable(struct agent *agent)
{
    for (int i = 0; i < agent->config->rank_count; i++) {
        const struct agent_rank *rank = &agent->ranks[i];

        if (rank->started && !rank->exited) {
            evidence_collect(rank->child.pid, agent->evidence, sizeof agent->evidence);
            return FAIL(STATUS_TIMEOUT,
                        "rank %d (pid %d) cannot be killed (%s); this machine "
                        "needs a look before the run can go on here",
                        i, (int)rank->child.pid, agent->evidence);
        }
    }
    return STATUS_OK;
}

/* Everything dead is reaped, what the ranks left running is ended, their last output is read. */
static void reap_ranks(struct agent *agent)
{
    for (int i = 0; i < agent->config->rank_count; i++) {
        if (agent->ranks[i].started) {
            launcher_kill(&agent->ranks[i].child);
        }
    }
    for (int i = 0; i < agent->config->rank_count; i++) {
        if (agent->ranks[i].exited) {
            launcher_reap(&agent->ranks[i].child);
        }
    }
    int strays = launcher_end_strays(STRAYS_WAIT_MS);

    if (strays > 0) {
        log_info("%d processes that ranks had left behind were ended", strays);
    }
    for (int i = 0; i < agent->config->rank_count; i++) {
        struct agent_rank *rank = &agent->ranks[i];

        for (int stream = 0; rank->started && stream < LOG_STREAM_COUNT; stream++) {
            while (agent_events_read_pipe(agent, i, (enum log_stream)stream)) {
            }
            log_merge_end(agent->logs, i, (enum log_stream)stream);
        }
        launcher_close(&rank->child);
        progress_close(&rank->progress);
        rank->started = false;
    }
    log_merge_drain(agent->logs, LAST_LINES_MS); /* before this agent's verdict on them */
}

static enum status stop_ranks(struct agent *agent)
{
    enum status st = STATUS_OK;
    struct deadline grace = deadline_in_ms(agent->failed ? AGENT_GRACE_MS : 0);

    while (agent->alive > 0 && !agent->stop_now && !deadline_passed(grace)) {
        TRY(st, agent_events_wait(agent, deadline_left_ms(grace)), done);
    }
    agent_events_sample(agent, clock_monotonic_ns());
    detector_note_order(&agent->detector,
                        agent->noticed_ns != 0 ? agent->noticed_ns : clock_monotonic_ns());
    kill_ranks(agent);
    struct deadline gone = deadline_in_ms(AGENT_KILL_WAIT_MS);

    while (agent->alive > 0) {
        if (deadline_passed(gone)) {
            TRY(st, fail_unkillable(agent), done);
        }
        TRY(st, agent_events_wait(agent, deadline_left_ms(gone)), done);
    }
    agent->state = AGENT_PLAN;
done:
    return st;
}

/* ---- PLAN ----------------------------------------------------------------------------------- */

/* The step that the trainer will resume from: the newest usable one where it looks, which is its
 * --load until this run has committed something, then its --save. Without either it is the newest
 * committed one. */
static int64_t find_resume_step(struct agent *agent)
{
    const struct agent_config *config = agent->config;
    const char *load = launcher_find_option(config->words, config->word_count, "load");
    const char *save = launcher_find_option(config->words, config->word_count, "save");
    const char *directory = agent->dir.committed_step >= 0 && save != NULL ? save : load;
    struct catalog catalog;
    int64_t step = STEP_UNKNOWN;

    if (directory == NULL) {
        return agent->dir.committed_step;
    }
    if (catalog_scan(fs_posix(), directory, &catalog) != STATUS_OK) {
        log_warn("cannot tell which checkpoint will be used: %s", status_last()->message);
        return agent->dir.committed_step;
    }
    const struct catalog_entry *entry = catalog_choose(&catalog, UINT64_MAX);

    if (entry != NULL) {
        step = (int64_t)entry->step;
    }
    /* A rank may have died between this run's commit and telling so. */
    if (entry != NULL && strcmp(entry->manifest.run_id, agent->dir.run_id) == 0 &&
        run_dir_note_commit(&agent->dir, step) != STATUS_OK) {
        log_warn("the committed step is not remembered: %s", status_last()->message);
    }
    catalog_deinit(&catalog);
    return step;
}

static void tell_last_lines(const struct agent *agent, int rank)
{
    const char *line;
    char path[FS_PATH_MAX];

    run_dir_log_path(agent->dir.path, agent->dir.generation, rank, path);
    if (log_merge_tail(agent->logs, rank, 0) != NULL) {
        log_info("last lines of rank %d, from '%s':", rank, path);
    }
    for (int i = 0; (line = log_merge_tail(agent->logs, rank, i)) != NULL; i++) {
        log_info("    %s", line);
    }
}

static void fill_incident(struct agent *agent, struct incident *incident)
{
    struct failure_record record;
    int rank = incident->verdict.rank;

    incident->wall_ns = clock_wall_ns();
    incident->detector = &agent->detector;
    incident->notice_to_end_ms = (clock_monotonic_ns() - agent->noticed_ns) / 1000000;
    (void)snprintf(incident->evidence, sizeof incident->evidence, "%s", agent->evidence);
    if (rank < 0) {
        return;
    }
    incident->pid = agent->ranks[rank].child.pid;
    if (failure_read(agent->dir.path, rank, agent->dir.generation, &record) == STATUS_OK) {
        (void)snprintf(incident->message, sizeof incident->message, "%s", record.message);
    }
}

/* "generation 2: rank 1 (pid 7) killed by signal 9 (SIGKILL) in phase step at step 17; 3 others
 * stopped; resuming from step 10" */
static void tell_restart(const struct agent *agent, const struct incident *incident)
{
    char from[64] = "starting again at step 0";

    if (incident->resume_step >= 0) {
        (void)snprintf(from, sizeof from, "resuming from step %" PRId64, incident->resume_step);
    }
    log_warn("generation %" PRIu64 ": %s; %d others stopped; %s (%s)", agent->dir.generation + 1,
             agent->why, agent->config->rank_count - 1, from, agent->plan.reason);
}

static void report_incident(struct agent *agent, struct incident *incident)
{
    report_describe(&incident->verdict, incident->pid, incident->message, agent->why);
    if (agent->history.failures <= 1) {
        (void)snprintf(agent->first_cause, sizeof agent->first_cause, "%s", agent->why);
    }
    incident->plan = agent->plan;
    if (report_append(&agent->dir, incident) != STATUS_OK) {
        log_warn("the incident is not recorded: %s", status_last()->message);
    }
    if (incident->verdict.rank >= 0) {
        tell_last_lines(agent, incident->verdict.rank);
    }
    if (agent->plan.action == RESUME_RESTART) {
        tell_restart(agent, incident);
    }
}

static void plan_resume(struct agent *agent)
{
    struct incident incident = {.resume_step = STEP_UNKNOWN};
    struct verdict *verdict = &incident.verdict;

    detector_judge(&agent->detector, verdict);
    fill_incident(agent, &incident);
    reap_ranks(agent);
    incident.resume_step = find_resume_step(agent);
    resume_plan_make(&agent->history, verdict, agent->dir.committed_step,
                     agent->config->max_restarts, agent->stop_signal != 0, &agent->plan);
    if (verdict->kind == VERDICT_DONE || verdict->kind == VERDICT_SAVED) {
        log_info("generation %" PRIu64 ": %s; newest committed step %" PRId64,
                 agent->dir.generation, agent->plan.reason, agent->dir.committed_step);
    } else {
        report_incident(agent, &incident);
    }
    agent->state = agent->plan.action == RESUME_RESTART ? AGENT_RESTART : AGENT_END;
}

/* ---- RESTART -------------------------------------------------------------------------------- */

/* Asked to stop while no rank runs: whatever is committed is all there is. */
static void end_between_generations(struct agent *agent)
{
    agent->plan.action = RESUME_DONE;
    agent->plan.status = agent->dir.committed_step >= 0 ? STATUS_STOPPED : STATUS_INTERRUPTED;
    (void)snprintf(agent->plan.reason, sizeof agent->plan.reason, "stopped between generations");
    agent->state = AGENT_END;
}

static enum status start_rank(struct agent *agent, int index)
{
    enum status st = STATUS_OK;
    struct agent_rank *rank = &agent->ranks[index];

    *rank = (struct agent_rank){.child = LAUNCH_CHILD_NONE};
    TRY(st, progress_create(agent->dir.path, index, agent->dir.generation, &rank->progress), done);
    TRY(st,
        launcher_start(&agent->command, &agent->dir, index, agent->config->rank_count,
                       &rank->child),
        done);
    rank->started = true;
    agent->alive++;
    log_info("generation %" PRIu64 ": rank %d of %d started, pid %d", agent->dir.generation, index,
             agent->config->rank_count, (int)rank->child.pid);
    TRY(st, agent_events_add_rank(agent, index), done);
done:
    return st;
}

static enum status wait_backoff(struct agent *agent)
{
    enum status st = STATUS_OK;
    struct deadline pause = deadline_in_ms(agent->plan.backoff_ms);

    do {
        TRY(st, agent_events_wait(agent, deadline_left_ms(pause)), done);
    } while (agent->stop_signal == 0 && !deadline_passed(pause));
done:
    return st;
}

static enum status restart_ranks(struct agent *agent)
{
    enum status st = STATUS_OK;

    TRY(st, wait_backoff(agent), done);
    if (agent->stop_signal != 0) {
        end_between_generations(agent);
        goto done;
    }
    TRY(st, run_dir_begin_generation(&agent->dir), done);
    detector_deinit(&agent->detector);
    TRY(st,
        detector_init(&agent->detector, agent->config->rank_count, &agent->limits,
                      agent->dir.committed_step, clock_monotonic_ns()),
        done);
    log_merge_begin(agent->logs, agent->dir.generation);
    agent->failed = false;
    agent->noticed_ns = 0;
    agent->evidence[0] = '\0';
    agent->next_look_ns = 0;
    for (int i = 0; i < agent->config->rank_count; i++) {
        TRY(st, start_rank(agent, i), done);
    }
    agent->state = AGENT_WATCH;
done:
    return st;
}

/* ---- the whole ------------------------------------------------------------------------------ */

static void set_limits(struct agent *agent)
{
    const struct agent_config *config = agent->config;
    int64_t *silent_ms = agent->limits.silent_ms;

    agent->limits.stopped_ms = AGENT_STOPPED_MS;
    /* Another program than ours may never use its page: only its exit counts then. */
    silent_ms[PROGRESS_NONE] =
        launcher_is_foreign(&agent->command, config->words[0]) ? 0 : config->start_timeout_ms;
    silent_ms[PROGRESS_START] = config->start_timeout_ms;
    silent_ms[PROGRESS_LOAD] = config->start_timeout_ms;
    silent_ms[PROGRESS_STEP] = config->hang_timeout_ms;
    silent_ms[PROGRESS_EXIT] = config->hang_timeout_ms;
    silent_ms[PROGRESS_SAVE] = config->save_timeout_ms;
    silent_ms[PROGRESS_EVAL] = config->save_timeout_ms;
}

static enum status open_agent(struct agent *agent)
{
    enum status st = STATUS_OK;
    const struct agent_config *config = agent->config;

    TRY(st, launcher_resolve(config->words, config->word_count, &agent->command), done);
    set_limits(agent);
    TRY(st, launcher_init(), done);
    TRY(st, run_dir_open(config->run_dir, &agent->dir), done);
    agent->history.committed_step = agent->dir.committed_step;
    TRY(st, mem_alloc(&agent->ranks, (size_t)config->rank_count, sizeof *agent->ranks), done);
    for (int i = 0; i < config->rank_count; i++) {
        agent->ranks[i].child = LAUNCH_CHILD_NONE;
    }
    TRY(st, log_merge_create(STDOUT_FILENO, agent->dir.path, config->rank_count, &agent->logs),
        done);
    TRY(st, agent_events_open(agent), done);
    log_info("run '%s' in '%s', %d ranks of '%s'", agent->dir.run_id, agent->dir.path,
             config->rank_count, agent->command.program);
done:
    return st;
}

static void close_agent(struct agent *agent)
{
    for (int i = 0; agent->ranks != NULL && i < agent->config->rank_count; i++) {
        progress_close(&agent->ranks[i].progress);
    }
    detector_deinit(&agent->detector);
    if (agent->logs != NULL) {
        log_merge_drain(agent->logs, DRAIN_MS);
    }
    log_merge_destroy(&agent->logs);
    mem_free(&agent->ranks);
    launcher_command_deinit(&agent->command);
    agent_events_close(agent);
    run_dir_close(&agent->dir);
}

/* What agent_run says of a run that is over; the words end with the first cause. */
static enum status tell_end(const struct agent *agent)
{
    enum status status = agent->plan.status;
    int64_t step = agent->dir.committed_step;

    if (status == STATUS_OK) {
        return STATUS_OK;
    }
    if (status == STATUS_INTERRUPTED && agent->stop_signal != 0) {
        return FAIL(
            status,
            "interrupted by SIG%s before the ranks had saved; newest committed step %" PRId64,
            sigabbrev_np(agent->stop_signal), step);
    }
    if (status == STATUS_STOPPED) {
        return FAIL(status,
                    "stopped; newest committed step %" PRId64
                    "; start the same command again to go on",
                    step);
    }
    return FAIL(status, "%s; newest committed step %" PRId64 "; first cause: %s",
                agent->plan.reason, step,
                agent->first_cause[0] != '\0' ? agent->first_cause : agent->why);
}

static enum status run_states(struct agent *agent)
{
    enum status st = STATUS_OK;

    while (agent->state != AGENT_END) {
        switch (agent->state) {
        case AGENT_RESTART:
            TRY(st, restart_ranks(agent), done);
            break;
        case AGENT_WATCH:
            TRY(st, watch_ranks(agent), done);
            break;
        case AGENT_SUSPECT:
            suspect_rank(agent);
            break;
        case AGENT_STOP:
            TRY(st, stop_ranks(agent), done);
            break;
        case AGENT_PLAN:
            plan_resume(agent);
            break;
        case AGENT_END:
            break;
        }
    }
    st = tell_end(agent);
done:
    return st;
}

/* After an error of the agent's own: no rank stays behind. One that cannot be killed gets its death
 * signal when this process ends. */
static void end_ranks(struct agent *agent)
{
    struct status_record cause;
    struct deadline gone = deadline_in_ms(ERROR_WAIT_MS);

    status_take(&cause);
    kill_ranks(agent);
    while (agent->alive > 0 && !deadline_passed(gone) &&
           agent_events_wait(agent, deadline_left_ms(gone)) == STATUS_OK) {
    }
    reap_ranks(agent);
    (void)status_give(&cause);
}

enum status agent_run(const struct agent_config *config)
{
    enum status st = STATUS_OK;
    struct agent agent = {.config = config, .epoll_fd = -1, .signal_fd = -1};

    TRY(st, open_agent(&agent), done);
    st = run_states(&agent);
    if (agent.alive > 0) {
        end_ranks(&agent);
    }
done:
    close_agent(&agent);
    return st;
}
