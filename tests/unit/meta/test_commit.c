/* Claims of commit.h: the order of publishing, refusals, and the power cut at every call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/meta/catalog.h"
#include "ckpt/meta/commit.h"
#include "tests/support/fs_sim.h"
#include "tests/unit/meta/meta_support.h"

#define SAVE "/save"
#define CRASHES_PER_CUT 15

static void quiet(void)
{
    log_init(LOG_LEVEL_ERROR, "");
}

TestSuite(commit, .init = quiet);
TestSuite(power_cut, .init = quiet, .timeout = 100);

/* A machine with a durable, empty SAVE. */
static struct fs_sim *make_machine(void)
{
    struct fs_sim *sim = fs_sim_create();

    assert_ok(fs_make_dirs(fs_sim_fs(sim), SAVE));
    return sim;
}

Test(commit, publish_syncs_what_is_below_before_the_rename_and_the_parent_after_it)
{
    struct fs_sim *sim = make_machine();
    struct lease *lease = NULL;
    int at = 0;
    static const char *const order[] = {
        "sync /save/.epoch-1/step_0000020/tp00_pp00_dp00.h5",
        "sync /save/.epoch-1/step_0000020/tp01_pp00_dp00.h5",
        "write /save/.epoch-1/step_0000020/manifest.json",
        "sync /save/.epoch-1/step_0000020/manifest.json",
        "sync_dir /save/.epoch-1/step_0000020",
        "rename /save/.epoch-1/step_0000020 /save/step_0000020",
        "sync_dir /save",
        "rename /save/.tmp-",
        "sync_dir /save",
    };

    assert_ok(lease_acquire(fs_sim_fs(sim), SAVE, "run-a", &lease));
    assert_ok(support_commit(fs_sim_fs(sim), SAVE, lease, 20));
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        int found = fs_sim_find_call(sim, at, order[i]);
        cr_assert(found >= at, "'%s' is not after '%s'", order[i], i > 0 ? order[i - 1] : "start");
        at = found + 1;
    }
    cr_assert(fs_sim_find_call(sim, 0, "rename /save/.tmp-") > fs_sim_find_call(sim, 0, order[5]));
    lease_release(&lease);
    fs_sim_destroy(sim);
}

Test(commit, a_committed_step_is_not_committed_again)
{
    struct fs_sim *sim = make_machine();
    struct fs *fs = fs_sim_fs(sim);
    struct lease *lease = NULL;
    char staging[FS_PATH_MAX], *latest;
    size_t bytes;

    assert_ok(lease_acquire(fs, SAVE, "run-a", &lease));
    assert_ok(support_commit(fs, SAVE, lease, 20));
    assert_ok(fs_read_file(fs, SAVE "/" COMMIT_LATEST_FILE, 100, &latest, &bytes));
    cr_assert_str_eq(latest, "step_0000020\n");
    mem_free(&latest);
    struct manifest manifest;
    support_fill_manifest(&manifest, 20);
    assert_ok(commit_begin(fs, lease, 20, staging));
    for (int tp = 0; tp < 2; tp++) {
        support_add_file(&manifest, tp);
    }
    assert_status(commit_publish(fs, SAVE, lease, &manifest, staging), STATUS_EXISTS);
    cr_assert(!fs_exists(fs, staging));
    cr_assert(support_is_whole(fs, SAVE, 20));
    manifest_deinit(&manifest);
    lease_release(&lease);
    fs_sim_destroy(sim);
}

Test(commit, the_manifest_carries_the_epoch_of_the_lease)
{
    struct fs_sim *sim = make_machine();
    struct fs *fs = fs_sim_fs(sim);
    struct lease *lease = NULL;
    struct manifest manifest;

    for (int i = 0; i < 3; i++) {
        assert_ok(lease_acquire(fs, SAVE, "run-a", &lease));
        assert_ok(support_commit(fs, SAVE, lease, (uint64_t)i));
        lease_release(&lease);
    }
    assert_ok(manifest_read(fs, SAVE "/step_0000002", &manifest));
    cr_assert(manifest.epoch == 3);
    manifest_deinit(&manifest);
    fs_sim_destroy(sim);
}

Test(commit, begin_removes_an_older_attempt_of_the_step)
{
    struct fs_sim *sim = make_machine();
    struct fs *fs = fs_sim_fs(sim);
    struct lease *lease = NULL;
    struct fs_names names;
    char staging[FS_PATH_MAX];

    assert_ok(lease_acquire(fs, SAVE, "run-a", &lease));
    assert_ok(commit_begin(fs, lease, 20, staging));
    assert_ok(support_write_shard(fs, staging, 20, 0));
    assert_ok(commit_begin(fs, lease, 20, staging));
    assert_ok(fs_list(fs, staging, &names));
    cr_assert(names.count == 0);
    fs_names_deinit(&names);
    commit_discard(fs, staging);
    cr_assert(!fs_exists(fs, staging));
    lease_release(&lease);
    fs_sim_destroy(sim);
}

/* Commits 10, then 20 with its n-th call failing; gives the calls of the second commit. */
static uint64_t commit_with_fault(uint64_t n, enum status fault)
{
    struct fs_sim *sim = make_machine();
    struct fs *fs = fs_sim_fs(sim);
    struct lease *lease = NULL;

    assert_ok(lease_acquire(fs, SAVE, "run-a", &lease));
    assert_ok(support_commit(fs, SAVE, lease, 10));
    uint64_t before = fs_sim_calls(sim);
    fs_sim_fail_at(sim, n, fault);
    enum status st = support_commit(fs, SAVE, lease, 20);
    uint64_t calls = fs_sim_calls(sim) - before;
    fs_sim_fail_at(sim, 0, STATUS_OK);
    cr_assert(st == STATUS_OK || st == fault, "call %d: %s", (int)n, status_name(st));
    cr_assert(support_is_whole(fs, SAVE, 10), "call %d", (int)n);
    cr_assert(fs_exists(fs, SAVE "/step_0000020") == (st == STATUS_OK), "call %d", (int)n);
    cr_assert(st != STATUS_OK || support_is_whole(fs, SAVE, 20), "call %d", (int)n);
    assert_ok(support_commit(fs, SAVE, lease, 30));
    cr_assert(support_is_whole(fs, SAVE, 30), "call %d", (int)n);
    lease_release(&lease);
    fs_sim_destroy(sim);
    return calls;
}

Test(commit, each_call_that_fails_fails_the_save_alone_and_nothing_false_is_visible)
{
    uint64_t calls = commit_with_fault(0, STATUS_OK);

    cr_assert(calls > 20);
    for (uint64_t n = 1; n <= calls; n++) {
        (void)commit_with_fault(n, n % 2 == 0 ? STATUS_NO_SPACE : STATUS_IO);
    }
}

/* ---- the power cut ---- */

/* What a run does: start, commit 10, 20 and 30, prune to one after each. *out_promised is the
 * newest step whose commit was reported. */
static enum status run_once(struct fs *fs, struct lease **lease, uint64_t *out_promised)
{
    enum status st = STATUS_OK;
    size_t deleted;

    *out_promised = 0;
    TRY(st, lease_acquire(fs, SAVE, "run-a", lease), done);
    for (uint64_t step = 10; step <= 30; step += 10) {
        TRY(st, support_commit(fs, SAVE, *lease, step), done);
        *out_promised = step;
        TRY(st, catalog_prune(fs, SAVE, 1, 0, &deleted), done);
    }
done:
    return st;
}

/* An owner file that was cut while it was written costs its successor the stale time, which is
 * test_lease's claim; here that time is taken as over.
 */
static void let_time_pass(struct fs *fs)
{
    struct fs_names names;
    struct heartbeat_record record;

    assert_ok(fs_list(fs, SAVE, &names));
    for (size_t i = 0; i < names.count; i++) {
        if (strncmp(names.names[i], ".owner.", 7) != 0) {
            continue;
        }
        assert_ok(heartbeat_read(fs, support_path(SAVE, names.names[i]), &record));
        if (!record.readable) {
            support_write_text(fs, SAVE, names.names[i],
                               "{\"state\": \"released\", \"run_id\": \"\", \"host\": \"\", "
                               "\"boot_id\": \"\", \"pid_namespace\": 0, \"pid\": 0, "
                               "\"start_time\": 0}");
        }
    }
    fs_names_deinit(&names);
}

/* After the crash: the newest usable checkpoint is whole and no older than promised, and the next
 * run goes on from it, off the other line, and commits. */
static void recover(struct fs *fs, uint64_t promised, uint64_t cut, uint64_t seed)
{
    struct catalog catalog;
    struct lease *lease = NULL;
    size_t deleted;

    let_time_pass(fs);
    assert_ok(lease_acquire(fs, SAVE, "run-a", &lease));
    assert_ok(catalog_scan(fs, SAVE, &catalog));
    const struct catalog_entry *newest = catalog_choose(&catalog, UINT64_MAX);
    uint64_t step = newest != NULL ? newest->step : 0;
    cr_assert(step >= promised, "cut %d, seed %llu: step %d, promised %d", (int)cut,
              (unsigned long long)seed, (int)step, (int)promised);
    cr_assert(newest == NULL || support_is_whole(fs, SAVE, step), "cut %d, seed %llu: step %d",
              (int)cut, (unsigned long long)seed, (int)step);
    catalog_deinit(&catalog);
    assert_ok(catalog_reject_after(fs, SAVE, step, lease_epoch(lease)));
    assert_ok(support_commit(fs, SAVE, lease, step + 10));
    assert_ok(catalog_prune(fs, SAVE, 1, 0, &deleted));
    cr_assert(support_is_whole(fs, SAVE, step + 10));
    lease_release(&lease);
}

/* Runs with the power off before call `cut` (0: never), then recovers; gives the calls. */
static uint64_t run_with_cut(uint64_t cut, uint64_t seed)
{
    struct fs_sim *sim = make_machine();
    struct lease *lease = NULL;
    uint64_t promised, before = fs_sim_calls(sim);

    fs_sim_cut_at(sim, cut);
    (void)!run_once(fs_sim_fs(sim), &lease, &promised);
    uint64_t calls = fs_sim_calls(sim) - before;
    cr_assert(cut > 0 || promised == 30);
    fs_sim_crash(sim, seed);
    recover(fs_sim_fs(sim), promised, cut, seed);
    lease_release(&lease);
    fs_sim_destroy(sim);
    return calls;
}

Test(power_cut, at_any_call_of_a_run_the_newest_reported_commit_loads_bit_for_bit)
{
    uint64_t base = (uint64_t)clock_wall_ns();
    uint64_t calls = run_with_cut(0, base);

    cr_log_info("%d calls, seed %llu", (int)calls, (unsigned long long)base);
    cr_assert(calls > 100);
    for (uint64_t cut = 1; cut <= calls; cut++) {
        for (uint64_t i = 0; i < CRASHES_PER_CUT; i++) {
            (void)run_with_cut(cut, base + i);
        }
    }
}

Test(power_cut, in_the_middle_of_the_recovery_from_another_one_costs_nothing)
{
    uint64_t base = (uint64_t)clock_wall_ns(), promised, again;

    cr_log_info("seed %llu", (unsigned long long)base);
    for (uint64_t i = 0; i < 1000; i++) {
        struct fs_sim *sim = make_machine();
        struct lease *lease = NULL, *second = NULL;
        uint64_t random = base + i;

        fs_sim_cut_at(sim, 1 + support_random(&random) % 250);
        (void)!run_once(fs_sim_fs(sim), &lease, &promised);
        fs_sim_crash(sim, support_random(&random));
        let_time_pass(fs_sim_fs(sim));
        fs_sim_cut_at(sim, 1 + support_random(&random) % 120);
        (void)!lease_acquire(fs_sim_fs(sim), SAVE, "run-a", &second);
        if (second != NULL) {
            (void)!catalog_reject_after(fs_sim_fs(sim), SAVE, promised, lease_epoch(second));
            if (support_commit(fs_sim_fs(sim), SAVE, second, promised + 5) == STATUS_OK) {
                size_t deleted;
                promised += 5;
                (void)!catalog_prune(fs_sim_fs(sim), SAVE, 1, 0, &deleted);
            }
        }
        again = promised;
        fs_sim_crash(sim, support_random(&random));
        recover(fs_sim_fs(sim), again, i, base);
        lease_release(&lease);
        lease_release(&second);
        fs_sim_destroy(sim);
    }
}
