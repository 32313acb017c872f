/* Claims of saving: one failure fails all and harms nothing, one owner, one directory, and power
 * cuts at every call of a whole save. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/meta/heartbeat.h"
#include "tests/support/fs_sim.h"
#include "tests/unit/ckpt/small_world.h"
#include "tests/unit/meta/meta_support.h"

#define SAVE "/save"

static void quiet(void)
{
    log_init(LOG_LEVEL_ERROR, "");
}

TestSuite(writer, .init = quiet, .timeout = 100);

static const struct small_model_shape tiny = {.vocab = 23, .hidden = 4, .layers = 1};

static void expect_all(const struct small_world *world, const struct status_record *records,
                       enum status expected, const char *text)
{
    for (int r = 0; r < layout_size(world->layout); r++) {
        cr_assert(records[r].code == expected, "rank %d: %s, not %s: %s", r,
                  status_name(records[r].code), status_name(expected), records[r].message);
        cr_assert(strstr(records[r].message, text) != NULL, "rank %d: '%s' is not in: %s", r, text,
                  records[r].message);
    }
}

/* ---- owners and directories ---- */

Test(writer, a_second_run_is_refused_on_all_its_ranks_while_the_first_holds_the_directory)
{
    struct small_model model;
    struct small_world first, second;
    struct status_record records[RANK_THREADS_MAX];
    char save[FS_PATH_MAX];

    support_make_folder(save);
    small_model_init(&model, tiny);
    small_world_init(&first, &model, (struct layout){2, 1, 1}, save);
    small_world_init(&second, &model, (struct layout){1, 1, 2}, save);
    second.run_id = "run-b";
    small_world_open(&first, records);
    expect_all(&first, records, STATUS_OK, "");
    small_world_open(&second, records);
    expect_all(&second, records, STATUS_NOT_OWNER, "run-a");
    small_world_save(&first, 1, records);
    expect_all(&first, records, STATUS_OK, "");
    small_world_close(&first);
    small_world_open(&second, records);
    expect_all(&second, records, STATUS_OK, "");
    small_world_deinit(&first);
    small_world_deinit(&second);
    small_model_deinit(&model);
    support_remove_folder(save);
}

/* A newer epoch of the same run, as an agent starts it, fences the older one. */
Test(writer, a_stale_writer_cannot_commit_after_a_takeover)
{
    struct small_model model;
    struct small_world old, new;
    struct status_record records[RANK_THREADS_MAX];
    char save[FS_PATH_MAX], checkpoint[FS_PATH_MAX];

    support_make_folder(save);
    small_model_init(&model, tiny);
    small_world_init(&old, &model, (struct layout){2, 1, 1}, save);
    small_world_init(&new, &model, (struct layout){1, 1, 1}, save);
    small_world_open(&old, records);
    expect_all(&old, records, STATUS_OK, "");
    small_world_open(&new, records);
    expect_all(&new, records, STATUS_OK, "");
    cr_assert(ckpt_writer_epoch(new.writers[0]) == ckpt_writer_epoch(old.writers[1]) + 1);
    small_world_save(&old, 1, records);
    expect_all(&old, records, STATUS_NOT_OWNER, "");
    assert_ok(fs_join(checkpoint, save, "step_0000001"));
    cr_assert(!fs_exists(fs_posix(), checkpoint));
    small_world_save(&new, 1, records);
    expect_all(&new, records, STATUS_OK, "");
    small_world_deinit(&old);
    small_world_deinit(&new);
    small_model_deinit(&model);
    support_remove_folder(save);
}

Test(writer, ranks_with_different_directories_are_refused_with_both_paths)
{
    struct small_model model;
    struct small_world world;
    struct status_record records[RANK_THREADS_MAX];
    char save[FS_PATH_MAX], other[FS_PATH_MAX];

    support_make_folder(save);
    support_make_folder(other);
    small_model_init(&model, tiny);
    small_world_init(&world, &model, (struct layout){2, 1, 1}, save);
    world.save_of_rank_1 = other;
    small_world_open(&world, records);
    expect_all(&world, records, STATUS_USAGE, save);
    expect_all(&world, records, STATUS_USAGE, other);
    world.save_of_rank_1 = "/nowhere/at/all";
    small_world_open(&world, records);
    expect_all(&world, records, STATUS_USAGE, "/nowhere/at/all");
    world.save_of_rank_1 = NULL;
    small_world_save_well(&world, 1);
    small_world_deinit(&world);
    small_model_deinit(&model);
    support_remove_folder(save);
    support_remove_folder(other);
}

/* ---- retention, and saving twice ---- */

Test(writer, old_checkpoints_go_once_newer_ones_are_there_and_a_step_is_saved_once)
{
    struct small_model model;
    struct small_world world;
    struct status_record records[RANK_THREADS_MAX];
    struct catalog catalog;
    char save[FS_PATH_MAX];

    support_make_folder(save);
    small_model_init(&model, tiny);
    small_world_init(&world, &model, (struct layout){1, 2, 1}, save);
    world.keep_last = 2;
    small_world_open(&world, records);
    for (uint64_t step = 1; step <= 4; step++) {
        small_world_save(&world, step, records);
        expect_all(&world, records, STATUS_OK, "");
    }
    small_world_save(&world, 4, records);
    expect_all(&world, records, STATUS_EXISTS, "step_0000004");
    assert_ok(catalog_scan(fs_posix(), save, &catalog));
    cr_assert(catalog.count == 2 && catalog.entries[0].step == 3 && catalog.entries[1].usable);
    catalog_deinit(&catalog);
    small_world_deinit(&world);
    small_model_deinit(&model);
    support_remove_folder(save);
}

static void expect_no_staging(const char *save, const char *epoch)
{
    struct fs_names names;
    char staging[FS_PATH_MAX];

    assert_ok(fs_join(staging, save, epoch));
    assert_ok(fs_list(fs_posix(), staging, &names));
    cr_assert(names.count == 0, "'%s' is left", names.names[0]);
    fs_names_deinit(&names);
}

Test(writer, tensors_that_do_not_add_up_fail_the_save_on_all_ranks_and_leave_nothing_behind)
{
    struct small_model model;
    struct small_world world;
    struct status_record records[RANK_THREADS_MAX];
    char save[FS_PATH_MAX];

    support_make_folder(save);
    small_model_init(&model, tiny);
    small_world_init(&world, &model, (struct layout){2, 1, 1}, save);
    small_world_open(&world, records);
    struct ckpt_tensor *tensor = &world.parts[1].tensors[0];
    struct box owned = tensor->owned;
    tensor->owned.extent[0]--;
    small_world_save(&world, 1, records);
    expect_all(&world, records, STATUS_FAILED, tensor->name);
    expect_no_staging(save, ".epoch-1");
    tensor->owned = owned;
    tensor->shape[0]++;
    small_world_save(&world, 1, records);
    expect_all(&world, records, STATUS_FAILED, tensor->name);
    tensor->shape[0]--;
    small_world_save(&world, 1, records);
    expect_all(&world, records, STATUS_OK, "");
    small_world_deinit(&world);
    small_model_deinit(&model);
    support_remove_folder(save);
}

/* ---- faults ---- */

/* Two ranks on a simulated disk that hold checkpoint 10. */
struct scene {
    struct fs_sim *sim;
    struct small_model model;
    struct small_world world;
};

static void scene_init(struct scene *scene)
{
    scene->sim = fs_sim_create();
    small_model_init(&scene->model, tiny);
    small_world_init(&scene->world, &scene->model, (struct layout){2, 1, 1}, SAVE);
    scene->world.fs = fs_sim_fs(scene->sim);
    small_world_fill(&scene->world);
}

static void scene_deinit(struct scene *scene)
{
    small_world_deinit(&scene->world);
    small_model_deinit(&scene->model);
    fs_sim_destroy(scene->sim);
}

static bool is_there(const struct scene *scene, const char *checkpoint)
{
    return fs_exists(scene->world.fs, support_path(SAVE, checkpoint));
}

/* Saves 10, then 20 with its n-th call failing; 10 must be whole, 20 all or nothing, and 30 well.
 * Gives the calls of the second save; counts failures that name each rank. */
static uint64_t save_with_fault(uint64_t n, enum status fault, int out_named[2])
{
    struct scene scene;
    struct status_record records[RANK_THREADS_MAX];

    scene_init(&scene);
    small_world_open(&scene.world, records);
    small_world_save(&scene.world, 10, records);
    expect_all(&scene.world, records, STATUS_OK, "");
    uint64_t before = fs_sim_calls(scene.sim);
    fs_sim_fail_at(scene.sim, n, fault);
    small_world_save(&scene.world, 20, records);
    fs_sim_fail_at(scene.sim, 0, STATUS_OK);
    uint64_t calls = fs_sim_calls(scene.sim) - before;
    cr_assert(records[0].code == records[1].code, "call %d: %s, %s", (int)n,
              status_name(records[0].code), status_name(records[1].code));
    cr_assert(records[0].code == STATUS_OK || records[0].code == fault, "call %d: %s", (int)n,
              records[0].message);
    out_named[0] += strncmp(records[1].message, "rank 0: ", 8) == 0;
    out_named[1] += strncmp(records[0].message, "rank 1: ", 8) == 0;
    bool is_saved = records[0].code == STATUS_OK;
    cr_assert(is_there(&scene, "step_0000020") == is_saved, "call %d", (int)n);
    assert_ok(ckpt_verify(scene.world.fs, SAVE "/step_0000010", CKPT_VERIFY_DEEP, 1));
    small_world_save(&scene.world, 30, records);
    expect_all(&scene.world, records, STATUS_OK, "");
    small_world_load_well(&scene.world);
    scene_deinit(&scene);
    return calls;
}

Test(writer, any_call_that_fails_on_any_rank_fails_the_save_on_all_and_the_next_save_is_well)
{
    int named[2] = {0, 0};
    uint64_t calls = save_with_fault(0, STATUS_OK, named);

    cr_assert(calls > 40);
    for (uint64_t n = 1; n <= calls; n++) {
        (void)save_with_fault(n, n % 2 == 0 ? STATUS_NO_SPACE : STATUS_IO, named);
    }
    cr_log_info("%d calls: %d failures named rank 0, %d rank 1", (int)calls, named[0], named[1]);
    cr_assert(named[0] > 10 && named[1] > 10);
}

static void expect_same(const struct status_record *records, const char *what, uint64_t n)
{
    cr_assert(records[0].code == records[1].code, "%s, allocation %d: %s (%s), %s (%s)", what,
              (int)n, status_name(records[0].code), records[0].message,
              status_name(records[1].code), records[1].message);
}

Test(writer, any_allocation_that_fails_fails_open_save_or_load_on_all_and_the_next_one_is_well)
{
    int failures = 0;

    for (uint64_t n = 1; n <= 150; n++) {
        struct scene scene;
        struct status_record records[RANK_THREADS_MAX];
        scene_init(&scene);
        mem_fail_at(n);
        small_world_open(&scene.world, records);
        mem_fail_at(0);
        expect_same(records, "open", n);
        small_world_close(&scene.world);
        small_world_open(&scene.world, records);
        expect_all(&scene.world, records, STATUS_OK, "");
        mem_fail_at(n);
        small_world_save(&scene.world, 20, records);
        mem_fail_at(0);
        expect_same(records, "save", n);
        failures += records[0].code != STATUS_OK;
        cr_assert(is_there(&scene, "step_0000020") == (records[0].code == STATUS_OK));
        small_world_save(&scene.world, 30, records);
        expect_all(&scene.world, records, STATUS_OK, "");
        mem_fail_at(n);
        small_world_load(&scene.world, records);
        mem_fail_at(0);
        expect_same(records, "load", n);
        small_world_load_well(&scene.world);
        scene_deinit(&scene);
    }
    cr_assert(failures > 50, "%d failures", failures);
}

Test(writer, a_full_disk_fails_the_save_alone_and_room_made_lets_the_next_one_through)
{
    struct small_model model;
    struct small_world world;
    struct status_record records[RANK_THREADS_MAX];
    char mount_point[FS_PATH_MAX], save[FS_PATH_MAX], ballast[FS_PATH_MAX];
    struct fs_file *file = NULL;

    support_make_folder(mount_point);
    if (mount("tmpfs", mount_point, "tmpfs", 0, "size=16m") != 0) {
        support_remove_folder(mount_point);
        cr_skip_test("a small tmpfs cannot be mounted here");
    }
    assert_ok(fs_join(save, mount_point, "save"));
    assert_ok(fs_join(ballast, mount_point, "ballast"));
    small_model_init(&model, tiny);
    small_world_init(&world, &model, (struct layout){2, 1, 1}, save);
    small_world_fill(&world);
    small_world_open(&world, records);
    small_world_save(&world, 1, records);
    expect_all(&world, records, STATUS_OK, "");
    assert_ok(fs_open(fs_posix(), ballast, FS_CREATE_NEW, &file));
    assert_ok(fs_reserve(file, (uint64_t)15 << 20));
    fs_close(&file);
    small_world_save(&world, 2, records);
    expect_all(&world, records, STATUS_NO_SPACE, "");
    assert_ok(fs_unlink(fs_posix(), ballast));
    small_world_load_well(&world);
    small_world_fill(&world);
    small_world_save(&world, 3, records);
    expect_all(&world, records, STATUS_OK, "");
    small_world_deinit(&world);
    small_model_deinit(&model);
    cr_assert(umount(mount_point) == 0);
    support_remove_folder(mount_point);
}

/* ---- power cuts ---- */

/* An owner file cut while it was written costs its successor the stale time, which is test_lease's
 * claim; here that time is taken as over. */
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

/* Saves 10 and 20 with the power off before call `cut` (0: never), then recovers: what was
 * reported as saved loads bit for bit, and the run goes on. Gives the calls. */
static uint64_t save_with_cut(uint64_t cut, uint64_t seed)
{
    struct scene scene;
    struct status_record records[RANK_THREADS_MAX];
    struct catalog catalog;
    uint64_t promised = 0;

    scene_init(&scene);
    scene.world.compression = seed % 2 == 0 ? "none" : "zstd";
    assert_ok(fs_make_dirs(scene.world.fs, SAVE));
    uint64_t before = fs_sim_calls(scene.sim);
    fs_sim_cut_at(scene.sim, cut);
    small_world_open(&scene.world, records);
    for (uint64_t step = 10; records[0].code == STATUS_OK && step <= 20; step += 10) {
        small_world_save(&scene.world, step, records);
        promised = records[0].code == STATUS_OK ? step : promised;
        cr_assert(records[0].code == records[1].code, "cut %d", (int)cut);
    }
    uint64_t calls = fs_sim_calls(scene.sim) - before;
    fs_sim_crash(scene.sim, seed);
    small_world_close(&scene.world);
    let_time_pass(scene.world.fs);
    assert_ok(catalog_scan(scene.world.fs, SAVE, &catalog));
    const struct catalog_entry *newest = catalog_choose(&catalog, UINT64_MAX);
    uint64_t step = newest != NULL ? newest->step : 0;
    catalog_deinit(&catalog);
    cr_assert(step >= promised, "cut %d, seed %llu: step %d, promised %d", (int)cut,
              (unsigned long long)seed, (int)step, (int)promised);
    if (step > 0) {
        small_world_load_well(&scene.world);
    }
    small_world_fill(&scene.world);
    small_world_save_well(&scene.world, step + 10);
    small_world_load_well(&scene.world);
    scene_deinit(&scene);
    return calls;
}

Test(writer, at_any_call_of_a_save_by_two_ranks_a_power_cut_leaves_the_newest_reported_one_whole)
{
    uint64_t base = (uint64_t)clock_wall_ns();
    uint64_t calls = save_with_cut(0, base);

    cr_log_info("%d cut points, seed %llu", (int)calls, (unsigned long long)base);
    cr_assert(calls > 100);
    for (uint64_t cut = 1; cut <= calls; cut++) {
        for (uint64_t i = 0; i < 3; i++) {
            (void)save_with_cut(cut, base + 3 * cut + i);
        }
    }
}
