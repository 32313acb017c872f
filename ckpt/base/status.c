/* Statuses and the error record; see status.h. Depends on nothing else in the tree. */
#include "ckpt/base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct status_row {
    const char *name;
    const char *text;
    int exit_code;
    enum retry_class retry;
};

static const struct status_row rows[STATUS_COUNT] = {
#define STATUS_ROW(name, exit_code, retry, text) [STATUS_##name] = {#name, text, exit_code, retry},
    STATUS_TABLE(STATUS_ROW)
#undef STATUS_ROW
};

static _Thread_local struct status_record last;

static const struct status_row *row_of(enum status code)
{
    CHECK((unsigned)code < STATUS_COUNT);
    return &rows[code];
}

const char *status_name(enum status code)
{
    return row_of(code)->name;
}

const char *status_text(enum status code)
{
    return row_of(code)->text;
}

int status_exit_code(enum status code)
{
    return row_of(code)->exit_code;
}

enum retry_class status_retry_class(enum status code)
{
    return row_of(code)->retry;
}

enum status status_from_errno(int error_number)
{
    switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return STATUS_NO_SPACE;
    case EACCES:
    case EPERM:
    case EROFS:
        return STATUS_NO_PERMISSION;
    case ENOENT:
    case ENOTDIR:
        return STATUS_NOT_FOUND;
    case EEXIST:
    case ENOTEMPTY:
        return STATUS_EXISTS;
    case ENOMEM:
        return STATUS_NO_MEMORY;
    case ETIMEDOUT:
        return STATUS_TIMEOUT;
    case EPIPE:
    case ECONNRESET:
        return STATUS_PEER_LOST;
    default:
        return STATUS_IO;
    }
}

/* 0 for a first cause, 1 for what only follows from one, 2 for no error. */
static int distance_from_cause(enum status code)
{
    if (code == STATUS_OK) {
        return 2;
    }
    return code == STATUS_PEER_LOST || code == STATUS_ABORTED ? 1 : 0;
}

enum status status_first_cause(enum status a, enum status b)
{
    return distance_from_cause(b) < distance_from_cause(a) ? b : a;
}

const struct status_record *status_last(void)
{
    return &last;
}

void status_take(struct status_record *out_record)
{
    *out_record = last;
}

enum status status_give(const struct status_record *record)
{
    if (record != &last) {
        last = *record;
    }
    return last.code;
}

void status_print(const char *program, bool trail)
{
    char text[STATUS_MESSAGE_MAX + 128];

    /* One write, so that lines of several ranks do not mix. */
    (void)snprintf(text, sizeof text, "%s: %s\n", program, last.message);
    (void)fputs(text, stderr);
    for (int i = 0; trail && i < last.trail_count; i++) {
        (void)fprintf(stderr, "    %s %s (%s:%d)\n", i == 0 ? "in" : "from", last.trail[i].function,
                      last.trail[i].file, last.trail[i].line);
    }
}

enum status status_fail(enum status code, int error_number, const char *file, const char *function,
                        int line, const char *format, ...)
{
    char message[STATUS_MESSAGE_MAX]; /* apart from last.message, which may be an argument */
    va_list args;

    va_start(args, format);
    int used = vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (error_number != 0 && used >= 0 && (size_t)used < sizeof message) {
        (void)snprintf(message + used, sizeof message - (size_t)used, ": %s",
                       strerror(error_number));
    }
    last.code = error_number != 0 ? status_from_errno(error_number) : code;
    CHECK(last.code != STATUS_OK);
    last.saved_errno = error_number;
    memcpy(last.message, message, sizeof message);
    last.trail[0] = (struct status_place){file, function, line};
    last.trail_count = 1;
    return last.code;
}

void status_trail(const char *file, const char *function, int line)
{
    if (last.trail_count < STATUS_TRAIL_MAX) {
        last.trail[last.trail_count++] = (struct status_place){file, function, line};
    }
}

_Noreturn void status_check_failed(const char *file, const char *function, int line,
                                   const char *condition)
{
    (void)fprintf(stderr, "holdfast: broken invariant '%s' in %s (%s:%d)\n", condition, function,
                  file, line);
    abort();
}
