/* What the agent tells a rank, and what a rank leaves for the agent: environment, progress page,
 * failure record. Written by train, read by recover; neither includes the other.
 *
 *     RUN_DIR/progress/rank_00003        progress page, made by the agent, mapped by both
 *     RUN_DIR/failure/gen_2_rank_3.json  written by a rank before it leaves with an error
 *     RUN_DIR/comm-<generation>/         rendezvous folder of this generation
 *     RUN_DIR/logs/...                   the agent's: a log file per rank and generation
 */
#ifndef CKPT_META_RUN_ENV_H
#define CKPT_META_RUN_ENV_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"

#define RUN_ENV_RANK "RANK" /* torchrun's names */
#define RUN_ENV_WORLD_SIZE "WORLD_SIZE"
#define RUN_ENV_LOCAL_RANK "LOCAL_RANK"
#define RUN_ENV_LOCAL_WORLD_SIZE "LOCAL_WORLD_SIZE"
#define RUN_ENV_RUN_DIR "HOLDFAST_RUN_DIR"
#define RUN_ENV_RUN_ID "HOLDFAST_RUN_ID"
#define RUN_ENV_GENERATION "HOLDFAST_GENERATION"
#define RUN_ENV_COMMITTED_STEP "HOLDFAST_COMMITTED_STEP" /* newest the agent saw committed */

struct run_env {
    int rank, world_size, local_rank, local_world_size; /* 0, 1, 0, 1 without an agent */
    bool has_agent;                                     /* HOLDFAST_RUN_DIR is set */
    char run_dir[FS_PATH_MAX];
    char run_id[64];        /* "" without an agent */
    uint64_t generation;    /* 0 without an agent */
    int64_t committed_step; /* -1: none known */
};

/* STATUS_USAGE when a variable is there but no number, or rank >= size. */
enum status run_env_read(struct run_env *out_env) STATUS_MUST_CHECK;

enum progress_phase {
    PROGRESS_NONE,  /* the agent made the page, the rank has not come yet */
    PROGRESS_START, /* options, data, communicators */
    PROGRESS_LOAD,
    PROGRESS_STEP,
    PROGRESS_SAVE,
    PROGRESS_EVAL,
    PROGRESS_EXIT, /* leaving, well or not */
    PROGRESS_PHASE_COUNT
};

#define PROGRESS_MAGIC 0x70666c6f68ULL

/* One page of shared memory; only the rank writes it after the agent has made it. A beat is a
 * count, compared on the reader's own clock, never a time. */
struct progress_page {
    uint64_t magic;
    uint64_t generation;
    _Atomic uint64_t beat;          /* +1 at every sign of life */
    _Atomic uint32_t phase;         /* enum progress_phase */
    _Atomic uint32_t in_collective; /* 1 while waiting for peers */
    _Atomic uint64_t step;          /* optimizer steps completed */
    _Atomic uint64_t micro_batch;   /* of the step under way */
    _Atomic uint64_t collective;    /* collectives begun */
    _Atomic int64_t committed_step; /* newest step this run committed; -1: none */
    _Atomic int64_t pid;
};

struct progress; /* a mapped page */

/* By the agent, before it starts the rank: a fresh page. */
enum status progress_create(const char *run_dir, int rank, uint64_t generation,
                            struct progress **out_progress) STATUS_MUST_CHECK;
/* By the rank. Without an agent an anonymous page is made, so that callers need no test. */
enum status progress_open(const struct run_env *env, struct progress **out_progress)
    STATUS_MUST_CHECK;
struct progress_page *progress_page(struct progress *progress);
void progress_close(struct progress **progress);
void progress_beat(struct progress *progress);
void progress_set_phase(struct progress *progress, enum progress_phase phase); /* and beats */
const char *progress_phase_name(enum progress_phase phase);                    /* "save" */

/* A rank's last words, from its status record. */
struct failure_record {
    int rank;
    uint64_t generation;
    enum status status;
    enum progress_phase phase;
    uint64_t step;
    char message[STATUS_MESSAGE_MAX];
    int64_t wall_ns;
};

/* Best effort: the rank is leaving with an error anyway. Nothing without an agent. */
void failure_write(const struct run_env *env, const struct failure_record *record);
/* STATUS_NOT_FOUND when the rank left none. */
enum status failure_read(const char *run_dir, int rank, uint64_t generation,
                         struct failure_record *out_record) STATUS_MUST_CHECK;

#endif
