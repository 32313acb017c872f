/* The detector: what progress pages and exits, seen over time, say about the ranks. Pure: the
 * caller brings the observations and the time; no clock, no process, no file is touched here.
 *
 * Before it: agent.c, which samples the pages and reaps the ranks. After it: resume_plan.c.
 *
 * Hangs. A rank lives as long as its beat moves; ranks that wait in a collective for a missing
 * peer beat too, so the silent one is the stuck one. How long a beat may stand still depends on
 * the phase; for PROGRESS_STEP it is learned from the slowest step of this generation. Should the
 * waiting ones be silent as well, or all beat while nothing advances (a rank skipped a collective),
 * the one outside of collectives, or behind in their count, is named.
 *
 * Deaths. Each rank that left gets a role: clean, initiating (the first cause), cascade (left
 * because a peer had gone) or teardown (ended by this agent's order). The first cause is the
 * earliest of the strongest kind: own faults before time-outs and early leaves, these before ranks
 * that only report a lost peer. When nobody who left can be it, and a rank that had to be killed
 * had been silent or stopped, it is the one.
 *
 * Order: init; observe and note_* as things happen; suspect while ranks live; convict before the
 * culprit is killed; judge when all have left. One detector is one generation.
 */
#ifndef RECOVER_DETECTOR_H
#define RECOVER_DETECTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/base/status.h"
#include "ckpt/meta/run_env.h"

/* A step may be silent for max(FLOOR, FACTOR x slowest step), at most its phase's limit, once
 * STEPS_LEARNED steps have been timed. */
#define DETECTOR_STEP_FLOOR_MS 2500
#define DETECTOR_STEP_FACTOR 4
#define DETECTOR_STEPS_LEARNED 2
/* Silent for so long when the others had gone: a suspect when no exit explains them. */
#define DETECTOR_HIDDEN_SILENCE_MS 1000
/* When the observer itself did not run for so long, that time counts against nobody. */
#define DETECTOR_BLIND_MS 1000

struct detector_limits {
    int64_t silent_ms[PROGRESS_PHASE_COUNT]; /* 0: no limit */
    int64_t stopped_ms;                      /* a stopped process that does not go on */
};

/* A progress page, read once. */
struct detector_sample {
    uint64_t beat;
    enum progress_phase phase;
    bool in_collective;
    uint64_t step, micro_batch, collective;
};

/* How a rank left. */
struct detector_exit {
    int signal; /* 0: it left by itself, with `code` */
    int code;
    bool ordered;       /* it died of a signal that this agent sent */
    enum status status; /* of its failure record; STATUS_OK: it left none */
};

enum detector_role {
    DETECTOR_RUNNING,
    DETECTOR_CLEAN,
    DETECTOR_INITIATING,
    DETECTOR_CASCADE,
    DETECTOR_TEARDOWN
};

enum verdict_kind {
    VERDICT_DONE,  /* all left with 0 */
    VERDICT_SAVED, /* all left with 0 or 75, at least one with 75 */
    VERDICT_ENDED, /* nobody failed, but some were ended by the agent's order */
    VERDICT_SIGNAL,
    VERDICT_EXIT,
    VERDICT_STOPPED, /* stopped (SIGSTOP) and not continued */
    VERDICT_SILENT,
    VERDICT_STALLED /* all beat, none advances, and this one is behind */
};

struct verdict {
    enum verdict_kind kind;
    int rank;                  /* the initiating one; -1 for the first three kinds */
    int signal, exit_code;     /* of SIGNAL; of EXIT */
    enum status status;        /* of its failure record, or what its exit code stands for */
    enum progress_phase phase; /* where it was */
    uint64_t step;
    bool any_step;     /* some rank completed a step in this generation */
    int64_t silent_ms; /* of STOPPED, SILENT and STALLED */
    int cascade_count, teardown_count;
};

struct detector_rank {
    struct detector_sample sample;
    bool seen;                  /* `sample` is one */
    int64_t beat_ns;            /* when the beat last moved */
    int64_t advance_ns;         /* when anything but the beat last moved */
    int64_t step_ns;            /* when the step under way began; 0: unknown */
    int64_t stopped_ns;         /* 0: it is not stopped */
    int64_t silent_at_order_ms; /* how long it had been silent when the agent ended the rest */
    bool stopped_at_order;
    bool exited;
    int exit_order; /* 0 is the first that left */
    struct detector_exit exit;
    enum detector_role role; /* after detector_judge */
};

struct detector {
    struct detector_limits limits;
    struct detector_rank *ranks;
    int rank_count;
    int exit_count;
    int64_t observed_ns; /* the last detector_tick */
    int64_t slowest_step_ns;
    uint64_t steps_timed;
    int64_t base_step; /* where this generation begins; -1: no step seen yet */
    bool any_step;
    bool convicted;
    struct verdict conviction;
};

/* base_step: the step that this generation resumes from; -1: unknown, the first one seen then. */
enum status detector_init(struct detector *detector, int rank_count,
                          const struct detector_limits *limits, int64_t base_step, int64_t now_ns)
    STATUS_MUST_CHECK;
void detector_deinit(struct detector *detector);

/* Before each round of observations: forgives the time in which the observer did not run. */
void detector_tick(struct detector *detector, int64_t now_ns);
void detector_observe(struct detector *detector, int rank, const struct detector_sample *sample,
                      int64_t now_ns);
void detector_note_stopped(struct detector *detector, int rank, int64_t now_ns);
void detector_note_continued(struct detector *detector, int rank, int64_t now_ns);
/* Calls in the order in which the ranks left. */
void detector_note_exit(struct detector *detector, int rank, const struct detector_exit *exit);
/* The agent is about to kill whoever is left. */
void detector_note_order(struct detector *detector, int64_t now_ns);

/* Exit codes 0 and 75 (saved and stopped) are no failures. */
bool detector_exit_is_clean(const struct detector_exit *exit);
/* How long the rank's beat may stand still now; 0: no limit. */
int64_t detector_silence_limit_ms(const struct detector *detector, int rank);
/* Whether a living rank hangs, and which; the first cause as far as it is known. */
bool detector_suspect(const struct detector *detector, int64_t now_ns, struct verdict *out_verdict);
/* The suspect has a good reason (a debugger holds it): its clocks start anew. */
void detector_excuse(struct detector *detector, int rank, int64_t now_ns);
/* The suspect is about to be killed: judge will say `verdict`, with the counts. */
void detector_convict(struct detector *detector, const struct verdict *verdict);
/* All ranks have left: the first cause; sets every rank's role. */
void detector_judge(struct detector *detector, struct verdict *out_verdict);

#endif
