/* Claims of run_env.h: the environment of a rank, its progress page, its last words. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/meta/run_env.h"
#include "tests/unit/meta/meta_support.h"

static void clear_environment(void)
{
    static const char *const names[] = {
        RUN_ENV_RANK,    RUN_ENV_WORLD_SIZE, RUN_ENV_LOCAL_RANK, RUN_ENV_LOCAL_WORLD_SIZE,
        RUN_ENV_RUN_DIR, RUN_ENV_RUN_ID,     RUN_ENV_GENERATION, RUN_ENV_COMMITTED_STEP};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        cr_assert(unsetenv(names[i]) == 0);
    }
}

TestSuite(run_env, .init = clear_environment);

Test(run_env, without_variables_this_is_the_only_rank_and_has_no_agent)
{
    struct run_env env;

    assert_ok(run_env_read(&env));
    cr_assert(env.rank == 0 && env.world_size == 1);
    cr_assert(env.local_rank == 0 && env.local_world_size == 1);
    cr_assert(!env.has_agent && env.run_id[0] == '\0');
    cr_assert(env.generation == 0 && env.committed_step == -1);
}

Test(run_env, an_agents_variables_are_read)
{
    struct run_env env;

    setenv(RUN_ENV_RANK, "3", 1);
    setenv(RUN_ENV_WORLD_SIZE, "8", 1);
    setenv(RUN_ENV_LOCAL_RANK, "1", 1);
    setenv(RUN_ENV_LOCAL_WORLD_SIZE, "2", 1);
    setenv(RUN_ENV_RUN_DIR, "/run/x", 1);
    setenv(RUN_ENV_RUN_ID, "abc", 1);
    setenv(RUN_ENV_GENERATION, "7", 1);
    setenv(RUN_ENV_COMMITTED_STEP, "500", 1);
    assert_ok(run_env_read(&env));
    cr_assert(env.rank == 3 && env.world_size == 8);
    cr_assert(env.local_rank == 1 && env.local_world_size == 2);
    cr_assert(env.has_agent && env.generation == 7 && env.committed_step == 500);
    cr_assert_str_eq(env.run_dir, "/run/x");
    cr_assert_str_eq(env.run_id, "abc");
}

Test(run_env, what_is_no_number_or_out_of_range_is_wrong_usage)
{
    static const char *const values[] = {"x", "1x", " 1", "-1", "99999999999999999999", "1.0"};
    struct run_env env;

    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        setenv(RUN_ENV_RANK, values[i], 1);
        assert_status(run_env_read(&env), STATUS_USAGE);
        cr_assert(strstr(status_last()->message, values[i]) != NULL);
    }
    setenv(RUN_ENV_RANK, "2", 1);
    setenv(RUN_ENV_WORLD_SIZE, "2", 1);
    assert_status(run_env_read(&env), STATUS_USAGE);
    setenv(RUN_ENV_RANK, "1", 1);
    setenv(RUN_ENV_LOCAL_RANK, "1", 1);
    assert_status(run_env_read(&env), STATUS_USAGE);
}

static struct run_env agent_env(const char *run_dir, int rank, uint64_t generation)
{
    struct run_env env = {.rank = rank, .world_size = 8, .has_agent = true};

    env.generation = generation;
    (void)snprintf(env.run_dir, sizeof env.run_dir, "%s", run_dir);
    return env;
}

Test(progress, a_rank_in_another_process_is_seen_by_the_agent)
{
    char folder[FS_PATH_MAX];
    struct progress *agent = NULL;
    int status;

    support_make_folder(folder);
    assert_ok(progress_create(folder, 3, 2, &agent));
    const struct progress_page *page = progress_page(agent);
    cr_assert(page->phase == PROGRESS_NONE && page->beat == 0 && page->committed_step == -1);
    pid_t child = fork();
    if (child == 0) {
        /* Through exec: nothing of the agent's mapping is left. */
        execl(PROGRESS_RANK, "progress_rank", folder, (char *)NULL);
        _exit(127);
    }
    cr_assert(waitpid(child, &status, 0) == child && status == 0);
    cr_assert(page->phase == PROGRESS_SAVE);
    cr_assert(page->beat == 4, "%llu", (unsigned long long)page->beat);
    cr_assert(page->step == 42 && page->micro_batch == 3 && page->committed_step == 40);
    cr_assert(page->pid > 0 && page->pid != getpid());
    progress_close(&agent);
    support_remove_folder(folder);
}

Test(progress, a_rank_of_an_earlier_generation_is_turned_away_and_beats_nowhere)
{
    char folder[FS_PATH_MAX];
    struct progress *first = NULL, *late = NULL, *second = NULL;

    support_make_folder(folder);
    struct run_env env = agent_env(folder, 0, 1);
    assert_ok(progress_create(folder, 0, 1, &first));
    assert_ok(progress_open(&env, &late));
    assert_ok(progress_create(folder, 0, 2, &second));
    progress_beat(late);
    cr_assert(progress_page(first)->beat == 2 && progress_page(second)->beat == 0);
    progress_close(&late);
    assert_status(progress_open(&env, &late), STATUS_ABORTED);
    cr_assert(late == NULL);
    progress_close(&first);
    progress_close(&second);
    support_remove_folder(folder);
}

Test(progress, a_page_that_is_short_or_foreign_or_missing_is_refused)
{
    char folder[FS_PATH_MAX], pages[FS_PATH_MAX];
    static char foreign[5000];
    struct progress *progress = NULL;

    support_make_folder(folder);
    struct run_env env = agent_env(folder, 0, 1);
    assert_status(progress_open(&env, &progress), STATUS_NOT_FOUND);
    assert_ok(fs_join(pages, folder, "progress"));
    assert_ok(fs_mkdir(fs_posix(), pages));
    support_write_text(fs_posix(), pages, "rank_00000", "short");
    assert_status(progress_open(&env, &progress), STATUS_CORRUPT);
    memset(foreign, 'x', sizeof foreign - 1);
    support_write_text(fs_posix(), pages, "rank_00000", foreign);
    assert_status(progress_open(&env, &progress), STATUS_CORRUPT);
    support_remove_folder(folder);
}

Test(progress, without_an_agent_there_is_a_page_all_the_same)
{
    struct run_env env = {.world_size = 1};
    struct progress *progress = NULL;

    assert_ok(progress_open(&env, &progress));
    progress_set_phase(progress, PROGRESS_STEP);
    cr_assert(progress_page(progress)->phase == PROGRESS_STEP);
    progress_close(&progress);
    progress_close(&progress);
}

Test(failure, last_words_are_read_back_and_the_error_stays_the_last_one)
{
    char folder[FS_PATH_MAX];
    struct failure_record record = {.rank = 3,
                                    .generation = 2,
                                    .status = STATUS_NO_SPACE,
                                    .phase = PROGRESS_SAVE,
                                    .step = 500,
                                    .message = "no space for '/x \"y\"\n': 5 wanted",
                                    .wall_ns = 1764560659123456789};
    struct failure_record read;

    support_make_folder(folder);
    struct run_env env = agent_env(folder, 3, 2);
    assert_status(failure_read(folder, 3, 2, &read), STATUS_NOT_FOUND);
    (void)!FAIL(STATUS_NO_SPACE, "the cause");
    failure_write(&env, &record);
    cr_assert_str_eq(status_last()->message, "the cause");
    assert_ok(failure_read(folder, 3, 2, &read));
    cr_assert(read.rank == 3 && read.generation == 2 && read.status == STATUS_NO_SPACE);
    cr_assert(read.phase == PROGRESS_SAVE && read.step == 500);
    cr_assert(read.wall_ns == record.wall_ns);
    cr_assert_str_eq(read.message, record.message);
    assert_status(failure_read(folder, 3, 1, &read), STATUS_NOT_FOUND);
    support_remove_folder(folder);
}

Test(failure, nothing_is_written_without_an_agent_and_no_failure_to_write_is_raised)
{
    struct failure_record record = {.status = STATUS_IO};
    struct run_env env = {.world_size = 1};

    failure_write(&env, &record);
    env = agent_env("/proc/no such place", 0, 0);
    failure_write(&env, &record);
}

Test(failure, a_damaged_record_is_corrupt)
{
    char folder[FS_PATH_MAX], records[FS_PATH_MAX];
    struct failure_record read;

    support_make_folder(folder);
    assert_ok(fs_join(records, folder, "failure"));
    assert_ok(fs_mkdir(fs_posix(), records));
    support_write_text(fs_posix(), records, "gen_0_rank_0.json", "{\"status\": \"NO_SUCH\"}");
    assert_status(failure_read(folder, 0, 0, &read), STATUS_CORRUPT);
    support_write_text(fs_posix(), records, "gen_0_rank_0.json", "{\"status\":");
    assert_status(failure_read(folder, 0, 0, &read), STATUS_CORRUPT);
    support_remove_folder(folder);
}
