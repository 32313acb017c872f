/* What happens to the agent's ranks: deaths, stops, output, signals, beats; see agent.h.
 *
 * Before it: the kernel (pidfd, signalfd, pipes) and the progress pages; after it: detector.c and
 * log_merge.c, and the flags by which the states of agent.c go on.
 * Invariants: of one round's events deaths are noted first, in the order in which the kernel
 * reported them, so that the first that died is the first in the detector; a dead rank stays a
 * zombie here.
 */
#include "recover/agent_private.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"

#define EVENTS_MAX 256
#define READ_BYTES 65536
#define PENDING_TICK_MS 5 /* while the reader of the merged stream lags behind */

enum event_kind { EVENT_DEATH, EVENT_OUT, EVENT_ERR, EVENT_SIGNAL };

static enum status watch_fd(struct agent *agent, int fd, enum event_kind kind, int rank)
{
    struct epoll_event event = {.events = EPOLLIN,
                                .data.u64 = (uint64_t)kind << 32 | (uint32_t)rank};

    if (epoll_ctl(agent->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        return FAIL_ERRNO("cannot watch rank %d", rank);
    }
    return STATUS_OK;
}

/* ---- what ranks tell ------------------------------------------------------------------------ */

bool agent_events_read_pipe(struct agent *agent, int index, enum log_stream stream)
{
    struct launch_child *child = &agent->ranks[index].child;
    int *fd = stream == LOG_STREAM_OUT ? &child->out_fd : &child->err_fd;
    char bytes[READ_BYTES];
    ssize_t got = *fd >= 0 ? read(*fd, bytes, sizeof bytes) : -1;

    if (got > 0) {
        log_merge_feed(agent->logs, index, stream, bytes, (size_t)got);
        return true;
    }
    if (*fd >= 0 && (got == 0 || (errno != EAGAIN && errno != EINTR))) {
        log_merge_end(agent->logs, index, stream);
        (void)close(*fd);
        *fd = -1;
    }
    return false;
}

static void sample_rank(struct agent *agent, int index, int64_t now_ns)
{
    struct progress_page *page = progress_page(agent->ranks[index].progress);
    uint32_t phase = atomic_load(&page->phase);
    struct detector_sample sample = {
        .beat = atomic_load(&page->beat),
        .phase = phase < PROGRESS_PHASE_COUNT ? (enum progress_phase)phase : PROGRESS_NONE,
        .in_collective = atomic_load(&page->in_collective) != 0,
        .step = atomic_load(&page->step),
        .micro_batch = atomic_load(&page->micro_batch),
        .collective = atomic_load(&page->collective),
    };

    detector_observe(&agent->detector, index, &sample, now_ns);
    if (run_dir_note_commit(&agent->dir, atomic_load(&page->committed_step)) != STATUS_OK) {
        log_warn("the committed step is not remembered: %s", status_last()->message);
    }
}

void agent_events_sample(struct agent *agent, int64_t now_ns)
{
    detector_tick(&agent->detector, now_ns);
    for (int i = 0; i < agent->config->rank_count; i++) {
        if (agent->ranks[i].started && !agent->ranks[i].exited) {
            sample_rank(agent, i, now_ns);
        }
    }
}

/* Its own last words go before what its page says: the phase there is EXIT by now. */
static void read_failure(struct agent *agent, int index, struct detector_exit *exit)
{
    struct failure_record record;
    struct detector_rank *seen = &agent->detector.ranks[index];

    if (failure_read(agent->dir.path, index, agent->dir.generation, &record) != STATUS_OK) {
        return;
    }
    exit->status = record.status;
    seen->sample.phase = record.phase;
    seen->sample.step = record.step;
}

/* The first bad news of a generation is told at once; the verdict comes when all have left. */
static void tell_death(const struct agent *agent, int index, const struct detector_exit *exit)
{
    const struct detector_rank *seen = &agent->detector.ranks[index];
    struct verdict death = {.kind = exit->signal != 0 ? VERDICT_SIGNAL : VERDICT_EXIT,
                            .rank = index,
                            .signal = exit->signal,
                            .exit_code = exit->code,
                            .status = exit->status != STATUS_OK ? exit->status : STATUS_FAILED,
                            .phase = seen->sample.phase,
                            .step = seen->sample.step};
    char text[REPORT_CAUSE_MAX];

    report_describe(&death, agent->ranks[index].child.pid, "", text);
    log_warn("generation %" PRIu64 ": noticed: %s", agent->dir.generation, text);
}

static void note_death(struct agent *agent, int index)
{
    struct agent_rank *rank = &agent->ranks[index];
    struct detector_exit exit = {.status = STATUS_OK};

    if (!rank->started || rank->exited ||
        !launcher_peek_exit(&rank->child, &exit.signal, &exit.code)) {
        return;
    }
    rank->exited = true;
    agent->alive--;
    (void)epoll_ctl(agent->epoll_fd, EPOLL_CTL_DEL, rank->child.pidfd, NULL);
    exit.ordered = (rank->killed && exit.signal == SIGKILL) ||
                   (agent->stop_signal != 0 && exit.signal == agent->stop_signal);
    sample_rank(agent, index, clock_monotonic_ns());
    if (!detector_exit_is_clean(&exit)) {
        if (agent->noticed_ns == 0) {
            agent->noticed_ns = clock_monotonic_ns();
        }
        read_failure(agent, index, &exit);
        if (!agent->failed && !exit.ordered) {
            tell_death(agent, index, &exit);
        }
        agent->failed = true;
    }
    detector_note_exit(&agent->detector, index, &exit);
}

/* ---- signals -------------------------------------------------------------------------------- */

static void note_stops(struct agent *agent)
{
    for (int i = 0; i < agent->config->rank_count; i++) {
        struct agent_rank *rank = &agent->ranks[i];
        siginfo_t info = {0};

        if (!rank->started || rank->exited ||
            waitid(P_PID, (id_t)rank->child.pid, &info, WSTOPPED | WCONTINUED | WNOHANG) != 0 ||
            info.si_pid == 0) {
            continue;
        }
        if (info.si_code == CLD_CONTINUED) {
            log_info("rank %d (pid %d) continued", i, (int)rank->child.pid);
            detector_note_continued(&agent->detector, i, clock_monotonic_ns());
        } else {
            log_warn("rank %d (pid %d) stopped by SIG%s", i, (int)rank->child.pid,
                     sigabbrev_np(info.si_status));
            detector_note_stopped(&agent->detector, i, clock_monotonic_ns());
        }
    }
}

/* The first request is passed on, so that the ranks save; a second one ends them. */
static void request_stop(struct agent *agent, int signal)
{
    int64_t now_ns = clock_monotonic_ns();

    if (agent->stop_signal != 0) {
        bool repeated = now_ns - agent->stop_signal_ns < (int64_t)AGENT_SAME_SIGNAL_MS * 1000000;

        if (signal != SIGUSR1 && !repeated && !agent->stop_now) {
            log_warn("SIG%s again: the ranks are killed", sigabbrev_np(signal));
            agent->stop_now = true;
        }
        return;
    }
    log_info("SIG%s: passed on to %d ranks, which save and stop; again to kill them",
             sigabbrev_np(signal), agent->alive);
    agent->stop_signal = signal;
    agent->stop_signal_ns = now_ns;
    for (int i = 0; i < agent->config->rank_count; i++) {
        if (agent->ranks[i].started && !agent->ranks[i].exited) {
            launcher_signal(&agent->ranks[i].child, signal);
        }
    }
}

static void read_signals(struct agent *agent)
{
    struct signalfd_siginfo info;

    while (read(agent->signal_fd, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGCHLD) {
            note_stops(agent);
        } else {
            request_stop(agent, (int)info.ssi_signo);
        }
    }
}

enum status agent_events_wait(struct agent *agent, int wait_ms)
{
    struct epoll_event events[EVENTS_MAX];

    if (log_merge_pending(agent->logs) && wait_ms > PENDING_TICK_MS) {
        wait_ms = PENDING_TICK_MS;
    }
    int count = epoll_wait(agent->epoll_fd, events, EVENTS_MAX, wait_ms);

    if (count < 0 && errno != EINTR) {
        return FAIL_ERRNO("cannot wait for the ranks");
    }
    for (int i = 0; i < count; i++) {
        if (events[i].data.u64 >> 32 == EVENT_DEATH) {
            note_death(agent, (int)(uint32_t)events[i].data.u64);
        }
    }
    for (int i = 0; i < count; i++) {
        int rank = (int)(uint32_t)events[i].data.u64;

        switch ((enum event_kind)(events[i].data.u64 >> 32)) {
        case EVENT_OUT:
            (void)agent_events_read_pipe(agent, rank, LOG_STREAM_OUT);
            break;
        case EVENT_ERR:
            (void)agent_events_read_pipe(agent, rank, LOG_STREAM_ERR);
            break;
        case EVENT_SIGNAL:
            read_signals(agent);
            break;
        case EVENT_DEATH:
            break;
        }
    }
    log_merge_flush(agent->logs);
    return STATUS_OK;
}

/* ---- what is watched ------------------------------------------------------------------------ */

enum status agent_events_open(struct agent *agent)
{
    static const int taken[] = {SIGCHLD, SIGTERM, SIGINT, SIGUSR1};
    sigset_t signals;

    (void)sigemptyset(&signals);
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
        (void)sigaddset(&signals, taken[i]);
    }
    (void)sigprocmask(SIG_BLOCK, &signals, NULL);
    (void)signal(SIGPIPE, SIG_IGN); /* whoever read our output may leave; the run goes on */
    agent->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    agent->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (agent->signal_fd < 0 || agent->epoll_fd < 0) {
        return FAIL_ERRNO("cannot watch for signals");
    }
    return watch_fd(agent, agent->signal_fd, EVENT_SIGNAL, 0);
}

void agent_events_close(struct agent *agent)
{
    if (agent->epoll_fd >= 0) {
        (void)close(agent->epoll_fd);
    }
    if (agent->signal_fd >= 0) {
        (void)close(agent->signal_fd);
    }
    agent->epoll_fd = -1;
    agent->signal_fd = -1;
}

enum status agent_events_add_rank(struct agent *agent, int index)
{
    enum status st = STATUS_OK;
    const struct launch_child *child = &agent->ranks[index].child;

    TRY(st, watch_fd(agent, child->pidfd, EVENT_DEATH, index), done);
    TRY(st, watch_fd(agent, child->out_fd, EVENT_OUT, index), done);
    TRY(st, watch_fd(agent, child->err_fd, EVENT_ERR, index), done);
done:
    return st;
}
