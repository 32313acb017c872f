/* The log: whole lines on stderr, the only global state of the programs.
 *
 * A line is "[2026-12-01 03:44:19.123456] PREFIX message"; each is written by one write(2), so
 * that the lines of many ranks never mix. Level and prefix are set once at start.
 * Threads: any thread may log; log_init is called before the first other thread starts.
 */
#ifndef CKPT_BASE_LOG_H
#define CKPT_BASE_LOG_H

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR };

#define LOG_LINE_MAX 2048

/* `prefix` (for example "rank 3" or "agent") is copied; an empty one is left out. */
void log_init(enum log_level level, const char *prefix);

#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_warn(...) log_write(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)

void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
