/* The failure record, a rank's last words; see run_env.h. Before it: train's main with its status
 * record; after it: the agent's verdict, which is so made of data and not of log text.
 */
#include "ckpt/meta/run_env.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/json.h"
#include "ckpt/base/log.h"

static enum status record_path(char out_path[FS_PATH_MAX], const char *run_dir, int rank,
                               uint64_t generation)
{
    if (snprintf(out_path, FS_PATH_MAX, "%s/failure/gen_%" PRIu64 "_rank_%d.json", run_dir,
                 generation, rank) >= FS_PATH_MAX) {
        return FAIL(STATUS_USAGE, "path of run folder '%s' is too long", run_dir);
    }
    return STATUS_OK;
}

static enum status write_record(const struct run_env *env, const struct failure_record *record)
{
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX], directory[FS_PATH_MAX];
    cJSON *object = NULL;

    TRY(st, record_path(path, env->run_dir, record->rank, record->generation), done);
    fs_parent(directory, path);
    TRY(st, fs_make_dirs(fs_posix(), directory), done);
    TRY(st, json_new_object(&object), done);
    TRY(st, json_add_i64(object, "rank", record->rank), done);
    TRY(st, json_add_u64(object, "generation", record->generation), done);
    TRY(st, json_add_string(object, "status", status_name(record->status)), done);
    TRY(st, json_add_string(object, "phase", progress_phase_name(record->phase)), done);
    TRY(st, json_add_u64(object, "step", record->step), done);
    TRY(st, json_add_string(object, "message", record->message), done);
    TRY(st, json_add_hex64(object, "wall_ns", (uint64_t)record->wall_ns), done);
    TRY(st, json_write_file(fs_posix(), path, object), done);
done:
    cJSON_Delete(object);
    return st;
}

void failure_write(const struct run_env *env, const struct failure_record *record)
{
    struct status_record cause; /* what the rank leaves with must stay its last error */

    if (!env->has_agent) {
        return;
    }
    status_take(&cause);
    if (write_record(env, record) != STATUS_OK) {
        log_warn("the agent will not learn why: %s", status_last()->message);
    }
    (void)status_give(&cause);
}

static enum status parse_status(const char *text, const char *what, enum status *out_status)
{
    for (int code = 0; code < STATUS_COUNT; code++) {
        if (strcmp(text, status_name((enum status)code)) == 0) {
            *out_status = (enum status)code;
            return STATUS_OK;
        }
    }
    return FAIL(STATUS_CORRUPT, "'%s': status '%.32s' is unknown", what, text);
}

static enum status parse_phase(const char *text, const char *what, enum progress_phase *out_phase)
{
    for (int phase = 0; phase < PROGRESS_PHASE_COUNT; phase++) {
        if (strcmp(text, progress_phase_name((enum progress_phase)phase)) == 0) {
            *out_phase = (enum progress_phase)phase;
            return STATUS_OK;
        }
    }
    return FAIL(STATUS_CORRUPT, "'%s': phase '%.32s' is unknown", what, text);
}

enum status failure_read(const char *run_dir, int rank, uint64_t generation,
                         struct failure_record *out_record)
{
    enum status st = STATUS_OK;
    struct failure_record record = {.rank = rank, .generation = generation};
    char path[FS_PATH_MAX];
    const char *text;
    uint64_t wall_ns;
    cJSON *object = NULL;

    TRY(st, record_path(path, run_dir, rank, generation), done);
    TRY(st, json_read_file(fs_posix(), path, &object), done);
    TRY(st, json_get_string(object, path, "status", &text), done);
    TRY(st, parse_status(text, path, &record.status), done);
    TRY(st, json_get_string(object, path, "phase", &text), done);
    TRY(st, parse_phase(text, path, &record.phase), done);
    TRY(st, json_get_u64(object, path, "step", &record.step), done);
    TRY(st, json_get_string(object, path, "message", &text), done);
    (void)snprintf(record.message, sizeof record.message, "%s", text);
    TRY(st, json_get_hex64(object, path, "wall_ns", &wall_ns), done);
    record.wall_ns = (int64_t)wall_ns;
    *out_record = record;
done:
    cJSON_Delete(object);
    return st;
}
