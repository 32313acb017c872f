/* Whole lines on stderr; see log.h. */
#include "ckpt/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static enum log_level threshold = LOG_LEVEL_INFO;
static char line_prefix[64];

void log_init(enum log_level level, const char *prefix)
{
    threshold = level;
    (void)snprintf(line_prefix, sizeof line_prefix, "%s%s", prefix, prefix[0] ? ": " : "");
}

void log_write(enum log_level level, const char *format, ...)
{
    static const char *const marks[] = {"debug: ", "", "warning: ", "error: "};
    char line[LOG_LINE_MAX];
    struct timespec now;
    struct tm day;
    size_t used;
    va_list args;

    if (level < threshold) {
        return;
    }
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)localtime_r(&now.tv_sec, &day);
    used = strftime(line, sizeof line, "[%Y-%m-%d %H:%M:%S", &day);
    used += (size_t)snprintf(line + used, sizeof line - used, ".%06ld] %s%s", now.tv_nsec / 1000,
                             line_prefix, marks[level]);
    va_start(args, format);
    int more = vsnprintf(line + used, sizeof line - used - 1, format, args);
    va_end(args);
    if (more > 0) {
        used += (size_t)more;
    }
    if (used > sizeof line - 2) {
        used = sizeof line - 2; /* a longer message is cut, the line stays one line */
    }
    line[used++] = '\n';
    if (write(STDERR_FILENO, line, used) < 0) {
        return; /* there is nobody left to tell */
    }
}
