/* The report: what failed, said once for people and once as data.
 *
 * Before it: agent.c with an incident; after it: a person with `holdfast report RUN_DIR`, and
 * RUN_DIR/incidents.jsonl, one JSON object a line:
 *     time, run_id, generation, kind, rank, pid, signal, exit_code, status, phase, step, silent_ms,
 *     message (the rank's own last words), evidence, cause (the sentence), ranks (role, signal and
 *     exit code of each), action, reason, resume_step (null: none or unknown), notice_to_end_ms
 * Threads: one.
 */
#ifndef RECOVER_REPORT_H
#define RECOVER_REPORT_H

#include <stdint.h>

#include "ckpt/base/status.h"
#include "recover/detector.h"
#include "recover/resume_plan.h"
#include "recover/run_dir.h"

#define REPORT_FILE "incidents.jsonl"
#define REPORT_CAUSE_MAX (STATUS_MESSAGE_MAX + 256)
#define REPORT_EVIDENCE_MAX 1024

struct incident {
    struct verdict verdict;
    int64_t pid;
    char message[STATUS_MESSAGE_MAX];   /* of the rank's failure record; "": none */
    char evidence[REPORT_EVIDENCE_MAX]; /* of a hang; "": none */
    struct resume_plan plan;
    int64_t resume_step;      /* -1: none or unknown */
    int64_t notice_to_end_ms; /* first notice to the last rank reaped */
    int64_t wall_ns;
    const struct detector *detector; /* judged; for the ranks' roles */
};

/* "rank 1 (pid 77) killed by signal 9 (SIGKILL) in phase step at step 17" and, after a colon, the
 * message, if any. */
void report_describe(const struct verdict *verdict, int64_t pid, const char *message,
                     char out_text[REPORT_CAUSE_MAX]);
const char *report_action_name(enum resume_action action); /* "restart" */
/* Appends the incident, durably. */
enum status report_append(const struct run_dir *dir, const struct incident *incident)
    STATUS_MUST_CHECK;
/* Prints the incidents of a run as a table to stdout. A torn last line (the agent was killed while
 * it wrote) is left out with a note. */
enum status report_print(const char *run_dir) STATUS_MUST_CHECK;

#endif
