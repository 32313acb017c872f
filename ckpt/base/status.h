/* The one error idiom of Holdfast: statuses, the trail of an error, and CHECK.
 *
 * Every fallible function returns `enum status` and must be checked. An error is born once by
 * FAIL, which records message, errno, file and line in a per-thread record; TRY passes it up and
 * adds a line to the trail; only a *_main.c prints the record (status_print) and exits with
 * status_exit_code. Broken invariants are not statuses: CHECK stops the process, in release too.
 *
 *     static enum status publish(struct commit *commit)
 *     {
 *         enum status st = STATUS_OK;
 *
 *         TRY(st, fs_sync(commit->file), done);
 *         TRY(st, fs_rename(commit->fs, commit->tmp, commit->path), done);
 *     done:
 *         fs_close(&commit->file);
 *         return st;
 *     }
 *
 * Threads: the record is thread-local. A background job copies it with status_take and the thread
 * that collects the job's result puts it back with status_give.
 */
#ifndef CKPT_BASE_STATUS_H
#define CKPT_BASE_STATUS_H

#include <stdbool.h>
#include <stddef.h>

/* Whether starting again may help: RETRY_NEVER (the same command fails the same way: usage,
 * damaged input), RETRY_SAME (same ranks, same place, later), RETRY_RESTART (a new epoch). */
enum retry_class { RETRY_NEVER, RETRY_SAME, RETRY_RESTART };

/* name, exit code, retry class, text. The exit codes are documented in README.md. */
#define STATUS_TABLE(X)                                                                            \
    X(OK, 0, RETRY_NEVER, "ok")                                                                    \
    X(FAILED, 1, RETRY_RESTART, "failed")                                                          \
    X(USAGE, 2, RETRY_NEVER, "wrong usage")                                                        \
    X(PARTIAL, 3, RETRY_SAME, "only partly done")                                                  \
    X(IO, 1, RETRY_RESTART, "input/output error")                                                  \
    X(NO_SPACE, 1, RETRY_SAME, "no space")                                                         \
    X(NO_PERMISSION, 1, RETRY_NEVER, "permission denied")                                          \
    X(NOT_FOUND, 1, RETRY_NEVER, "not found")                                                      \
    X(EXISTS, 1, RETRY_NEVER, "exists already")                                                    \
    X(NO_MEMORY, 1, RETRY_SAME, "out of memory")                                                   \
    X(UNSUPPORTED, 1, RETRY_NEVER, "not supported")                                                \
    X(BAD_DATA, 1, RETRY_NEVER, "unusable input data")                                             \
    X(NUMERIC, 1, RETRY_RESTART, "not a finite number")                                            \
    X(TIMEOUT, 1, RETRY_RESTART, "deadline passed")                                                \
    X(NO_CHECKPOINT, 10, RETRY_NEVER, "no usable checkpoint")                                      \
    X(NOT_OWNER, 11, RETRY_NEVER, "not the owner")                                                 \
    X(CORRUPT, 12, RETRY_NEVER, "corrupt")                                                         \
    X(PEER_LOST, 13, RETRY_RESTART, "peer lost")                                                   \
    X(ABORTED, 13, RETRY_RESTART, "aborted")                                                       \
    X(OPTIONS_DIFFER, 14, RETRY_NEVER, "options differ")                                           \
    X(STOPPED, 75, RETRY_SAME, "stopped after a committed save")                                   \
    X(GAVE_UP, 93, RETRY_NEVER, "gave up")                                                         \
    X(INTERRUPTED, 130, RETRY_NEVER, "interrupted")

enum status {
#define STATUS_ENUM(name, exit_code, retry, text) STATUS_##name,
    STATUS_TABLE(STATUS_ENUM)
#undef STATUS_ENUM
        STATUS_COUNT
};

#define STATUS_MUST_CHECK __attribute__((warn_unused_result))
#define STATUS_MESSAGE_MAX 1024
#define STATUS_TRAIL_MAX 8

struct status_place {
    const char *file;
    const char *function;
    int line;
};

struct status_record {
    enum status code;
    int saved_errno;                             /* 0: none */
    char message[STATUS_MESSAGE_MAX];            /* the fault first, the subject in quotes */
    struct status_place trail[STATUS_TRAIL_MAX]; /* [0] is where it was born */
    int trail_count;
};

const char *status_name(enum status code); /* "PEER_LOST" */
const char *status_text(enum status code); /* "peer lost" */
int status_exit_code(enum status code);
enum retry_class status_retry_class(enum status code);
/* The status of an errno: ENOSPC, EDQUOT and EFBIG are NO_SPACE; EACCES, EPERM and EROFS are
 * NO_PERMISSION; ENOENT and ENOTDIR are NOT_FOUND; and so on; the rest are IO. */
enum status status_from_errno(int error_number);
/* Of several ranks' or jobs' statuses the one to report: anything but PEER_LOST and ABORTED goes
 * before these two, and these before OK; else the first. */
enum status status_first_cause(enum status a, enum status b);

/* The record of this thread's last error; its code is STATUS_OK before the first one. */
const struct status_record *status_last(void);
void status_take(struct status_record *out_record);
/* Makes `record` this thread's last error; returns record->code. */
enum status status_give(const struct status_record *record);
/* Prints "PROGRAM: MESSAGE" and, when `trail` is set, where it came from, to stderr. */
void status_print(const char *program, bool trail);

/* FAIL(code, format, ...) starts a record and is the value `code`; FAIL_ERRNO(format, ...) takes
 * the code from errno and appends its text. */
#define FAIL(code, ...) status_fail((code), 0, __FILE__, __func__, __LINE__, __VA_ARGS__)
#define FAIL_ERRNO(...) status_fail(STATUS_OK, errno, __FILE__, __func__, __LINE__, __VA_ARGS__)

#define TRY(st, call, label)                                                                       \
    do {                                                                                           \
        (st) = (call);                                                                             \
        if ((st) != STATUS_OK) {                                                                   \
            status_trail(__FILE__, __func__, __LINE__);                                            \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            status_check_failed(__FILE__, __func__, __LINE__, #condition);                         \
        }                                                                                          \
    } while (0)

enum status status_fail(enum status code, int error_number, const char *file, const char *function,
                        int line, const char *format, ...) __attribute__((format(printf, 6, 7)));
void status_trail(const char *file, const char *function, int line);
void status_check_failed(const char *file, const char *function, int line, const char *condition)
    __attribute__((noreturn));

#endif
