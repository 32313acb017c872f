/* Heartbeat files; see heartbeat.h. Before it: lease and catalog ask for one; after it: other
 * processes watch it on their own clocks.
 *
 * Invariant: after the first write the file's size never changes, and each later write replaces one
 * field by one of equal width, so that every look is valid JSON.
 */
#include "ckpt/meta/heartbeat.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/base/json.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"

#define COUNTER_HEAD "{\"counter\": \""
#define COUNTER_DIGITS 20
#define STATE_HEAD "\", \"state\": \""
#define STATE_HELD "held    "
#define STATE_RELEASED "released"
#define COUNTER_OFFSET (sizeof COUNTER_HEAD - 1)
#define STATE_OFFSET (COUNTER_OFFSET + COUNTER_DIGITS + sizeof STATE_HEAD - 1)
#define FILE_BYTES_MAX 4096
#define STAT_BYTES_MAX 1024
#define START_TIME_FIELD 22

struct heartbeat {
    struct fs *fs;
    struct fs_file *file;
    struct thread_task *keeper;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    bool stop;        /* under mutex */
    uint64_t counter; /* the keeper's */
};

/* ---- who we are ---- */

static void read_line(const char *path, char *out_text, size_t bytes)
{
    FILE *file = fopen(path, "re");

    out_text[0] = '\0';
    if (file != NULL) {
        if (fgets(out_text, (int)bytes, file) == NULL) {
            out_text[0] = '\0';
        }
        (void)fclose(file);
    }
    out_text[strcspn(out_text, "\n")] = '\0';
}

/* False when there is no such process, or /proc does not show it. */
static bool read_start_time(int64_t pid, uint64_t *out_start_time)
{
    char path[64], text[STAT_BYTES_MAX];

    (void)snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
    read_line(path, text, sizeof text);
    char *at = strrchr(text, ')'); /* ends field 2, the name, which may hold anything */
    for (int field = 2; at != NULL && field < START_TIME_FIELD; field++) {
        at = strchr(at + 1, ' ');
    }
    if (at == NULL) {
        return false;
    }
    *out_start_time = strtoull(at + 1, NULL, 10);
    return true;
}

enum status heartbeat_get_self(const char *run_id, struct heartbeat_holder *out_holder)
{
    struct heartbeat_holder self = {.pid = getpid()};
    struct stat namespace;

    if (strlen(run_id) >= sizeof self.run_id) {
        return FAIL(STATUS_USAGE, "run id '%.80s' is longer than %zu bytes", run_id,
                    sizeof self.run_id - 1);
    }
    memcpy(self.run_id, run_id, strlen(run_id) + 1);
    if (gethostname(self.host, sizeof self.host - 1) != 0) {
        return FAIL_ERRNO("cannot get this host's name");
    }
    /* What stays empty or 0 equals nobody's: then only the counter decides. */
    read_line("/proc/sys/kernel/random/boot_id", self.boot_id, sizeof self.boot_id);
    if (stat("/proc/self/ns/pid", &namespace) == 0) {
        self.pid_namespace = namespace.st_ino;
    }
    (void)read_start_time(self.pid, &self.start_time);
    *out_holder = self;
    return STATUS_OK;
}

void heartbeat_format(const struct heartbeat_holder *holder, char out_text[HEARTBEAT_TEXT_MAX])
{
    (void)snprintf(out_text, HEARTBEAT_TEXT_MAX, "run %s (host %s, pid %" PRId64 ")",
                   holder->run_id, holder->host, holder->pid);
}

/* ---- writing ---- */

/* The fixed fields, then the holder's members as cJSON prints them. */
static enum status print_file(const struct heartbeat_holder *holder, char **out_text)
{
    enum status st = STATUS_OK;
    cJSON *object = NULL;
    char *line = NULL;

    TRY(st, json_new_object(&object), done);
    TRY(st, json_add_string(object, "run_id", holder->run_id), done);
    TRY(st, json_add_string(object, "host", holder->host), done);
    TRY(st, json_add_string(object, "boot_id", holder->boot_id), done);
    TRY(st, json_add_u64(object, "pid_namespace", holder->pid_namespace), done);
    TRY(st, json_add_i64(object, "pid", holder->pid), done);
    TRY(st, json_add_u64(object, "start_time", holder->start_time), done);
    TRY(st, json_print_line(object, &line), done);
    TRY(st,
        mem_format(out_text, COUNTER_HEAD "%0*d" STATE_HEAD STATE_HELD "\", %s\n", COUNTER_DIGITS,
                   0, strchr(line, '{') + 1),
        done);
done:
    mem_free(&line);
    cJSON_Delete(object);
    return st;
}

static enum status beat(struct heartbeat *heartbeat)
{
    char digits[COUNTER_DIGITS + 1];

    heartbeat->counter++;
    (void)snprintf(digits, sizeof digits, "%0*" PRIu64, COUNTER_DIGITS, heartbeat->counter);
    return fs_pwrite(heartbeat->file, digits, COUNTER_DIGITS, COUNTER_OFFSET);
}

/* A beat that cannot be written is not the end: the holder may lose what it holds, and learns it
 * at its next check. */
static enum status keep(void *context)
{
    struct heartbeat *heartbeat = context;
    bool warned = false;

    (void)pthread_mutex_lock(&heartbeat->mutex);
    while (!heartbeat->stop) {
        struct timespec until;

        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += HEARTBEAT_BEAT_MS / 1000;
        until.tv_nsec += HEARTBEAT_BEAT_MS % 1000 * 1000000L;
        if (until.tv_nsec >= 1000000000L) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000L;
        }
        if (pthread_cond_timedwait(&heartbeat->wake, &heartbeat->mutex, &until) != ETIMEDOUT) {
            continue;
        }
        (void)pthread_mutex_unlock(&heartbeat->mutex);
        if (beat(heartbeat) != STATUS_OK && !warned) {
            log_warn("cannot beat in '%s': %s", fs_path(heartbeat->file), status_last()->message);
            warned = true;
        }
        (void)pthread_mutex_lock(&heartbeat->mutex);
    }
    (void)pthread_mutex_unlock(&heartbeat->mutex);
    return STATUS_OK;
}

static void stop_keeper(struct heartbeat *heartbeat)
{
    if (heartbeat->keeper == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&heartbeat->mutex);
    heartbeat->stop = true;
    (void)pthread_cond_signal(&heartbeat->wake);
    (void)pthread_mutex_unlock(&heartbeat->mutex);
    if (thread_task_join(heartbeat->keeper) != STATUS_OK) {
        log_warn("keeper of '%s' ended badly", fs_path(heartbeat->file));
    }
    heartbeat->keeper = NULL;
}

static void init_locks(struct heartbeat *heartbeat)
{
    pthread_condattr_t attributes;

    CHECK(pthread_mutex_init(&heartbeat->mutex, NULL) == 0);
    CHECK(pthread_condattr_init(&attributes) == 0);
    CHECK(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0);
    CHECK(pthread_cond_init(&heartbeat->wake, &attributes) == 0);
    (void)pthread_condattr_destroy(&attributes);
}

static void destroy(struct heartbeat **heartbeat)
{
    fs_close(&(*heartbeat)->file);
    (void)pthread_cond_destroy(&(*heartbeat)->wake);
    (void)pthread_mutex_destroy(&(*heartbeat)->mutex);
    mem_free(heartbeat);
}

enum status heartbeat_create(struct fs *fs, const char *path, const char *run_id,
                             struct heartbeat **out_heartbeat)
{
    enum status st = STATUS_OK;
    struct heartbeat_holder self;
    struct heartbeat *heartbeat = NULL;
    char *text = NULL;

    *out_heartbeat = NULL;
    TRY(st, heartbeat_get_self(run_id, &self), done);
    TRY(st, print_file(&self, &text), done);
    TRY(st, mem_alloc(&heartbeat, 1, sizeof *heartbeat), done);
    heartbeat->fs = fs;
    init_locks(heartbeat);
    TRY(st, fs_open(fs, path, FS_CREATE_NEW, &heartbeat->file), done);
    TRY(st, fs_pwrite(heartbeat->file, text, strlen(text), 0), done);
    TRY(st, fs_sync(heartbeat->file), done);
    TRY(st, thread_task_start(keep, heartbeat, &heartbeat->keeper), done);
    *out_heartbeat = heartbeat;
    heartbeat = NULL;
done:
    mem_free(&text);
    if (heartbeat != NULL && heartbeat->file != NULL) {
        heartbeat_remove(&heartbeat);
    } else if (heartbeat != NULL) {
        destroy(&heartbeat);
    }
    return st;
}

static enum status mark_released(struct heartbeat *heartbeat)
{
    enum status st = STATUS_OK;

    TRY(st, fs_pwrite(heartbeat->file, STATE_RELEASED, sizeof STATE_RELEASED - 1, STATE_OFFSET),
        done);
    TRY(st, fs_sync(heartbeat->file), done);
done:
    return st;
}

void heartbeat_release(struct heartbeat **heartbeat)
{
    struct status_record before;

    if (*heartbeat == NULL) {
        return;
    }
    status_take(&before);
    stop_keeper(*heartbeat);
    if (mark_released(*heartbeat) != STATUS_OK) {
        log_warn("cannot mark '%s' released: %s", fs_path((*heartbeat)->file),
                 status_last()->message);
    }
    destroy(heartbeat);
    (void)status_give(&before);
}

void heartbeat_remove(struct heartbeat **heartbeat)
{
    struct status_record before;

    if (*heartbeat == NULL) {
        return;
    }
    status_take(&before);
    stop_keeper(*heartbeat);
    enum status st = fs_unlink((*heartbeat)->fs, fs_path((*heartbeat)->file));
    if (st != STATUS_OK && st != STATUS_NOT_FOUND) {
        log_warn("cannot remove '%s': %s", fs_path((*heartbeat)->file), status_last()->message);
    }
    destroy(heartbeat);
    (void)status_give(&before);
}

/* ---- reading ---- */

static enum status copy_word(const cJSON *object, const char *what, const char *key, char *out,
                             size_t bytes)
{
    enum status st = STATUS_OK;
    const char *text;

    TRY(st, json_get_string(object, what, key, &text), done);
    if (strlen(text) >= bytes) {
        return FAIL(STATUS_CORRUPT, "'%s': '%s' is too long", what, key);
    }
    memcpy(out, text, strlen(text) + 1);
done:
    return st;
}

static enum status parse_file(const char *text, size_t bytes, const char *path,
                              struct heartbeat_record *record)
{
    enum status st = STATUS_OK;
    struct heartbeat_holder *holder = &record->holder;
    cJSON *object = NULL;
    const char *state;

    TRY(st, json_parse(text, bytes, path, &object), done);
    TRY(st, json_get_string(object, path, "state", &state), done);
    TRY(st, copy_word(object, path, "run_id", holder->run_id, sizeof holder->run_id), done);
    TRY(st, copy_word(object, path, "host", holder->host, sizeof holder->host), done);
    TRY(st, copy_word(object, path, "boot_id", holder->boot_id, sizeof holder->boot_id), done);
    TRY(st, json_get_u64(object, path, "pid_namespace", &holder->pid_namespace), done);
    TRY(st, json_get_i64(object, path, "pid", &holder->pid), done);
    TRY(st, json_get_u64(object, path, "start_time", &holder->start_time), done);
    record->released = strcmp(state, STATE_RELEASED) == 0;
    record->readable = true;
done:
    cJSON_Delete(object);
    return st;
}

enum status heartbeat_read(struct fs *fs, const char *path, struct heartbeat_record *out_record)
{
    enum status st = STATUS_OK;
    struct heartbeat_record record = {0};
    char *text = NULL;
    size_t bytes;

    st = fs_read_file(fs, path, FILE_BYTES_MAX, &text, &bytes);
    if (st == STATUS_OK) {
        record.content = hash_bytes128(text, bytes);
        st = parse_file(text, bytes, path, &record);
    }
    /* Rubbish, even too long to be read, holds nothing for ever: it stands still. */
    TRY(st, st == STATUS_CORRUPT ? STATUS_OK : st, done);
    *out_record = record;
done:
    mem_free(&text);
    return st;
}

bool heartbeat_moved(const struct heartbeat_record *before, const struct heartbeat_record *now)
{
    return before->content.high != now->content.high || before->content.low != now->content.low;
}

enum heartbeat_life heartbeat_judge(const struct heartbeat_record *record)
{
    const struct heartbeat_holder *holder = &record->holder;
    struct heartbeat_holder self;
    uint64_t start_time;

    if (!record->readable || holder->boot_id[0] == '\0' || holder->pid_namespace == 0 ||
        holder->pid <= 0 || holder->pid > INT32_MAX || heartbeat_get_self("", &self) != STATUS_OK ||
        strcmp(holder->host, self.host) != 0 || strcmp(holder->boot_id, self.boot_id) != 0 ||
        holder->pid_namespace != self.pid_namespace) {
        return HEARTBEAT_UNKNOWN;
    }
    if (kill((pid_t)holder->pid, 0) != 0 && errno == ESRCH) {
        return HEARTBEAT_GONE;
    }
    if (read_start_time(holder->pid, &start_time) && holder->start_time != 0 &&
        start_time != holder->start_time) {
        return HEARTBEAT_GONE; /* the pid is another process's now */
    }
    return HEARTBEAT_ALIVE;
}
