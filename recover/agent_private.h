/* What agent.c and agent_events.c share: the agent's whole state. Not for others. */
#ifndef RECOVER_AGENT_PRIVATE_H
#define RECOVER_AGENT_PRIVATE_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/base/status.h"
#include "ckpt/meta/run_env.h"
#include "recover/agent.h"
#include "recover/detector.h"
#include "recover/launcher.h"
#include "recover/log_merge.h"
#include "recover/report.h"
#include "recover/resume_plan.h"
#include "recover/run_dir.h"

enum agent_state { AGENT_RESTART, AGENT_WATCH, AGENT_SUSPECT, AGENT_STOP, AGENT_PLAN, AGENT_END };

struct agent_rank {
    struct launch_child child;
    struct progress *progress;
    bool started;
    bool exited; /* noted; a zombie until stop_ranks reaps it */
    bool killed; /* this agent sent it SIGKILL */
    bool traced; /* a debugger held it when it was last suspected */
};

struct agent {
    const struct agent_config *config;
    struct launch_command command;
    struct detector_limits limits;
    struct run_dir dir;
    struct agent_rank *ranks;
    struct detector detector;
    struct log_merge *logs;
    struct resume_history history;
    int epoll_fd, signal_fd;
    enum agent_state state;
    int alive;              /* ranks started and not exited */
    bool failed;            /* a rank left otherwise than well */
    int64_t noticed_ns;     /* when; 0: not yet */
    int64_t next_look_ns;   /* at the progress pages */
    struct verdict suspect; /* in SUSPECT */
    char evidence[REPORT_EVIDENCE_MAX];
    struct resume_plan plan;            /* after PLAN */
    char why[REPORT_CAUSE_MAX];         /* the last verdict in words */
    char first_cause[REPORT_CAUSE_MAX]; /* of the failures since the last commit */
    int stop_signal;                    /* 0: not asked to stop */
    int64_t stop_signal_ns;
    bool stop_now; /* asked twice */
};

/* Signals and epoll of this process; agent_events_close takes what was not opened (-1) too. */
enum status agent_events_open(struct agent *agent) STATUS_MUST_CHECK;
void agent_events_close(struct agent *agent);
/* Watches a rank that has been started. */
enum status agent_events_add_rank(struct agent *agent, int index) STATUS_MUST_CHECK;
/* One round of waiting, for at most wait_ms; notes deaths, stops, output and requests to stop. */
enum status agent_events_wait(struct agent *agent, int wait_ms) STATUS_MUST_CHECK;
/* Reads the progress pages of all living ranks. */
void agent_events_sample(struct agent *agent, int64_t now_ns);
/* Reads what a pipe holds, once; false when there is nothing, or no more. */
bool agent_events_read_pipe(struct agent *agent, int index, enum log_stream stream);

#endif
