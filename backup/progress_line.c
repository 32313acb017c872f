/* Progress of a transfer; see progress_line.h. */
#include "backup/progress_line.h"

#include <stdio.h>
#include <unistd.h>

#include "ckpt/base/clock.h"

#define SHOW_NS 200000000

void progress_line_init(struct progress_line *line, const char *verb, uint64_t total_bytes)
{
    *line = (struct progress_line){
        .verb = verb,
        .total_bytes = total_bytes,
        .begin_ns = clock_monotonic_ns(),
        .is_terminal = isatty(STDERR_FILENO) != 0,
    };
    (void)pthread_mutex_init(&line->mutex, NULL);
}

static double seconds_since(int64_t begin_ns)
{
    return (double)(clock_monotonic_ns() - begin_ns) * 1e-9 + 1e-9;
}

void progress_line_add(struct progress_line *line, uint64_t bytes)
{
    (void)pthread_mutex_lock(&line->mutex);
    line->done_bytes += bytes;
    if (line->is_terminal && clock_monotonic_ns() - line->shown_ns > SHOW_NS) {
        double rate = (double)line->done_bytes / seconds_since(line->begin_ns);
        double left = (double)line->total_bytes - (double)line->done_bytes;
        line->shown_ns = clock_monotonic_ns();
        (void)fprintf(stderr, "\r%s: %3.0f %%, %.1f MB/s, %.0f s left   ", line->verb,
                      100.0 * (double)line->done_bytes / ((double)line->total_bytes + 1e-9),
                      rate * 1e-6, left > 0 ? left / rate : 0.0);
    }
    (void)pthread_mutex_unlock(&line->mutex);
}

void progress_line_deinit(struct progress_line *line, bool print)
{
    double seconds = seconds_since(line->begin_ns);

    if (line->is_terminal) {
        (void)fprintf(stderr, "\r\033[K");
    }
    if (print) {
        printf("%s: %.1f MB in %.2f s (%.1f MB/s)\n", line->verb, (double)line->done_bytes * 1e-6,
               seconds, (double)line->done_bytes * 1e-6 / seconds);
    }
    (void)pthread_mutex_destroy(&line->mutex);
}
