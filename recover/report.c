/* Sentences, incidents.jsonl and the table; see report.h. */
#include "recover/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/fs.h"
#include "ckpt/base/json.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"

#define INCIDENTS_BYTES_MAX ((size_t)64 << 20)

static const char *kind_name(enum verdict_kind kind)
{
    static const char *const names[] = {
        [VERDICT_DONE] = "done",     [VERDICT_SAVED] = "saved",     [VERDICT_ENDED] = "ended",
        [VERDICT_SIGNAL] = "signal", [VERDICT_EXIT] = "exit",       [VERDICT_STOPPED] = "stopped",
        [VERDICT_SILENT] = "silent", [VERDICT_STALLED] = "stalled",
    };

    CHECK((unsigned)kind < sizeof names / sizeof names[0]);
    return names[kind];
}

static const char *role_name(enum detector_role role)
{
    static const char *const names[] = {
        [DETECTOR_RUNNING] = "running",       [DETECTOR_CLEAN] = "clean",
        [DETECTOR_INITIATING] = "initiating", [DETECTOR_CASCADE] = "cascade",
        [DETECTOR_TEARDOWN] = "teardown",
    };

    CHECK((unsigned)role < sizeof names / sizeof names[0]);
    return names[role];
}

const char *report_action_name(enum resume_action action)
{
    static const char *const names[] = {
        [RESUME_RESTART] = "restart", [RESUME_GIVE_UP] = "give up", [RESUME_DONE] = "done"};

    CHECK((unsigned)action < sizeof names / sizeof names[0]);
    return names[action];
}

/* "killed by signal 9 (SIGKILL)" */
static void describe_end(const struct verdict *verdict, char *out_text, size_t bytes)
{
    const char *abbreviation;

    switch (verdict->kind) {
    case VERDICT_SIGNAL:
        abbreviation = sigabbrev_np(verdict->signal);
        (void)snprintf(out_text, bytes, "killed by signal %d (SIG%s)", verdict->signal,
                       abbreviation != NULL ? abbreviation : "?");
        return;
    case VERDICT_EXIT:
        (void)snprintf(out_text, bytes, "exited with code %d (%s)", verdict->exit_code,
                       verdict->exit_code == 0 ? "before the others"
                                               : status_text(verdict->status));
        return;
    case VERDICT_STOPPED:
        (void)snprintf(out_text, bytes, "stopped by a signal and not continued for %" PRId64 " ms",
                       verdict->silent_ms);
        return;
    case VERDICT_SILENT:
        (void)snprintf(out_text, bytes, "silent for %" PRId64 " ms", verdict->silent_ms);
        return;
    case VERDICT_STALLED:
        (void)snprintf(out_text, bytes, "held up all ranks for %" PRId64 " ms", verdict->silent_ms);
        return;
    case VERDICT_DONE:
    case VERDICT_SAVED:
    case VERDICT_ENDED:
        break;
    }
    (void)snprintf(out_text, bytes, "%s", kind_name(verdict->kind));
}

void report_describe(const struct verdict *verdict, int64_t pid, const char *message,
                     char out_text[REPORT_CAUSE_MAX])
{
    char end[128];

    describe_end(verdict, end, sizeof end);
    if (verdict->rank < 0) {
        (void)snprintf(out_text, REPORT_CAUSE_MAX, "all ranks %s", end);
        return;
    }
    (void)snprintf(out_text, REPORT_CAUSE_MAX,
                   "rank %d (pid %" PRId64 ") %s in phase %s at step %" PRIu64 "%s%s",
                   verdict->rank, pid, end, progress_phase_name(verdict->phase), verdict->step,
                   message[0] != '\0' ? ": " : "", message);
}

static enum status add_ranks(cJSON *object, const struct detector *detector)
{
    enum status st = STATUS_OK;
    cJSON *array = NULL, *item = NULL;

    TRY(st, json_new_array(&array), done);
    for (int i = 0; i < detector->rank_count; i++) {
        const struct detector_rank *rank = &detector->ranks[i];

        TRY(st, json_new_object(&item), done);
        TRY(st, json_add_i64(item, "rank", i), done);
        TRY(st, json_add_string(item, "role", role_name(rank->role)), done);
        TRY(st, json_add_i64(item, "order", rank->exit_order), done);
        TRY(st, json_add_i64(item, "signal", rank->exit.signal), done);
        TRY(st, json_add_i64(item, "exit_code", rank->exit.code), done);
        cJSON *added = item;

        item = NULL;
        TRY(st, json_append(array, added), done);
    }
    cJSON *added = array;

    array = NULL;
    TRY(st, json_add_item(object, "ranks", added), done);
done:
    cJSON_Delete(item);
    cJSON_Delete(array);
    return st;
}

static enum status add_verdict(cJSON *object, const struct incident *incident)
{
    enum status st = STATUS_OK;
    const struct verdict *verdict = &incident->verdict;
    char cause[REPORT_CAUSE_MAX];

    report_describe(verdict, incident->pid, incident->message, cause);
    TRY(st, json_add_string(object, "kind", kind_name(verdict->kind)), done);
    TRY(st, json_add_i64(object, "rank", verdict->rank), done);
    TRY(st, json_add_i64(object, "pid", incident->pid), done);
    TRY(st, json_add_i64(object, "signal", verdict->signal), done);
    TRY(st, json_add_i64(object, "exit_code", verdict->exit_code), done);
    TRY(st, json_add_string(object, "status", status_name(verdict->status)), done);
    TRY(st, json_add_string(object, "phase", progress_phase_name(verdict->phase)), done);
    TRY(st, json_add_u64(object, "step", verdict->step), done);
    TRY(st, json_add_i64(object, "silent_ms", verdict->silent_ms), done);
    TRY(st, json_add_string(object, "message", incident->message), done);
    TRY(st, json_add_string(object, "evidence", incident->evidence), done);
    TRY(st, json_add_string(object, "cause", cause), done);
done:
    return st;
}

static enum status make_incident(const struct run_dir *dir, const struct incident *incident,
                                 cJSON **out_object)
{
    enum status st = STATUS_OK;
    char time[CLOCK_TEXT_MAX];
    cJSON *object = NULL;

    clock_format_utc(incident->wall_ns, time);
    TRY(st, json_new_object(&object), done);
    TRY(st, json_add_string(object, "time", time), done);
    TRY(st, json_add_string(object, "run_id", dir->run_id), done);
    TRY(st, json_add_u64(object, "generation", dir->generation), done);
    TRY(st, add_verdict(object, incident), done);
    TRY(st, add_ranks(object, incident->detector), done);
    TRY(st, json_add_string(object, "action", report_action_name(incident->plan.action)), done);
    TRY(st, json_add_string(object, "reason", incident->plan.reason), done);
    if (incident->resume_step >= 0) {
        TRY(st, json_add_i64(object, "resume_step", incident->resume_step), done);
    } else {
        TRY(st, json_add_item(object, "resume_step", cJSON_CreateNull()), done);
    }
    TRY(st, json_add_i64(object, "notice_to_end_ms", incident->notice_to_end_ms), done);
    *out_object = object;
    object = NULL;
done:
    cJSON_Delete(object);
    return st;
}

static enum status append_line(const char *path, const char *line)
{
    enum status st = STATUS_OK;
    struct fs_file *file = NULL;
    uint64_t end = 0;
    char *text = NULL;

    st = fs_open(fs_posix(), path, FS_CREATE_NEW, &file);
    if (st == STATUS_EXISTS) {
        st = fs_open(fs_posix(), path, FS_UPDATE, &file);
    }
    TRY(st, st, done);
    TRY(st, fs_file_size(file, &end), done);
    /* A newline before a torn line of a killed agent's would be one more case for readers: the
     * torn line is ended by ours instead. */
    char last = '\n';

    if (end > 0) {
        TRY(st, fs_pread(file, &last, 1, end - 1), done);
    }
    TRY(st, mem_format(&text, "%s%s\n", last == '\n' ? "" : "\n", line), done);
    TRY(st, fs_pwrite(file, text, strlen(text), end), done);
    TRY(st, fs_sync(file), done);
done:
    mem_free(&text);
    fs_close(&file);
    return st;
}

enum status report_append(const struct run_dir *dir, const struct incident *incident)
{
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX];
    cJSON *object = NULL;
    char *line = NULL;

    TRY(st, fs_join(path, dir->path, REPORT_FILE), done);
    TRY(st, make_incident(dir, incident, &object), done);
    TRY(st, json_print_line(object, &line), done);
    TRY(st, append_line(path, line), done);
done:
    mem_free(&line);
    cJSON_Delete(object);
    return st;
}

static enum status print_row(const char *line, size_t bytes, const char *path)
{
    enum status st = STATUS_OK;
    const char *time, *action, *cause, *reason;
    uint64_t generation;
    cJSON *object = NULL;

    TRY(st, json_parse(line, bytes, path, &object), done);
    TRY(st, json_get_string(object, path, "time", &time), done);
    TRY(st, json_get_u64(object, path, "generation", &generation), done);
    TRY(st, json_get_string(object, path, "action", &action), done);
    TRY(st, json_get_string(object, path, "cause", &cause), done);
    TRY(st, json_get_string(object, path, "reason", &reason), done);
    const cJSON *resume = cJSON_GetObjectItemCaseSensitive(object, "resume_step");
    char from[32] = "-";

    if (cJSON_IsNumber(resume)) {
        (void)snprintf(from, sizeof from, "%.0f", resume->valuedouble);
    }
    (void)printf("%-20s  %10" PRIu64 "  %-7s  %9s  %s\n", time, generation, action, from, cause);
    if (strcmp(action, report_action_name(RESUME_RESTART)) != 0) {
        (void)printf("%-20s  %10s  %-7s  %9s  %s\n", "", "", "", "", reason);
    }
done:
    cJSON_Delete(object);
    return st;
}

enum status report_print(const char *run_dir)
{
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX];
    char *text = NULL;
    size_t bytes = 0, unreadable = 0;

    if (!fs_exists(fs_posix(), run_dir)) {
        return FAIL(STATUS_NOT_FOUND, "no run folder '%s'", run_dir);
    }
    TRY(st, fs_join(path, run_dir, REPORT_FILE), done);
    if (!fs_exists(fs_posix(), path)) {
        (void)printf("no incidents\n");
        goto done;
    }
    TRY(st, fs_read_file(fs_posix(), path, INCIDENTS_BYTES_MAX, &text, &bytes), done);
    (void)printf("%-20s  %10s  %-7s  %9s  %s\n", "time", "generation", "action", "from step",
                 "first cause");
    for (char *line = text; *line != '\0';) {
        size_t length = strcspn(line, "\n");

        if (length > 0 && print_row(line, length, path) != STATUS_OK) {
            unreadable++;
        }
        line += length + (line[length] == '\n');
    }
    if (unreadable > 0) {
        log_warn("%zu lines of '%s' could not be read", unreadable, path);
    }
done:
    mem_free(&text);
    return st;
}
