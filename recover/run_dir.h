/* The run directory: what an agent keeps of a run, and the proof that it is the only one.
 *
 *     RUN_DIR/run.json        run id, generation, newest committed step; replaced as a whole
 *     RUN_DIR/agent.lock      locked (flock) by the living agent: a second one is refused at once
 *     RUN_DIR/ranks.lock      locked by the agent and, through inheritance, by every rank and every
 *                             process of theirs: an agent that follows a killed one waits until
 *                             all of them are gone before it starts its own
 *     RUN_DIR/comm-<G>/       rendezvous of generation G; older ones are removed
 *     RUN_DIR/progress, failure, logs, incidents.jsonl: see ckpt/meta/run_env.h, report.h
 *
 * An agent that is started again on the same directory goes on with the same run id and the next
 * generation. Threads: one.
 */
#ifndef RECOVER_RUN_DIR_H
#define RECOVER_RUN_DIR_H

#include <stdint.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"

#define RUN_DIR_STATE_FILE "run.json"
#define RUN_DIR_RUN_ID_MAX 64
#define RUN_DIR_RANKS_GONE_MS 10000 /* how long old ranks may take to disappear */

struct run_dir {
    char path[FS_PATH_MAX]; /* absolute */
    char run_id[RUN_DIR_RUN_ID_MAX];
    uint64_t generation;        /* the newest one begun; 0: none yet */
    int64_t committed_step;     /* newest that was seen committed; -1: none */
    int agent_lock, ranks_lock; /* descriptors; -1: not held */
};

/* `path` "" makes a fresh folder under $TMPDIR (or /tmp). STATUS_EXISTS when another agent, or
 * ranks of a former one, still live there. */
enum status run_dir_open(const char *path, struct run_dir *out_dir) STATUS_MUST_CHECK;
/* Takes a zeroed or closed one too. The directory stays. */
void run_dir_close(struct run_dir *dir);
/* Counts the generation up, durably, and makes its empty rendezvous folder. */
enum status run_dir_begin_generation(struct run_dir *dir) STATUS_MUST_CHECK;
/* Remembers a committed step, durably; an older one than is known changes nothing. */
enum status run_dir_note_commit(struct run_dir *dir, int64_t step) STATUS_MUST_CHECK;
/* "RUN_DIR/logs/gen_2_rank_3.log"; cut to FS_PATH_MAX. */
void run_dir_log_path(const char *run_dir, uint64_t generation, int rank,
                      char out_path[FS_PATH_MAX]);

#endif
