/* Claims of catalog.h: what is usable and chosen, what is rejected, what retention may delete. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/meta/catalog.h"
#include "ckpt/meta/lease.h"
#include "tests/support/fs_sim.h"
#include "tests/unit/meta/meta_support.h"

#define SAVE "/save"

static void quiet(void)
{
    log_init(LOG_LEVEL_ERROR, "");
}

TestSuite(catalog, .init = quiet);
TestSuite(prune, .init = quiet);
TestSuite(pin, .init = quiet);

static struct fs_sim *make_machine(const uint64_t *steps, size_t count)
{
    struct fs_sim *sim = fs_sim_create();

    assert_ok(fs_make_dirs(fs_sim_fs(sim), SAVE));
    for (size_t i = 0; i < count; i++) {
        support_plant(fs_sim_fs(sim), SAVE, steps[i]);
    }
    return sim;
}

#define MACHINE(...)                                                                               \
    make_machine((const uint64_t[]){__VA_ARGS__},                                                  \
                 sizeof(uint64_t[]){__VA_ARGS__} / sizeof(uint64_t))

static void flip(struct fs *fs, const char *path, uint64_t offset)
{
    struct fs_file *file = NULL;
    char byte;

    assert_ok(fs_open(fs, path, FS_UPDATE, &file));
    assert_ok(fs_pread(file, &byte, 1, offset));
    byte ^= 1;
    assert_ok(fs_pwrite(file, &byte, 1, offset));
    fs_close(&file);
}

static uint64_t chosen_step(struct fs *fs, uint64_t step_max)
{
    struct catalog catalog;

    assert_ok(catalog_scan(fs, SAVE, &catalog));
    const struct catalog_entry *entry = catalog_choose(&catalog, step_max);
    uint64_t step = entry != NULL ? entry->step : UINT64_MAX;
    catalog_deinit(&catalog);
    return step;
}

Test(catalog, a_missing_directory_is_empty_and_an_unreadable_one_is_an_error)
{
    struct fs_sim *sim = fs_sim_create();
    struct catalog catalog;

    assert_ok(catalog_scan(fs_sim_fs(sim), "/nowhere", &catalog));
    cr_assert(catalog.count == 0 && catalog_choose(&catalog, UINT64_MAX) == NULL);
    catalog_deinit(&catalog);
    fs_sim_fail_at(sim, 1, STATUS_NO_PERMISSION);
    assert_status(catalog_scan(fs_sim_fs(sim), "/", &catalog), STATUS_NO_PERMISSION);
    fs_sim_destroy(sim);
}

Test(catalog, the_newest_usable_checkpoint_is_chosen_whatever_latest_says)
{
    struct fs_sim *sim = MACHINE(10, 20, 30, 12345678901);
    struct fs *fs = fs_sim_fs(sim);

    support_write_text(fs, SAVE, "latest", "step_0000010\n");
    cr_assert(chosen_step(fs, UINT64_MAX) == 12345678901);
    cr_assert(chosen_step(fs, 12345678900) == 30);
    cr_assert(chosen_step(fs, 30) == 30);
    cr_assert(chosen_step(fs, 29) == 20);
    cr_assert(chosen_step(fs, 9) == UINT64_MAX);
    fs_sim_destroy(sim);
}

Test(catalog, what_is_damaged_is_passed_over_and_says_why)
{
    struct fs_sim *sim = MACHINE(10, 20, 30, 40, 50, 60);
    struct fs *fs = fs_sim_fs(sim);
    struct catalog catalog;
    struct fs_file *file = NULL;

    flip(fs, SAVE "/step_0000060/manifest.json", 77);
    assert_ok(fs_unlink(fs, SAVE "/step_0000050/manifest.json"));
    assert_ok(fs_unlink(fs, SAVE "/step_0000040/tp01_pp00_dp00.h5"));
    assert_ok(fs_open(fs, SAVE "/step_0000030/tp00_pp00_dp00.h5", FS_UPDATE, &file));
    assert_ok(fs_truncate(file, 5));
    fs_close(&file);
    assert_ok(fs_rename(fs, SAVE "/step_0000020", SAVE "/step_0000021"));
    support_write_text(fs, SAVE, "step_0000070", "a file");
    assert_ok(catalog_scan(fs, SAVE, &catalog));
    cr_assert(catalog.count == 7);
    static const char *const reasons[] = {
        "", "of step 20", "has 5 bytes", "missing", "has no manifest", "damaged", ""};
    for (size_t i = 0; i < catalog.count; i++) {
        cr_assert(catalog.entries[i].usable == (i == 0));
        cr_assert(strstr(catalog.entries[i].reason, reasons[i]) != NULL, "%s",
                  catalog.entries[i].reason);
        cr_assert((catalog.entries[i].reason[0] == '\0') == (i == 0));
    }
    const struct catalog_entry *chosen = catalog_choose(&catalog, UINT64_MAX);
    cr_assert(chosen == &catalog.entries[0] && chosen->bytes == 2 * SUPPORT_SHARD_BYTES);
    catalog_deinit(&catalog);
    fs_sim_destroy(sim);
}

Test(catalog, a_manifest_that_cannot_be_read_just_now_is_no_damage)
{
    struct fs_sim *sim = MACHINE(10, 20);
    struct fs *fs = fs_sim_fs(sim);
    struct catalog catalog;
    bool goes[2];

    fs_sim_fail_at(sim, 2, STATUS_IO); /* the list, then the first manifest */
    assert_ok(catalog_scan(fs, SAVE, &catalog));
    cr_assert(!catalog.entries[0].usable && catalog.entries[0].fault == STATUS_IO);
    catalog_plan_prune(&catalog, 1, 0, NULL, goes);
    cr_assert(!goes[0] && !goes[1]);
    catalog_deinit(&catalog);
    fs_sim_destroy(sim);
}

Test(catalog, hidden_and_rejected_names_are_no_checkpoints_and_foreign_ones_are_counted)
{
    struct fs_sim *sim = MACHINE(10);
    struct fs *fs = fs_sim_fs(sim);
    struct catalog catalog;

    assert_ok(fs_mkdir(fs, SAVE "/.epoch-3"));
    assert_ok(fs_mkdir(fs, SAVE "/rejected-step_0000020-2"));
    support_write_text(fs, SAVE, ".owner.3", "");
    support_write_text(fs, SAVE, "latest", "");
    support_write_text(fs, SAVE, "notes.txt", "");
    support_write_text(fs, SAVE, "step_20", "");
    assert_ok(catalog_scan(fs, SAVE, &catalog));
    cr_assert(catalog.count == 1 && catalog.other_count == 2);
    catalog_deinit(&catalog);
    fs_sim_destroy(sim);
}

Test(catalog, with_nothing_usable_the_error_lists_what_is_there_and_names_the_flag)
{
    struct fs_sim *sim = MACHINE(10, 20);
    struct fs *fs = fs_sim_fs(sim);
    struct catalog catalog;

    flip(fs, SAVE "/step_0000010/manifest.json", 5);
    assert_ok(fs_unlink(fs, SAVE "/step_0000020/manifest.json"));
    assert_ok(catalog_scan(fs, SAVE, &catalog));
    assert_status(catalog_fail_none(&catalog), STATUS_NO_CHECKPOINT);
    const char *message = status_last()->message;
    cr_assert(strstr(message, SAVE) != NULL && strstr(message, "--from-scratch") != NULL);
    cr_assert(strstr(message, "step 20") != NULL && strstr(message, "no manifest") != NULL);
    cr_assert(strstr(message, "step 10") != NULL && strstr(message, "damaged") != NULL, "%s",
              message);
    catalog_deinit(&catalog);
    fs_sim_destroy(sim);
}

Test(catalog, a_long_list_is_cut_and_says_so)
{
    struct fs_sim *sim = MACHINE(1);
    struct fs *fs = fs_sim_fs(sim);
    struct catalog catalog;

    for (uint64_t step = 2; step <= 200; step++) {
        char name[LAYOUT_NAME_MAX];

        layout_step_name(step, name);
        assert_ok(fs_mkdir(fs, support_path(SAVE, name)));
    }
    assert_ok(catalog_scan(fs, SAVE, &catalog));
    assert_status(catalog_fail_none(&catalog), STATUS_NO_CHECKPOINT);
    cr_assert(strstr(status_last()->message, " more") != NULL, "%s", status_last()->message);
    cr_assert(strstr(status_last()->message, "--from-scratch") != NULL);
    catalog_deinit(&catalog);
    fs_sim_destroy(sim);
}

Test(catalog, a_fall_back_rejects_every_later_step_newest_first_and_durably)
{
    struct fs_sim *sim = MACHINE(10, 20, 30, 40);
    struct fs *fs = fs_sim_fs(sim);

    assert_ok(fs_mkdir(fs, SAVE "/rejected-step_0000040-7"));
    assert_ok(fs_unlink(fs, SAVE "/step_0000030/manifest.json"));
    assert_ok(catalog_reject_after(fs, SAVE, 20, 7));
    int first = fs_sim_find_call(sim, 0, "rename /save/step_0000040 ");
    int second = fs_sim_find_call(sim, 0, "rename /save/step_0000030 ");
    cr_assert(first >= 0 && second > first);
    cr_assert(fs_sim_find_call(sim, second, "sync_dir " SAVE) > second);
    cr_assert(fs_exists(fs, SAVE "/rejected-step_0000030-7"));
    cr_assert(!fs_exists(fs, SAVE "/step_0000040") && !fs_exists(fs, SAVE "/step_0000030"));
    cr_assert(chosen_step(fs, UINT64_MAX) == 20);

    /* The line goes on from 20: its 30 and 40 are the new ones. */
    support_plant(fs, SAVE, 30);
    cr_assert(chosen_step(fs, UINT64_MAX) == 30);
    assert_ok(catalog_reject_after(fs, SAVE, 30, 8));
    cr_assert(chosen_step(fs, UINT64_MAX) == 30);
    fs_sim_destroy(sim);
}

static bool has_rejected(struct fs *fs, uint64_t step)
{
    bool found = false;

    assert_ok(catalog_has_rejected(fs, SAVE, step, &found));
    return found;
}

Test(catalog, what_was_set_aside_leaves_a_trace_of_its_step_and_of_no_other)
{
    struct fs_sim *sim = MACHINE(4, 40);
    struct fs *fs = fs_sim_fs(sim);

    cr_assert(!has_rejected(fs, 40));
    assert_ok(catalog_reject_after(fs, SAVE, 4, 7));
    cr_assert(has_rejected(fs, 40));
    cr_assert(!has_rejected(fs, 4) && !has_rejected(fs, 400));
    fs_sim_destroy(sim);
}

Test(catalog, a_file_is_no_directory_without_checkpoints)
{
    struct fs_sim *sim = MACHINE(4);
    struct catalog catalog;

    cr_assert_eq(catalog_scan(fs_sim_fs(sim), SAVE "/step_0000004/manifest.json", &catalog),
                 STATUS_USAGE);
    cr_assert(strstr(status_last()->message, "is a file") != NULL);
    fs_sim_destroy(sim);
}

/* ---- retention ---- */

static void assert_left(struct fs *fs, const char *expected)
{
    struct fs_names names;
    char text[512] = "";

    assert_ok(fs_list(fs, SAVE, &names));
    for (size_t i = 0; i < names.count; i++) {
        uint64_t step;

        if (layout_parse_step_name(names.names[i], &step)) {
            size_t used = strlen(text);
            (void)snprintf(text + used, sizeof text - used, "%d ", (int)step);
        }
    }
    fs_names_deinit(&names);
    cr_assert_str_eq(text, expected);
}

Test(prune, keeps_the_newest_and_the_multiples)
{
    struct fs_sim *sim = MACHINE(0, 10, 20, 25, 30, 40, 50);
    struct fs *fs = fs_sim_fs(sim);
    size_t deleted;

    assert_ok(catalog_prune(fs, SAVE, 2, 20, &deleted));
    assert_left(fs, "0 20 40 50 ");
    cr_assert(deleted == 3, "%zu", deleted);
    assert_ok(catalog_prune(fs, SAVE, 9, 0, &deleted));
    cr_assert(deleted == 0);
    assert_ok(catalog_prune(fs, SAVE, 0, 0, &deleted));
    assert_left(fs, "50 ");
    fs_sim_destroy(sim);
}

Test(prune, never_deletes_the_last_usable_one_nor_counts_a_damaged_one_as_kept)
{
    struct fs_sim *sim = MACHINE(10, 20, 30, 40);
    struct fs *fs = fs_sim_fs(sim);
    size_t deleted;

    flip(fs, SAVE "/step_0000040/manifest.json", 5);
    flip(fs, SAVE "/step_0000010/manifest.json", 5);
    assert_ok(catalog_prune(fs, SAVE, 1, 0, &deleted));
    assert_left(fs, "30 40 ");
    flip(fs, SAVE "/step_0000030/manifest.json", 5);
    assert_ok(catalog_prune(fs, SAVE, 1, 0, &deleted));
    assert_left(fs, "30 40 ");
    cr_assert(deleted == 0);
    fs_sim_destroy(sim);
}

Test(prune, a_newer_format_is_not_deleted_as_damaged)
{
    struct catalog_entry entries[] = {{.step = 10, .fault = STATUS_UNSUPPORTED},
                                      {.step = 20, .fault = STATUS_CORRUPT},
                                      {.step = 30, .usable = true}};
    const struct catalog catalog = {.entries = entries, .count = 3};
    bool goes[3];

    catalog_plan_prune(&catalog, 1, 0, NULL, goes);
    cr_assert(!goes[0] && goes[1] && !goes[2]);
}

Test(prune, a_random_plan_always_keeps_the_newest_usable_and_whatever_is_newer)
{
    uint64_t seed = (uint64_t)clock_wall_ns(), random = seed;

    for (int round = 0; round < 5000; round++) {
        struct catalog_entry entries[12] = {0};
        struct catalog catalog = {.entries = entries};
        bool goes[12], pinned[12];
        size_t newest = SIZE_MAX;

        catalog.count = support_random(&random) % 13;
        for (size_t i = 0; i < catalog.count; i++) {
            entries[i].step = i * 10;
            entries[i].usable = support_random(&random) % 2 == 0;
            entries[i].fault = entries[i].usable ? STATUS_OK : STATUS_CORRUPT;
            pinned[i] = support_random(&random) % 4 == 0;
            newest = entries[i].usable ? i : newest;
        }
        catalog_plan_prune(&catalog, support_random(&random) % 4, support_random(&random) % 3 * 20,
                           pinned, goes);
        for (size_t i = 0; i < catalog.count; i++) {
            cr_assert(!goes[i] || (newest != SIZE_MAX && i < newest && !pinned[i]),
                      "seed %llu, round %d", (unsigned long long)seed, round);
        }
    }
}

Test(prune, a_victim_is_renamed_and_synced_before_a_byte_of_it_goes)
{
    struct fs_sim *sim = MACHINE(10, 20);
    struct fs *fs = fs_sim_fs(sim);
    size_t deleted;

    assert_ok(fs_mkdir(fs, SAVE "/.trash-old"));
    assert_ok(catalog_prune(fs, SAVE, 1, 0, &deleted));
    int renamed = fs_sim_find_call(sim, 0, "rename /save/step_0000010 /save/.trash-");
    int synced = fs_sim_find_call(sim, renamed, "sync_dir " SAVE);
    int removed = fs_sim_find_call(sim, 0, "unlink /save/.trash-");
    cr_assert(renamed >= 0 && synced > renamed && removed > synced);
    struct fs_names names;
    assert_ok(fs_list(fs, SAVE, &names));
    cr_assert(names.count == 1);
    fs_names_deinit(&names);
    fs_sim_destroy(sim);
}

/* ---- pins ---- */

Test(pin, a_pinned_checkpoint_stays_until_its_reader_is_done)
{
    struct fs_sim *sim = MACHINE(10, 20, 30);
    struct fs *fs = fs_sim_fs(sim);
    struct catalog_pin *pin = NULL;
    size_t deleted;

    assert_ok(catalog_pin_create(fs, SAVE, 10, &pin));
    cr_assert(pin != NULL);
    assert_ok(catalog_prune(fs, SAVE, 1, 0, &deleted));
    assert_left(fs, "10 30 ");
    catalog_pin_destroy(&pin);
    catalog_pin_destroy(&pin);
    assert_ok(catalog_prune(fs, SAVE, 1, 0, &deleted));
    assert_left(fs, "30 ");
    fs_sim_destroy(sim);
}

Test(pin, a_pin_on_what_is_gone_is_not_found)
{
    struct fs_sim *sim = MACHINE(10);
    struct catalog_pin *pin = NULL;
    struct fs_names names;

    assert_status(catalog_pin_create(fs_sim_fs(sim), SAVE, 20, &pin), STATUS_NOT_FOUND);
    cr_assert(pin == NULL);
    assert_ok(fs_list(fs_sim_fs(sim), SAVE "/.pins", &names));
    cr_assert(names.count == 0);
    fs_names_deinit(&names);
    fs_sim_destroy(sim);
}

Test(pin, where_none_can_be_written_a_reader_goes_on_without)
{
    static const enum status faults[] = {STATUS_NO_PERMISSION, STATUS_NO_SPACE};

    for (size_t i = 0; i < 2; i++) {
        for (uint64_t n = 2; n <= 7; n++) {
            struct fs_sim *sim = MACHINE(10);
            struct catalog_pin *pin = NULL;

            fs_sim_fail_at(sim, n, faults[i]);
            assert_ok(catalog_pin_create(fs_sim_fs(sim), SAVE, 10, &pin));
            catalog_pin_destroy(&pin);
            fs_sim_destroy(sim);
        }
    }
}

/* A reader that pins a step just as prune renames it away. */
static enum status (*plain_rename)(struct fs *fs, const char *from, const char *to);
static struct catalog_pin *racing_pin;
static enum status racing_status;

static enum status rename_and_pin(struct fs *fs, const char *from, const char *to)
{
    if (strcmp(from, SAVE "/step_0000010") == 0) {
        racing_status = catalog_pin_create(fs, SAVE, 10, &racing_pin);
    }
    return plain_rename(fs, from, to);
}

Test(pin, made_while_prune_is_at_work_brings_its_checkpoint_back)
{
    struct fs_sim *sim = MACHINE(10, 20);
    struct fs *fs = fs_sim_fs(sim);
    struct fs_ops ops = *fs->ops;
    size_t deleted;

    plain_rename = ops.rename;
    ops.rename = rename_and_pin;
    fs->ops = &ops;
    assert_ok(catalog_prune(fs, SAVE, 1, 0, &deleted));
    cr_assert(racing_status == STATUS_OK && racing_pin != NULL && deleted == 0);
    cr_assert(support_is_whole(fs, SAVE, 10));
    catalog_pin_destroy(&racing_pin);
    fs_sim_destroy(sim);
}

Test(pin, of_a_killed_reader_holds_nothing)
{
    char folder[FS_PATH_MAX];
    struct fs *fs = fs_posix();
    struct catalog_pin *pin = NULL;
    int pipe_ends[2];
    size_t deleted;
    char byte;

    support_make_folder(folder);
    support_plant(fs, folder, 10);
    support_plant(fs, folder, 20);
    cr_assert(pipe(pipe_ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        if (catalog_pin_create(fs, folder, 10, &pin) == STATUS_OK) {
            (void)!write(pipe_ends[1], "x", 1);
        }
        for (;;) {
            (void)pause();
        }
    }
    cr_assert(read(pipe_ends[0], &byte, 1) == 1);
    assert_ok(catalog_prune(fs, folder, 1, 0, &deleted));
    cr_assert(deleted == 0);
    cr_assert(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    int64_t start_ns = clock_monotonic_ns();
    assert_ok(catalog_prune(fs, folder, 1, 0, &deleted));
    cr_assert(deleted == 1);
    cr_assert(clock_monotonic_ns() - start_ns < LEASE_STALE_MS / 2 * 1000000LL);
    support_remove_folder(folder);
}

Test(pin, of_another_host_that_stands_still_holds_for_the_stale_time_and_once_only)
{
    struct fs_sim *sim = MACHINE(10, 20, 30);
    struct fs *fs = fs_sim_fs(sim);
    size_t deleted;

    assert_ok(fs_mkdir(fs, SAVE "/.pins"));
    support_write_text(fs, SAVE, ".pins/step_0000010.elsewhere.1.0", "no JSON");
    support_write_text(fs, SAVE, ".pins/rubbish", "");
    int64_t start_ns = clock_monotonic_ns();
    assert_ok(catalog_prune(fs, SAVE, 1, 0, &deleted));
    int64_t took_ms = (clock_monotonic_ns() - start_ns) / 1000000;
    cr_assert(took_ms >= LEASE_STALE_MS && took_ms < 2 * LEASE_STALE_MS);
    cr_assert(deleted == 2);
    assert_left(fs, "30 ");
    cr_assert(!fs_exists(fs, SAVE "/.pins/step_0000010.elsewhere.1.0"));
    fs_sim_destroy(sim);
}
