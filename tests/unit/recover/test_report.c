/* Incidents in words, as data, and as a table. */
#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/json.h"
#include "ckpt/base/mem.h"
#include "recover/report.h"

static struct run_dir dir;
static struct detector detector;

static void set_up(void)
{
    const struct detector_limits limits = {.stopped_ms = 1000};
    const struct detector_exit killed = {.signal = SIGKILL}, lost = {.code = 13};
    const char *parent = getenv("TMPDIR");

    (void)snprintf(dir.path, sizeof dir.path, "%s/report XXXXXX", parent != NULL ? parent : "/tmp");
    cr_assert_not_null(mkdtemp(dir.path));
    dir.generation = 4;
    cr_assert_eq(detector_init(&detector, 2, &limits, 0, 0), STATUS_OK);
    detector_note_exit(&detector, 1, &killed);
    detector_note_exit(&detector, 0, &lost);
}

static void tear_down(void)
{
    detector_deinit(&detector);
    cr_assert_eq(fs_remove_tree(fs_posix(), dir.path), STATUS_OK);
}

TestSuite(report, .init = set_up, .fini = tear_down);

static struct incident make_incident(void)
{
    struct incident incident = {.pid = 77,
                                .message = "cannot read \"a\n b\"",
                                .resume_step = 10,
                                .plan = {.action = RESUME_RESTART, .reason = "restart 1 of 3"},
                                .detector = &detector};

    detector_judge(&detector, &incident.verdict);
    incident.verdict.phase = PROGRESS_STEP;
    incident.verdict.step = 17;
    return incident;
}

Test(report, says_who_how_and_where)
{
    struct verdict verdict = {
        .kind = VERDICT_SIGNAL, .rank = 1, .signal = SIGKILL, .phase = PROGRESS_STEP, .step = 17};
    char text[REPORT_CAUSE_MAX];

    report_describe(&verdict, 77, "", text);
    cr_assert_str_eq(text, "rank 1 (pid 77) killed by signal 9 (SIGKILL) in phase step at step 17");
    verdict.kind = VERDICT_EXIT;
    verdict.exit_code = 12;
    verdict.status = STATUS_CORRUPT;
    verdict.phase = PROGRESS_LOAD;
    report_describe(&verdict, 77, "'x' is damaged", text);
    cr_assert_str_eq(text, "rank 1 (pid 77) exited with code 12 (corrupt) in phase load at step "
                           "17: 'x' is damaged");
    verdict.kind = VERDICT_SILENT;
    verdict.silent_ms = 2600;
    report_describe(&verdict, 77, "", text);
    cr_assert_str_eq(text, "rank 1 (pid 77) silent for 2600 ms in phase load at step 17");
}

Test(report, writes_one_object_a_line_with_every_ranks_role)
{
    struct incident incident = make_incident();
    char path[FS_PATH_MAX], *text;
    size_t bytes;
    cJSON *object;

    cr_assert_eq(report_append(&dir, &incident), STATUS_OK);
    cr_assert_eq(report_append(&dir, &incident), STATUS_OK);
    cr_assert_eq(fs_join(path, dir.path, REPORT_FILE), STATUS_OK);
    cr_assert_eq(fs_read_file(fs_posix(), path, 100000, &text, &bytes), STATUS_OK);
    char *end = strchr(text, '\n');

    cr_assert_not_null(end);
    cr_assert_eq((size_t)(end - text + 1) * 2, bytes);
    cr_assert_eq(json_parse(text, (size_t)(end - text), path, &object), STATUS_OK);
    cr_assert_eq(cJSON_GetObjectItem(object, "generation")->valueint, 4);
    cr_assert_str_eq(cJSON_GetObjectItem(object, "message")->valuestring, incident.message);
    const cJSON *ranks = cJSON_GetObjectItem(object, "ranks");

    cr_assert_eq(cJSON_GetArraySize(ranks), 2);
    cr_assert_str_eq(cJSON_GetObjectItem(cJSON_GetArrayItem(ranks, 0), "role")->valuestring,
                     "cascade");
    cr_assert_str_eq(cJSON_GetObjectItem(cJSON_GetArrayItem(ranks, 1), "role")->valuestring,
                     "initiating");
    cJSON_Delete(object);
    mem_free(&text);
}

static void tear_last_line(void)
{
    char path[FS_PATH_MAX];
    struct fs_file *file;
    uint64_t bytes;

    cr_assert_eq(fs_join(path, dir.path, REPORT_FILE), STATUS_OK);
    cr_assert_eq(fs_open(fs_posix(), path, FS_UPDATE, &file), STATUS_OK);
    cr_assert_eq(fs_file_size(file, &bytes), STATUS_OK);
    cr_assert_eq(fs_truncate(file, bytes - 20), STATUS_OK);
    fs_close(&file);
}

static char *print_table(void)
{
    static char text[16384];

    cr_redirect_stdout();
    cr_assert_eq(report_print(dir.path), STATUS_OK);
    (void)fflush(stdout);
    FILE *file = cr_get_redirected_stdout();

    (void)fclose(stdout); /* the reader below waits for the end */
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    return text;
}

Test(report, prints_a_table_and_survives_a_torn_line)
{
    struct incident incident = make_incident();

    cr_assert_eq(report_append(&dir, &incident), STATUS_OK);
    tear_last_line();
    incident.plan.action = RESUME_GIVE_UP;
    (void)snprintf(incident.plan.reason, sizeof incident.plan.reason, "no restarts left");
    cr_assert_eq(report_append(&dir, &incident), STATUS_OK);
    char *table = print_table();

    cr_assert_not_null(strstr(table, "first cause"));
    cr_assert_not_null(strstr(table, "rank 1 (pid 77) killed by signal 9 (SIGKILL)"));
    cr_assert_not_null(strstr(table, "no restarts left"));
    cr_assert_null(strstr(table, "restart 1 of 3"));
}

Test(report, says_so_when_there_is_no_such_run)
{
    char path[FS_PATH_MAX];

    cr_assert_eq(fs_join(path, dir.path, "nothing"), STATUS_OK);
    cr_assert_eq(report_print(path), STATUS_NOT_FOUND);
}
