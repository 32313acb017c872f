/* Claims of lease.h: one owner, whoever races; the stale one is fenced; nobody is locked out. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/mem.h"
#include "ckpt/meta/commit.h"
#include "ckpt/meta/lease.h"
#include "tests/support/fs_sim.h"
#include "tests/unit/meta/meta_support.h"

#define RACES 200
#define RACERS 2

struct racer {
    pthread_t thread;
    pthread_barrier_t *start;
    char save[FS_PATH_MAX];
    char run_id[32];
    struct lease *lease;
    enum status st;
};

static void *race(void *context)
{
    struct racer *racer = context;

    (void)pthread_barrier_wait(racer->start);
    racer->st = lease_acquire(fs_posix(), racer->save, racer->run_id, &racer->lease);
    return NULL;
}

static int64_t milliseconds_since(int64_t start_ns)
{
    return (clock_monotonic_ns() - start_ns) / 1000000;
}

/* All races at once, each in its own folder, so that the losers watch side by side. */
static void run_races(const char *folder, bool after_release)
{
    static struct racer racers[RACES][RACERS];
    static pthread_barrier_t starts[RACES];
    const char *const ids[RACERS] = {"run-a", "run-b"};

    memset(racers, 0, sizeof racers);
    for (int i = 0; i < RACES; i++) {
        char name[32];

        (void)snprintf(name, sizeof name, "race-%d", i);
        const char *save = support_path(folder, name);
        assert_ok(fs_mkdir(fs_posix(), save));
        cr_assert(pthread_barrier_init(&starts[i], NULL, RACERS) == 0);
        if (after_release) {
            struct lease *before = NULL;
            assert_ok(lease_acquire(fs_posix(), save, "run-before", &before));
            lease_release(&before);
        }
        for (int r = 0; r < RACERS; r++) {
            struct racer *racer = &racers[i][r];

            racer->start = &starts[i];
            (void)snprintf(racer->save, sizeof racer->save, "%s", save);
            (void)snprintf(racer->run_id, sizeof racer->run_id, "%s", ids[r]);
            cr_assert(pthread_create(&racer->thread, NULL, race, racer) == 0);
        }
    }
    for (int i = 0; i < RACES; i++) {
        int winners = 0;

        for (int r = 0; r < RACERS; r++) {
            (void)pthread_join(racers[i][r].thread, NULL);
            winners += racers[i][r].st == STATUS_OK;
            cr_assert(racers[i][r].st == STATUS_OK || racers[i][r].st == STATUS_NOT_OWNER);
        }
        cr_assert(winners == 1, "%d winners of race %d", winners, i);
    }
    for (int i = 0; i < RACES; i++) {
        for (int r = 0; r < RACERS; r++) {
            if (racers[i][r].lease != NULL) {
                assert_ok(lease_check(racers[i][r].lease));
                cr_assert(lease_epoch(racers[i][r].lease) == (after_release ? 2 : 1));
            }
            lease_release(&racers[i][r].lease);
        }
        (void)pthread_barrier_destroy(&starts[i]);
    }
}

Test(lease, of_two_writers_that_race_200_times_exactly_one_wins)
{
    char folder[FS_PATH_MAX];

    support_make_folder(folder);
    run_races(folder, false);
    support_remove_folder(folder);
}

Test(lease, of_two_that_race_for_a_released_lease_exactly_one_wins)
{
    char folder[FS_PATH_MAX];

    support_make_folder(folder);
    run_races(folder, true);
    support_remove_folder(folder);
}

Test(lease, processes_that_race_have_one_winner)
{
    char folder[FS_PATH_MAX], run_id[32];
    pid_t children[4];
    int winners = 0, status;

    support_make_folder(folder);
    for (int i = 0; i < 4; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            struct lease *lease = NULL;

            (void)snprintf(run_id, sizeof run_id, "run-%d", i);
            if (lease_acquire(fs_posix(), folder, run_id, &lease) != STATUS_OK) {
                _exit(status_last()->code == STATUS_NOT_OWNER ? 1 : 2);
            }
            clock_sleep_ms(3 * LEASE_BEAT_MS); /* longer than the others look */
            lease_release(&lease);
            _exit(0);
        }
    }
    for (int i = 0; i < 4; i++) {
        cr_assert(waitpid(children[i], &status, 0) == children[i] && WIFEXITED(status));
        cr_assert(WEXITSTATUS(status) < 2);
        winners += WEXITSTATUS(status) == 0;
    }
    cr_assert(winners == 1, "%d winners", winners);
    support_remove_folder(folder);
}

Test(lease, a_living_owner_keeps_it_and_the_error_names_both_sides)
{
    char folder[FS_PATH_MAX], pid[32];
    struct lease *owner = NULL, *other = NULL;
    int64_t start_ns;

    support_make_folder(folder);
    assert_ok(lease_acquire(fs_posix(), folder, "run-first", &owner));
    cr_assert(fs_exists(fs_posix(), lease_staging(owner)));
    start_ns = clock_monotonic_ns();
    assert_status(lease_acquire(fs_posix(), folder, "run-second", &other), STATUS_NOT_OWNER);
    cr_assert(milliseconds_since(start_ns) < 3 * LEASE_BEAT_MS);
    const char *message = status_last()->message;
    (void)snprintf(pid, sizeof pid, "pid %d", (int)getpid());
    cr_assert(strstr(message, "run-first") != NULL && strstr(message, "run-second") != NULL);
    cr_assert(strstr(message, folder) != NULL && strstr(message, pid) != NULL, "%s", message);
    cr_assert(other == NULL);
    assert_ok(lease_check(owner));
    lease_release(&owner);
    lease_release(&owner);
    support_remove_folder(folder);
}

Test(lease, the_same_run_takes_over_at_once_and_the_old_epoch_is_fenced)
{
    char folder[FS_PATH_MAX], staging[FS_PATH_MAX];
    struct fs *fs = fs_posix();
    struct lease *old = NULL, *new = NULL;
    struct manifest manifest;

    support_make_folder(folder);
    assert_ok(lease_acquire(fs, folder, "run-a", &old));
    support_fill_manifest(&manifest, 20);
    assert_ok(commit_begin(fs, old, 20, staging));
    for (int tp = 0; tp < 2; tp++) {
        support_add_file(&manifest, tp);
        assert_ok(support_write_shard(fs, staging, 20, tp));
    }
    /* The old writer has checked its lease and is just about to rename when the new one comes. */
    assert_ok(lease_check(old));
    assert_ok(manifest_write(&manifest, fs, staging));
    int64_t start_ns = clock_monotonic_ns();
    assert_ok(lease_acquire(fs, folder, "run-a", &new));
    cr_assert(milliseconds_since(start_ns) < LEASE_STALE_MS / 2);
    cr_assert(lease_epoch(new) == lease_epoch(old) + 1);
    assert_status(fs_rename(fs, staging, support_path(folder, "step_0000020")), STATUS_NOT_FOUND);

    assert_status(commit_publish(fs, folder, old, &manifest, staging), STATUS_NOT_OWNER);
    assert_status(commit_begin(fs, old, 30, staging), STATUS_NOT_OWNER);
    assert_status(lease_check(old), STATUS_NOT_OWNER);
    assert_ok(lease_check(new));
    assert_ok(support_commit(fs, folder, new, 20));
    lease_release(&old);
    assert_ok(lease_check(new));
    cr_assert(support_is_whole(fs, folder, 20));
    manifest_deinit(&manifest);
    lease_release(&new);
    support_remove_folder(folder);
}

Test(lease, a_takeover_leaves_no_older_owner_staging_or_trash)
{
    char folder[FS_PATH_MAX];
    struct fs *fs = fs_posix();
    struct lease *lease = NULL;

    support_make_folder(folder);
    assert_ok(fs_mkdir(fs, support_path(folder, ".epoch-3")));
    assert_ok(fs_mkdir(fs, support_path(folder, ".epoch-3/step_0000001")));
    support_write_text(fs, folder, ".epoch-3/step_0000001/tp00_pp00_dp00.h5", "x");
    assert_ok(fs_mkdir(fs, support_path(folder, ".epoch-41")));
    assert_ok(fs_mkdir(fs, support_path(folder, ".trash-0")));
    for (int i = 0; i < 2; i++) {
        assert_ok(lease_acquire(fs, folder, "run-a", &lease));
        cr_assert(lease_epoch(lease) == (uint64_t)(42 + i));
        struct fs_names names;
        assert_ok(fs_list(fs, folder, &names));
        cr_assert(names.count == 2, "%zu", names.count);
        cr_assert_str_eq(names.names[0], i == 0 ? ".epoch-42" : ".epoch-43");
        cr_assert_str_eq(names.names[1], i == 0 ? ".owner.42" : ".owner.43");
        fs_names_deinit(&names);
        lease_release(&lease);
    }
    support_remove_folder(folder);
}

Test(lease, a_killed_owner_of_this_host_is_succeeded_at_once_by_anybody)
{
    char folder[FS_PATH_MAX];
    struct lease *lease = NULL;
    int pipe_ends[2], status;
    char byte;

    support_make_folder(folder);
    cr_assert(pipe(pipe_ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        if (lease_acquire(fs_posix(), folder, "run-a", &lease) == STATUS_OK) {
            (void)!write(pipe_ends[1], "x", 1);
        }
        for (;;) {
            (void)pause();
        }
    }
    cr_assert(read(pipe_ends[0], &byte, 1) == 1);
    cr_assert(kill(child, SIGKILL) == 0);
    cr_assert(waitpid(child, &status, 0) == child);
    int64_t start_ns = clock_monotonic_ns();
    assert_ok(lease_acquire(fs_posix(), folder, "run-b", &lease));
    cr_assert(milliseconds_since(start_ns) < LEASE_STALE_MS / 2);
    cr_assert(lease_epoch(lease) == 2);
    lease_release(&lease);
    support_remove_folder(folder);
}

/* Writes an owner file as another host would, and says how long a newcomer took. */
static void take_from_stranger(const char *text, int64_t *out_took_ms)
{
    char folder[FS_PATH_MAX];
    struct lease *lease = NULL;

    support_make_folder(folder);
    support_write_text(fs_posix(), folder, ".owner.7", text);
    int64_t start_ns = clock_monotonic_ns();
    assert_ok(lease_acquire(fs_posix(), folder, "run-b", &lease));
    *out_took_ms = milliseconds_since(start_ns);
    cr_assert(lease_epoch(lease) == 8);
    lease_release(&lease);
    support_remove_folder(folder);
}

Test(lease, a_half_written_owner_file_locks_out_for_the_stale_time_only)
{
    int64_t took_ms;

    take_from_stranger("{\"counter\": \"0000", &took_ms);
    cr_assert(took_ms >= LEASE_STALE_MS && took_ms < 2 * LEASE_STALE_MS, "%lld",
              (long long)took_ms);
}

Test(lease, an_empty_owner_file_locks_out_for_the_stale_time_only)
{
    int64_t took_ms;

    take_from_stranger("", &took_ms);
    cr_assert(took_ms >= LEASE_STALE_MS && took_ms < 2 * LEASE_STALE_MS, "%lld",
              (long long)took_ms);
}

Test(lease, an_owner_file_full_of_rubbish_locks_out_for_the_stale_time_only)
{
    static char rubbish[10000];
    int64_t took_ms;

    memset(rubbish, '{', sizeof rubbish - 1);
    take_from_stranger(rubbish, &took_ms);
    cr_assert(took_ms >= LEASE_STALE_MS && took_ms < 2 * LEASE_STALE_MS, "%lld",
              (long long)took_ms);
}

/* This process's own owner file, while it held. */
static void copy_owner(char *out_text, size_t bytes)
{
    char folder[FS_PATH_MAX], *text;
    struct lease *lease = NULL;
    size_t count;

    support_make_folder(folder);
    assert_ok(lease_acquire(fs_posix(), folder, "run-a", &lease));
    assert_ok(fs_read_file(fs_posix(), support_path(folder, ".owner.1"), 4096, &text, &count));
    lease_release(&lease);
    (void)snprintf(out_text, bytes, "%s", text);
    mem_free(&text);
    support_remove_folder(folder);
}

static void replace_member(char *text, size_t bytes, const char *key, const char *value)
{
    char *at = strstr(text, key);
    char *rest = NULL;

    cr_assert(at != NULL, "no %s in %s", key, text);
    assert_ok(mem_copy_string(&rest, at + strcspn(at, ",}")));
    (void)snprintf(at, bytes - (size_t)(at - text), "%s%s%s", key, value, rest);
    mem_free(&rest);
}

Test(lease, a_pid_of_another_pid_namespace_proves_nothing)
{
    char text[4096];
    int64_t took_ms;

    copy_owner(text, sizeof text);
    replace_member(text, sizeof text, "\"pid\":", "2147483000"); /* no such process here */
    replace_member(text, sizeof text, "\"pid_namespace\":", "1");
    take_from_stranger(text, &took_ms);
    cr_assert(took_ms >= LEASE_STALE_MS, "%lld", (long long)took_ms);
}

Test(lease, a_pid_that_another_process_has_now_is_gone)
{
    char text[4096];
    int64_t took_ms;

    copy_owner(text, sizeof text);
    replace_member(text, sizeof text, "\"start_time\":", "1");
    take_from_stranger(text, &took_ms);
    cr_assert(took_ms < LEASE_STALE_MS / 2, "%lld", (long long)took_ms);
}

Test(lease, a_moving_counter_of_another_host_keeps_newcomers_out)
{
    char text[4096], folder[FS_PATH_MAX];
    struct lease *lease = NULL;

    support_make_folder(folder);
    copy_owner(text, sizeof text);
    replace_member(text, sizeof text, "\"host\":", "\"elsewhere\"");
    support_write_text(fs_posix(), folder, ".owner.1", text);
    pid_t child = fork();
    if (child == 0) {
        struct fs_file *file = NULL;

        clock_sleep_ms(2 * LEASE_BEAT_MS);
        if (fs_open(fs_posix(), support_path(folder, ".owner.1"), FS_UPDATE, &file) == STATUS_OK) {
            (void)!fs_pwrite(file, "00000000000000000009", 20, strlen("{\"counter\": \""));
        }
        _exit(0);
    }
    assert_status(lease_acquire(fs_posix(), folder, "run-b", &lease), STATUS_NOT_OWNER);
    cr_assert(strstr(status_last()->message, "elsewhere") != NULL, "%s", status_last()->message);
    cr_assert(waitpid(child, NULL, 0) == child);
    support_remove_folder(folder);
}

/* While a newcomer is about to create .owner.2, two others come and go up to epoch 3. */
static enum status (*plain_open)(struct fs *fs, const char *path, enum fs_open_mode mode,
                                 struct fs_file **out_file);
static struct lease *third;

static enum status open_late(struct fs *fs, const char *path, enum fs_open_mode mode,
                             struct fs_file **out_file)
{
    static bool busy;

    if (mode == FS_CREATE_NEW && !busy && strcmp(path, "/.owner.2") == 0) {
        struct lease *second = NULL;

        busy = true;
        assert_ok(lease_acquire(fs, "/", "run-2", &second));
        lease_release(&second);
        assert_ok(lease_acquire(fs, "/", "run-3", &third));
    }
    return plain_open(fs, path, mode, out_file);
}

Test(lease, a_newcomer_who_slept_takes_no_number_below_the_owners_and_fences_nobody)
{
    struct fs_sim *sim = fs_sim_create();
    struct fs *fs = fs_sim_fs(sim);
    struct fs_ops ops = *fs->ops;
    struct lease *first = NULL, *late = NULL;

    assert_ok(lease_acquire(fs, "/", "run-1", &first));
    lease_release(&first);
    plain_open = ops.open;
    ops.open = open_late;
    fs->ops = &ops;
    assert_status(lease_acquire(fs, "/", "run-late", &late), STATUS_NOT_OWNER);
    cr_assert(third != NULL && lease_epoch(third) == 3);
    assert_ok(lease_check(third));
    cr_assert(fs_exists(fs, lease_staging(third)) && !fs_exists(fs, "/.owner.2"));
    lease_release(&third);
    fs_sim_destroy(sim);
}

/* The power goes when the lease stands: its file and its staging are there afterwards. */
Test(lease, what_was_acquired_is_durable)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct fs_sim *sim = fs_sim_create();
        struct heartbeat_record record;
        struct lease *lease = NULL;

        assert_ok(lease_acquire(fs_sim_fs(sim), "/", "run-1", &lease));
        fs_sim_crash(sim, seed);
        assert_ok(heartbeat_read(fs_sim_fs(sim), "/.owner.1", &record));
        cr_assert(record.readable && strcmp(record.holder.run_id, "run-1") == 0);
        cr_assert(fs_exists(fs_sim_fs(sim), lease_staging(lease)));
        lease_release(&lease);
        fs_sim_destroy(sim);
    }
}

Test(lease, an_owner_file_that_was_removed_by_hand_is_noticed)
{
    char folder[FS_PATH_MAX];
    struct lease *lease = NULL;

    support_make_folder(folder);
    assert_ok(lease_acquire(fs_posix(), folder, "run-a", &lease));
    assert_ok(fs_unlink(fs_posix(), support_path(folder, ".owner.1")));
    assert_status(lease_check(lease), STATUS_NOT_OWNER);
    lease_release(&lease);
    support_remove_folder(folder);
}

Test(lease, run_ids_are_fresh)
{
    char a[LEASE_RUN_ID_MAX], b[LEASE_RUN_ID_MAX];

    assert_ok(lease_make_run_id(a));
    assert_ok(lease_make_run_id(b));
    cr_assert(strlen(a) == 32 && strspn(a, "0123456789abcdef") == 32);
    cr_assert(strcmp(a, b) != 0);
}
