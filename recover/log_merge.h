/* What the ranks print: a file per rank and generation, and one merged stream in whole lines.
 *
 * Before it: agent.c, which reads the ranks' pipes. After it: RUN_DIR/logs/gen_G_rank_R.log (the
 * lines as they are) and a descriptor (each line behind "[gen G rank R] ").
 *
 * Lines are never mixed, whatever their length up to LOG_MERGE_LINE_MAX; longer ones are cut into
 * lines of that length. A reader of the merged stream that does not keep up never holds up a rank
 * or the agent: up to LOG_MERGE_QUEUE_MAX bytes wait for it, then whole lines are left out of the
 * stream (not of the files) and their number is told in it. A log file that cannot be written is
 * told once and then left. So no function here fails once it is made. Threads: one.
 */
#ifndef RECOVER_LOG_MERGE_H
#define RECOVER_LOG_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"

#define LOG_MERGE_LINE_MAX ((size_t)1 << 20)
#define LOG_MERGE_QUEUE_MAX ((size_t)8 << 20)
#define LOG_MERGE_TAIL_LINES 8
#define LOG_MERGE_TAIL_BYTES 256 /* of each remembered line, with its 0 */

enum log_stream { LOG_STREAM_OUT, LOG_STREAM_ERR, LOG_STREAM_COUNT };

struct log_merge;

/* `out_fd` stays the caller's. Writing to it raises no signal only if SIGPIPE is ignored. */
enum status log_merge_create(int out_fd, const char *run_dir, int rank_count,
                             struct log_merge **out_merge) STATUS_MUST_CHECK;
/* Takes NULL inside, leaves NULL. Call log_merge_drain first. */
void log_merge_destroy(struct log_merge **merge);
/* New files; the remembered lines are forgotten. */
void log_merge_begin(struct log_merge *merge, uint64_t generation);
void log_merge_feed(struct log_merge *merge, int rank, enum log_stream stream, const char *bytes,
                    size_t count);
/* The stream has ended: an unfinished last line gets its newline. */
void log_merge_end(struct log_merge *merge, int rank, enum log_stream stream);
/* Whether bytes wait for the reader; then log_merge_flush is to be called now and then. */
bool log_merge_pending(const struct log_merge *merge);
void log_merge_flush(struct log_merge *merge); /* what can be written without waiting */
void log_merge_drain(struct log_merge *merge, int64_t timeout_ms);
/* The rank's last lines, oldest first; NULL when there are not so many (index 0 .. ). */
const char *log_merge_tail(const struct log_merge *merge, int rank, int index);

#endif
