/* The agent with real processes: killed, stopped, hung, failing, and the agent itself killed. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/json.h"
#include "ckpt/base/mem.h"
#include "ckpt/meta/manifest.h"
#include "tests/process/drill.h"

#define ARGUMENTS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define KILLS 100

static struct drill drill;

static void set_up(void)
{
    drill_init(&drill);
}

static void tear_down(void)
{
    drill_deinit(&drill);
}

TestSuite(agent, .init = set_up, .fini = tear_down, .timeout = 200);

static bool output_has(const char *text)
{
    return drill.text != NULL && strstr(drill.text, text) != NULL;
}

/* The last whole line of the output. */
static const char *last_line(void)
{
    size_t at = drill.bytes - 1;

    while (at > 0 && drill.text[at - 1] != '\n') {
        at--;
    }
    return drill.text + at;
}

static int run_to_end(const char *const *arguments)
{
    drill_start(&drill, arguments);
    return drill_wait_exit(&drill, 60000);
}

Test(agent, ends_with_0_when_all_ranks_do)
{
    cr_assert_eq(run_to_end(ARGUMENTS("--nproc-per-node", "3", "--", FAKE_RANK, "--steps", "5")),
                 0);
    cr_assert(output_has("all ranks finished"));
}

/* What the drill of 100 kills measures. */
static int compare_times(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

Test(agent, names_a_killed_rank_at_once_a_hundred_times)
{
    static int64_t notice_us[KILLS], again_us[KILLS];
    unsigned seed = (unsigned)clock_wall_ns();
    pid_t pids[4];

    cr_log_info("seed %u", seed);
    drill_start(&drill, ARGUMENTS("--nproc_per_node", "4", "--max-restarts", "1", "--", FAKE_RANK,
                                  "--steps", "1000000", "--step-ms", "1", "--save-every", "1"));
    for (int i = 0; i < KILLS; i++) {
        int victim = rand_r(&seed) % 4;
        char want[128];

        drill_wait_ranks(&drill, 4, pids);
        (void)drill_wait_line(&drill, "committed", 10000);
        clock_sleep_ms(rand_r(&seed) % 10);
        int64_t began = clock_monotonic_ns();

        cr_assert_eq(kill(pids[victim], SIGKILL), 0);
        (void)drill_wait_line(&drill, "noticed: ", 5000);
        notice_us[i] = (clock_monotonic_ns() - began) / 1000;
        (void)snprintf(want, sizeof want,
                       "generation %d: rank %d (pid %d) killed by signal 9 "
                       "(SIGKILL) in phase ",
                       i + 2, victim, (int)pids[victim]);
        const char *line = drill_wait_line(&drill, "; resuming from step ", 10000);

        cr_assert_not_null(strstr(line, want), "wanted '%s', got '%s'", want, line);
        cr_assert_not_null(strstr(line, "3 others stopped"));
        again_us[i] = (clock_monotonic_ns() - began) / 1000;
    }
    qsort(notice_us, KILLS, sizeof notice_us[0], compare_times);
    qsort(again_us, KILLS, sizeof again_us[0], compare_times);
    cr_log_info("noticed after %" PRId64 " us (median), %" PRId64 " us (95 of 100); planned after "
                "%" PRId64 " us (median)",
                notice_us[KILLS / 2], notice_us[KILLS * 95 / 100], again_us[KILLS / 2]);
    cr_assert_lt(notice_us[KILLS * 95 / 100], 100000);
    cr_assert_eq(kill(drill.agent, SIGTERM), 0);
    cr_assert_eq(drill_wait_exit(&drill, 20000), 75);
}

Test(agent, names_a_stopped_rank_and_ends_it)
{
    pid_t pids[3];

    drill_start(&drill, ARGUMENTS("--nproc-per-node", "3", "--", FAKE_RANK, "--steps", "400"));
    drill_wait_ranks(&drill, 3, pids);
    clock_sleep_ms(200);
    int64_t began = clock_monotonic_ns();

    cr_assert_eq(kill(pids[1], SIGSTOP), 0);
    (void)drill_wait_line(&drill, "rank 1 (pid ", 500);
    (void)drill_wait_line(&drill, "generation 2: rank 1 (pid ", 10000);
    cr_assert_lt(clock_monotonic_ns() - began, 3000000000LL);
    drill_wait_gone(pids[1], 1000);
    cr_assert(output_has("stopped by a signal and not continued"));
    cr_assert_eq(drill_wait_exit(&drill, 60000), 0);
}

Test(agent, lets_a_stopped_rank_go_on_when_it_is_continued)
{
    pid_t pids[2];

    drill_start(&drill, ARGUMENTS("--nproc-per-node", "2", "--", FAKE_RANK, "--steps", "200"));
    drill_wait_ranks(&drill, 2, pids);
    cr_assert_eq(kill(pids[0], SIGSTOP), 0);
    (void)drill_wait_line(&drill, "stopped by SIGSTOP", 1000);
    cr_assert_eq(kill(pids[0], SIGCONT), 0);
    (void)drill_wait_line(&drill, "continued", 1000);
    cr_assert_eq(drill_wait_exit(&drill, 60000), 0);
    cr_assert_not(output_has("generation 2"));
}

Test(agent, names_a_rank_in_an_endless_loop_within_four_seconds)
{
    drill_start(&drill, ARGUMENTS("--nproc-per-node", "3", "--", FAKE_RANK, "--steps", "100",
                                  "--step-ms", "20", "--do", "2:1:60:loop"));
    int64_t began = clock_monotonic_ns();

    (void)drill_wait_line(&drill, "noticed: rank 2 (pid ", 10000);
    cr_assert_lt(clock_monotonic_ns() - began, 1500000000LL + 4000000000LL);
    const char *line = drill_wait_line(&drill, "generation 2: rank 2 (pid ", 10000);

    cr_assert_not_null(strstr(line, "silent for "));
    cr_assert_not_null(strstr(line, "in phase step at step 60"));
    cr_assert_eq(drill_wait_exit(&drill, 60000), 0);
}

Test(agent, names_the_rank_that_skips_a_collective)
{
    cr_assert_eq(run_to_end(ARGUMENTS("--nproc-per-node", "3", "--hang-timeout-ms", "1000", "--",
                                      FAKE_RANK, "--steps", "10", "--do", "1:1:5:skip")),
                 0);
    cr_assert(output_has("generation 2: rank 1 (pid "));
    cr_assert(output_has("held up all ranks"));
}

Test(agent, gives_a_save_its_own_limit)
{
    cr_assert_eq(run_to_end(ARGUMENTS("--nproc-per-node", "2", "--save-timeout-ms", "4000", "--",
                                      FAKE_RANK, "--steps", "10", "--do", "0:1:5:save")),
                 0);
    cr_assert(output_has("generation 2: rank 0 (pid "));
    cr_assert(output_has("in phase save at step 5"));
    cr_assert_not(output_has("silent for 2"));
}

struct code_case {
    const char *action;
    int exit_code; /* of the agent */
    bool retried;
    const char *last; /* in its last line */
};

Test(agent, ends_with_the_code_of_what_cannot_be_helped)
{
    static const struct code_case cases[] = {
        {"1:0:3:exit=2", 2, false, "exited with code 2 (wrong usage)"},
        {"1:0:3:fail=OPTIONS_DIFFER", 14, false, "cannot read 'some file'"},
        {"1:0:3:fail=NO_CHECKPOINT", 10, false, "rank 1 (pid "},
        {"0:0:3:fail=NOT_OWNER", 11, false, "rank 0 (pid "},
        {"1:0:0:fail=CORRUPT", 12, false, "exited with code 12 (corrupt) in phase start"},
        {"1:0:3:fail=NUMERIC", 93, true, "same failure at the same step 3 times"},
        {"1:0:3:segv", 93, true, "killed by signal 11 (SIGSEGV)"},
        {"1:0:0:exit=1", 93, true, "before the first step"},
        {"1:1:3:exit=1", 0, true, ""},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct drill one;

        drill_init(&one);
        drill_start(&one, ARGUMENTS("--nproc-per-node", "2", "--max-restarts", "9", "--", FAKE_RANK,
                                    "--steps", "5", "--step-ms", "100", "--do", cases[i].action));
        cr_expect_eq(drill_wait_exit(&one, 60000), cases[i].exit_code, "%s:\n%s", cases[i].action,
                     one.text);
        drill.text = one.text; /* for last_line */
        drill.bytes = one.bytes;
        cr_expect_not_null(strstr(last_line(), cases[i].last), "%s ends with: %s", cases[i].action,
                           last_line());
        cr_expect_eq(output_has("generation 2: "), cases[i].retried, "%s", cases[i].action);
        drill.text = NULL;
        drill_deinit(&one);
    }
}

Test(agent, retries_a_failure_before_the_first_step_once)
{
    cr_assert_eq(
        run_to_end(ARGUMENTS("--nproc-per-node", "2", "--", FAKE_RANK, "--do", "0:0:0:exit=1")),
        93);
    cr_assert(output_has("generation 2: "));
    cr_assert_not(output_has("generation 3: "));
}

Test(agent, spends_its_restarts_only_when_nothing_is_committed)
{
    /* Each generation commits before it dies, or dies elsewhere than the one before. */
    cr_assert_eq(
        run_to_end(ARGUMENTS("--nproc-per-node", "2", "--max-restarts", "2", "--", FAKE_RANK,
                             "--steps", "50", "--save-every", "10", "--do", "0:1:11:kill", "--do",
                             "0:2:21:kill", "--do", "0:3:31:kill", "--do", "0:4:41:kill")),
        0);
    drill_deinit(&drill);
    drill_init(&drill);
    cr_assert_eq(run_to_end(ARGUMENTS("--nproc-per-node", "2", "--max-restarts", "2", "--",
                                      FAKE_RANK, "--steps", "50", "--do", "0:1:1:kill", "--do",
                                      "0:2:2:kill", "--do", "1:3:3:kill")),
                 93);
    cr_assert_not_null(strstr(last_line(), "all 2 restarts without a new commit are used up"));
    cr_assert_not_null(strstr(last_line(), "first cause: rank 0 (pid "));
    cr_assert_not_null(strstr(last_line(), "at step 1"));
}

Test(agent, leaves_nothing_when_it_is_killed_itself)
{
    pid_t pids[4];

    /* Silent ranks: nothing but the agent's death could end them. */
    drill_start(&drill, ARGUMENTS("--nproc-per-node", "4", "--", FAKE_RANK, "--steps", "100000"));
    drill_wait_ranks(&drill, 4, pids);
    clock_sleep_ms(200);
    cr_assert_eq(kill(drill.agent, SIGKILL), 0);
    for (int i = 0; i < 4; i++) {
        drill_wait_gone(pids[i], 1000);
    }
    cr_assert_eq(drill_wait_exit(&drill, 10000), -SIGKILL);
}

static void read_state(char out_run_id[64], int64_t *out_committed)
{
    char path[FS_PATH_MAX];
    const char *run_id;
    cJSON *object;

    cr_assert_eq(fs_join(path, drill.run_dir, "run.json"), STATUS_OK);
    cr_assert_eq(json_read_file(fs_posix(), path, &object), STATUS_OK);
    cr_assert_eq(json_get_string(object, path, "run_id", &run_id), STATUS_OK);
    cr_assert_eq(json_get_i64(object, path, "committed_step", out_committed), STATUS_OK);
    (void)snprintf(out_run_id, 64, "%s", run_id);
    cJSON_Delete(object);
}

Test(agent, goes_on_with_the_run_after_its_own_death)
{
    char before[64], after[64];
    int64_t committed;
    pid_t pids[2];

    drill_start(&drill, ARGUMENTS("--nproc-per-node", "2", "--", FAKE_RANK, "--steps", "100000",
                                  "--save-every", "1"));
    drill_wait_ranks(&drill, 2, pids);
    (void)drill_wait_line(&drill, "committed 30", 10000);
    clock_sleep_ms(200);
    cr_assert_eq(kill(drill.agent, SIGKILL), 0);
    (void)drill_wait_exit(&drill, 10000);
    read_state(before, &committed);
    cr_assert_geq(committed, 30);
    drill_start(&drill, ARGUMENTS("--nproc-per-node", "2", "--", FAKE_RANK, "--steps", "40"));
    (void)drill_wait_line(&drill, "generation 2: rank 0 of 2 started", 10000);
    cr_assert_eq(drill_wait_exit(&drill, 20000), 0);
    read_state(after, &committed);
    cr_assert_str_eq(before, after);
}

Test(agent, passes_a_stop_on_and_ends_with_75)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGUSR1};
    pid_t pids[3];

    for (int i = 0; i < 3; i++) {
        drill_start(&drill,
                    ARGUMENTS("--nproc-per-node", "3", "--", FAKE_RANK, "--steps", "1000000"));
        drill_wait_ranks(&drill, 3, pids);
        clock_sleep_ms(100);
        cr_assert_eq(kill(drill.agent, signals[i]), 0);
        cr_expect_eq(drill_wait_exit(&drill, 10000), 75, "signal %d:\n%s", signals[i], drill.text);
        cr_expect(output_has("all ranks saved and stopped"));
    }
}

Test(agent, kills_at_the_second_signal)
{
    pid_t pids[2];

    drill_start(&drill, ARGUMENTS("--nproc-per-node", "2", "--", FAKE_RANK, "--steps", "1000000",
                                  "--do", "1:1:3:save"));
    drill_wait_ranks(&drill, 2, pids);
    clock_sleep_ms(300);
    cr_assert_eq(kill(drill.agent, SIGTERM), 0);
    clock_sleep_ms(800);
    cr_assert_eq(kill(drill.agent, SIGTERM), 0);
    cr_assert_eq(drill_wait_exit(&drill, 5000), 130);
    drill_wait_gone(pids[0], 1000);
    drill_wait_gone(pids[1], 1000);
}

Test(agent, shares_its_run_folder_with_no_other)
{
    struct drill second = drill;
    pid_t pids[2];

    drill_start(&drill, ARGUMENTS("--nproc-per-node", "2", "--", FAKE_RANK, "--steps", "1000000"));
    drill_wait_ranks(&drill, 2, pids);
    drill_start(&second, ARGUMENTS("--", FAKE_RANK));
    cr_assert_eq(drill_wait_exit(&second, 5000), 1);
    cr_assert_not_null(strstr(second.text, "is in use by another agent"));
    (void)close(second.fd);
    mem_free(&second.text);
    cr_assert_not(drill_is_gone(pids[0]));
}

Test(agent, ends_what_a_rank_left_behind)
{
    cr_assert_eq(run_to_end(ARGUMENTS("--nproc-per-node", "2", "--", FAKE_RANK, "--steps", "5",
                                      "--do", "1:1:2:linger")),
                 0);
    cr_assert(output_has("1 processes that ranks had left behind were ended"));
}

Test(agent, keeps_long_lines_of_64_ranks_whole)
{
    size_t lines = 0;

    cr_assert_eq(run_to_end(ARGUMENTS("--nproc-per-node", "64", "--", FAKE_RANK, "--steps", "2",
                                      "--lines", "5", "--line-bytes", "9000")),
                 0);
    for (char *line = drill.text; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        int rank, generation, at = 0;

        line[length] = '\0';
        if (sscanf(line, "[gen %d rank %d] %n", &generation, &rank, &at) == 2 && at > 0) {
            size_t run = strspn(line + at, (char[]){(char)('a' + rank % 26), '\0'});

            cr_expect_eq(run, 9000, "rank %d: %zu", rank, run);
            cr_expect_eq(strncmp(line + at + run, " step ", 6), 0);
            lines++;
        }
        line += length + 1;
    }
    cr_assert_eq(lines, 64 * 2 * 5);
}

Test(agent, leaves_a_rank_in_a_debugger_alone)
{
    pid_t pids[2];

    drill_start(&drill, ARGUMENTS("--nproc-per-node", "2", "--hang-timeout-ms", "500", "--",
                                  FAKE_RANK, "--steps", "200"));
    drill_wait_ranks(&drill, 2, pids);
    clock_sleep_ms(200);
    if (ptrace(PTRACE_SEIZE, pids[1], 0, 0) != 0) {
        cr_skip_test("ptrace is not allowed here");
    }
    cr_assert_eq(ptrace(PTRACE_INTERRUPT, pids[1], 0, 0), 0);
    (void)drill_wait_line(&drill, "stands still in a debugger", 5000);
    clock_sleep_ms(1500);
    cr_assert_not(drill_is_gone(pids[1]));
    cr_assert_eq(waitpid(pids[1], NULL, __WALL), pids[1]);
    cr_assert_eq(ptrace(PTRACE_DETACH, pids[1], 0, 0), 0);
    cr_assert_eq(drill_wait_exit(&drill, 20000), 0);
    cr_assert_not(output_has("generation 2"), "%s", drill.text);
}

/* A checkpoint that the catalog takes for one: a manifest and a file of one byte. */
static void make_checkpoint(const char *save, uint64_t step)
{
    struct manifest manifest;
    struct manifest_file shard = {.bytes = 1, .index_bytes = 1};
    struct fs_file *file;
    char name[LAYOUT_NAME_MAX], folder[FS_PATH_MAX], path[FS_PATH_MAX];

    cr_assert_eq(manifest_init(&manifest), STATUS_OK);
    manifest.step = manifest.parent_step = step;
    manifest.epoch = 1;
    manifest.created_wall_ns = clock_wall_ns();
    manifest.layout = (struct layout){1, 1, 1};
    (void)snprintf(manifest.run_id, sizeof manifest.run_id, "a-run");
    (void)snprintf(manifest.compression, sizeof manifest.compression, "none");
    layout_step_name(step, name);
    layout_shard_name(shard.coords, shard.name);
    cr_assert_eq(fs_join(folder, save, name), STATUS_OK);
    cr_assert_eq(fs_make_dirs(fs_posix(), folder), STATUS_OK);
    cr_assert_eq(fs_join(path, folder, shard.name), STATUS_OK);
    cr_assert_eq(fs_open(fs_posix(), path, FS_CREATE_NEW, &file), STATUS_OK);
    cr_assert_eq(fs_pwrite(file, "x", 1, 0), STATUS_OK);
    fs_close(&file);
    cr_assert_eq(manifest_add_tensor(&manifest, "param/t", MANIFEST_F32, 1, (uint64_t[]){1}),
                 STATUS_OK);
    cr_assert_eq(manifest_add_file(&manifest, &shard), STATUS_OK);
    cr_assert_eq(manifest_write(&manifest, fs_posix(), folder), STATUS_OK, "%s",
                 status_last()->message);
    manifest_deinit(&manifest);
}

Test(agent, says_which_checkpoint_will_be_loaded_and_why_not_a_newer_one)
{
    char save[FS_PATH_MAX], broken[FS_PATH_MAX];

    cr_assert_eq(fs_join(save, drill.parent, "the checkpoints"), STATUS_OK);
    make_checkpoint(save, 3);
    make_checkpoint(save, 6);
    cr_assert_eq(fs_join(broken, save, "step_0000006/tp00_pp00_dp00.h5"), STATUS_OK);
    cr_assert_eq(fs_unlink(fs_posix(), broken), STATUS_OK);
    cr_assert_eq(run_to_end(ARGUMENTS("--nproc-per-node", "2", "--", FAKE_RANK, "--steps", "9",
                                      "--load", save, "--do", "1:1:8:kill")),
                 0);
    cr_assert(output_has("at step 8; 1 others stopped; resuming from step 3"));
    cr_assert(output_has("step_0000006"));
}

/* `holdfast ARGUMENTS`: its exit code, and whether its output holds `text`. */
static int run_command(const char *arguments, const char *text)
{
    char command[3 * FS_PATH_MAX], output[8192];

    (void)snprintf(command, sizeof command, "'%s/holdfast' %s 2>&1", getenv("HOLDFAST_BIN"),
                   arguments);
    FILE *pipe = popen(command, "r");

    cr_assert_not_null(pipe);
    output[fread(output, 1, sizeof output - 1, pipe)] = '\0';
    cr_expect_not_null(strstr(output, text), "%s: %s", arguments, output);
    return WEXITSTATUS(pclose(pipe));
}

Test(agent, is_found_by_the_holdfast_command)
{
    char report[FS_PATH_MAX + 16];

    cr_expect_eq(run_command("", "usage: holdfast COMMAND"), 2);
    cr_expect_eq(run_command("help", "usage: holdfast COMMAND"), 0);
    cr_expect_eq(run_command("--version", "holdfast "), 0);
    cr_expect_eq(run_command("nonsense", "no command 'nonsense'"), 2);
    cr_expect_eq(run_command("help run", "--max-restarts"), 0);
    cr_expect_eq(run_command("run -h", "--nproc-per-node"), 0);
    cr_assert_eq(run_to_end(ARGUMENTS("--", FAKE_RANK, "--do", "0:1:3:kill")), 0);
    (void)snprintf(report, sizeof report, "report '%s'", drill.run_dir);
    cr_expect_eq(run_command(report, "killed by signal 9 (SIGKILL)"), 0);
}

Test(agent, says_what_it_cannot_run)
{
    cr_assert_eq(run_to_end(ARGUMENTS("--", "./no such program")), 1);
    cr_assert(output_has("cannot run './no such program'"));
    cr_assert_eq(run_to_end(ARGUMENTS("--", "nonsense")), 2);
    cr_assert(output_has("no command 'nonsense'"));
    cr_assert_eq(run_to_end(ARGUMENTS("--nproc-per-node", "2")), 2);
}
