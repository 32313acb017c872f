/* Progress of a transfer for people: on a terminal one line that is written over, with rate and
 * time left; elsewhere nothing but the last line. Threads: progress_line_add from any thread. */
#ifndef BACKUP_PROGRESS_LINE_H
#define BACKUP_PROGRESS_LINE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct progress_line {
    const char *verb; /* "pushing step_0000500" */
    uint64_t total_bytes, done_bytes;
    int64_t begin_ns, shown_ns;
    bool is_terminal;
    pthread_mutex_t mutex;
};

void progress_line_init(struct progress_line *line, const char *verb, uint64_t total_bytes);
void progress_line_add(struct progress_line *line, uint64_t bytes);
/* Ends the line: "pushing step_0000500: 12.3 MB in 0.1 s (123.0 MB/s)". */
void progress_line_deinit(struct progress_line *line, bool print);

#endif
