/* Claims of loading: any cut to any cut, every layout to every other, and what is refused. */
#include <stdio.h>
#include <string.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/hash.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "tests/unit/ckpt/small_world.h"
#include "tests/unit/meta/meta_support.h"

#define TENSORS_MAX 8
#define TILINGS 25

static void quiet(void)
{
    log_init(LOG_LEVEL_ERROR, "");
}

TestSuite(reader, .init = quiet, .timeout = 100);

/* ---- every layout to every other ---- */

#define LAYOUTS_MAX 27

static size_t list_layouts(struct layout out_layouts[LAYOUTS_MAX])
{
    size_t count = 0;

    for (int tp = 1; tp <= 4; tp *= 2) {
        for (int pp = 1; pp <= 4; pp *= 2) {
            for (int dp = 1; dp <= 4; dp *= 2) {
                if (tp * pp * dp <= RANK_THREADS_MAX) {
                    out_layouts[count++] = (struct layout){tp, pp, dp};
                }
            }
        }
    }
    return count;
}

Test(reader, a_checkpoint_of_any_layout_loads_into_any_other_with_the_same_bits_and_state_hash)
{
    struct layout layouts[LAYOUTS_MAX];
    struct small_world worlds[LAYOUTS_MAX];
    struct small_model model;
    char root[FS_PATH_MAX], saves[LAYOUTS_MAX][FS_PATH_MAX];
    size_t count = list_layouts(layouts);
    uint64_t hash = 0;

    small_model_init(&model, (struct small_model_shape){.vocab = 50257, .hidden = 8, .layers = 5});
    support_make_folder(root);
    for (size_t i = 0; i < count; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "%zu", i);
        assert_ok(fs_join(saves[i], root, name));
        small_world_init(&worlds[i], &model, layouts[i], saves[i]);
        small_world_fill(&worlds[i]);
        worlds[i].compression = i % 2 == 0 ? "none" : "zstd";
        small_world_save_well(&worlds[i], 7);
        hash = i == 0 ? worlds[i].result.state_hash : hash;
        cr_assert(worlds[i].result.state_hash == hash, "layout %zu has another state hash", i);
    }
    for (size_t from = 0; from < count; from++) {
        for (size_t to = 0; to < count; to++) {
            worlds[to].save = saves[from];
            small_world_load_well(&worlds[to]);
        }
    }
    cr_log_info("%zu layouts, %zu loads", count, count * count);
    for (size_t i = 0; i < count; i++) {
        small_world_deinit(&worlds[i]);
    }
    small_model_deinit(&model);
    support_remove_folder(root);
}

/* ---- random tilings ---- */

struct tiling_rank {
    struct ckpt_tensor tensors[TENSORS_MAX];
    size_t count;
};

struct tiling {
    const char *save;
    bool loads;
    const char *compression;
    struct layout layout; /* TP of its size */
    struct tiling_rank ranks[RANK_THREADS_MAX];
};

/* Splits a box among `count` ranks, each cut across a random dimension at a random place. */
static void split(struct box box, int count, uint64_t *random, struct box *out_boxes)
{
    int left = count / 2;

    if (count == 1) {
        out_boxes[0] = box;
        return;
    }
    int d = (int)(support_random(random) % (uint64_t)box.dims);
    uint64_t at = support_random(random) % (box.extent[d] + 1);
    struct box low = box, high = box;
    low.extent[d] = at;
    high.offset[d] += at;
    high.extent[d] -= at;
    split(low, left, random, out_boxes);
    split(high, count - left, random, out_boxes + left);
}

/* What the element with this index is; all bits of it. */
static void fill(const struct ckpt_tensor *tensor, void *data)
{
    size_t bytes = manifest_type_bytes(tensor->type);
    uint64_t whole[BOX_DIMS_MAX] = {0}, count = box_count(&tensor->box);

    for (uint64_t i = 0; i < count; i++) {
        uint64_t rest = i, index = 0;
        for (int d = tensor->dims - 1; d >= 0; d--) {
            whole[d] = tensor->box.offset[d] + rest % tensor->box.extent[d];
            rest /= tensor->box.extent[d];
        }
        for (int d = 0; d < tensor->dims; d++) {
            index = index * tensor->shape[d] + whole[d];
        }
        uint64_t bits = hash_bytes64(&index, sizeof index) ^ (uint64_t)tensor->name[0];
        memcpy((char *)data + i * bytes, &bits, bytes);
    }
}

/* A load may want more rows than it answers for, as replicas do. */
static void widen(struct ckpt_tensor *tensor, uint64_t *random)
{
    uint64_t before = support_random(random) % (tensor->owned.offset[0] + 1);
    uint64_t end = tensor->owned.offset[0] + tensor->owned.extent[0];
    uint64_t after = support_random(random) % (tensor->shape[0] - end + 1);

    tensor->box.offset[0] -= before;
    tensor->box.extent[0] += before + after;
}

static void add_tensor(struct tiling *tiling, const char *name, uint64_t *random)
{
    struct box boxes[RANK_THREADS_MAX];
    struct ckpt_tensor tensor = {.name = name, .dims = 1 + (name[0] - 'a') % 3};

    tensor.type = (enum manifest_type)((name[0] - 'a') % MANIFEST_TYPE_COUNT);
    for (int d = 0; d < tensor.dims; d++) {
        static const uint64_t sizes[] = {613, 97, 5};
        tensor.shape[d] = sizes[d] + (uint64_t)(name[0] - 'a');
    }
    split(box_whole(tensor.dims, tensor.shape), tiling->layout.tp, random, boxes);
    for (int r = 0; r < tiling->layout.tp; r++) {
        struct tiling_rank *rank = &tiling->ranks[r];
        tensor.box = tensor.owned = boxes[r];
        if (tiling->loads) {
            widen(&tensor, random);
        }
        tensor.data = NULL;
        assert_ok(mem_alloc(&tensor.data, (size_t)box_count(&tensor.box), 8));
        if (!tiling->loads) {
            fill(&tensor, tensor.data);
        }
        rank->tensors[rank->count++] = tensor;
    }
}

static enum status run_tiling(const struct ckpt_group *group, void *context)
{
    const struct tiling *tiling = context;
    const struct tiling_rank *rank = &tiling->ranks[group->rank];
    enum status st = STATUS_OK;
    struct ckpt_writer *writer = NULL;
    struct ckpt_choice choice = {.found = false};
    struct ckpt_save_result result;
    cJSON empty = {.type = cJSON_Object};
    struct ckpt_writer_config config = {.fs = fs_posix(),
                                        .save = tiling->save,
                                        .run_id = "run-a",
                                        .layout = tiling->layout,
                                        .coords = {.tp = group->rank},
                                        .group = *group,
                                        .compression = tiling->compression,
                                        .thread_count = 2};
    struct ckpt_save save = {
        .tensors = rank->tensors, .tensor_count = rank->count, .options = &empty, .state = &empty};

    if (tiling->loads) {
        TRY(st, ckpt_choose(fs_posix(), tiling->save, UINT64_MAX, false, group, &choice), done);
        TRY(st, ckpt_load(fs_posix(), &choice, rank->tensors, rank->count, 2, group), done);
    } else {
        TRY(st, ckpt_writer_open(&config, &writer), done);
        TRY(st, ckpt_save(writer, &save, &result), done);
    }
done:
    ckpt_choice_deinit(&choice);
    ckpt_writer_close(&writer);
    return st;
}

static void check_and_free(struct tiling *tiling, uint64_t seed)
{
    for (int r = 0; r < tiling->layout.tp; r++) {
        for (size_t i = 0; i < tiling->ranks[r].count; i++) {
            struct ckpt_tensor *tensor = &tiling->ranks[r].tensors[i];
            size_t bytes = (size_t)box_count(&tensor->box) * manifest_type_bytes(tensor->type);
            char *expected = NULL;
            assert_ok(mem_alloc(&expected, bytes + 8, 1));
            fill(tensor, expected);
            cr_assert(memcmp(expected, tensor->data, bytes) == 0, "'%s' of rank %d, seed %llu",
                      tensor->name, r, (unsigned long long)seed);
            mem_free(&expected);
            mem_free(&tensor->data);
        }
    }
}

/* Saves by one tiling, loads by another. */
static void run_tilings(const char *save, uint64_t seed)
{
    static const char *const names[] = {"a", "b/x", "b/y", "c", "d", "e", "f"};
    uint64_t random = seed;
    const char *compression = support_random(&random) % 2 == 0 ? "none" : "zstd";

    for (int loads = 0; loads < 2; loads++) {
        struct tiling tiling = {.save = save, .loads = loads != 0, .compression = compression};
        struct status_record records[RANK_THREADS_MAX];
        int size = 1 + (int)(support_random(&random) % RANK_THREADS_MAX);
        tiling.layout = (struct layout){size, 1, 1};
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            add_tensor(&tiling, names[i], &random);
        }
        struct rank_threads *ranks = rank_threads_create(size);
        rank_threads_run(ranks, run_tiling, &tiling, records);
        rank_threads_destroy(&ranks);
        for (int r = 0; r < size; r++) {
            cr_assert(records[r].code == STATUS_OK, "rank %d of %d, seed %llu: %s", r, size,
                      (unsigned long long)seed, records[r].message);
        }
        check_and_free(&tiling, seed);
    }
}

Test(reader, any_tiling_loads_what_any_other_tiling_saved_in_every_type_and_dimension)
{
    uint64_t base = (uint64_t)clock_wall_ns();

    cr_log_info("%d tilings, seed %llu", TILINGS, (unsigned long long)base);
    for (uint64_t i = 0; i < TILINGS; i++) {
        char save[FS_PATH_MAX];
        support_make_folder(save);
        run_tilings(save, base + i);
        support_remove_folder(save);
    }
}

/* ---- what is refused ---- */

/* Saves a model of one shape, loads into another; every rank must refuse in the same way. */
static void expect_other_model(struct small_model_shape other, const char *text)
{
    struct small_model saved, wanted;
    struct small_world from, to;
    struct status_record records[RANK_THREADS_MAX];
    char save[FS_PATH_MAX];
    struct layout one = {1, 1, 1}, two = {2, 1, 1};

    support_make_folder(save);
    small_model_init(&saved, (struct small_model_shape){.vocab = 101, .hidden = 4, .layers = 2});
    small_model_init(&wanted, other);
    small_world_init(&from, &saved, one, save);
    small_world_init(&to, &wanted, two, save);
    small_world_fill(&from);
    small_world_save_well(&from, 1);
    small_world_load(&to, records);
    for (int r = 0; r < 2; r++) {
        cr_assert(records[r].code == STATUS_OPTIONS_DIFFER, "rank %d: %s", r, records[r].message);
        cr_assert(strstr(records[r].message, text) != NULL, "rank %d: %s", r, records[r].message);
    }
    small_world_deinit(&from);
    small_world_deinit(&to);
    small_model_deinit(&saved);
    small_model_deinit(&wanted);
    support_remove_folder(save);
}

Test(reader, a_checkpoint_of_another_model_is_refused_on_every_rank_naming_the_tensor)
{
    expect_other_model((struct small_model_shape){.vocab = 101, .hidden = 4, .layers = 3},
                       "layers.2.");
    expect_other_model((struct small_model_shape){.vocab = 102, .hidden = 4, .layers = 2},
                       "word_embeddings");
    expect_other_model((struct small_model_shape){.vocab = 101, .hidden = 8, .layers = 2},
                       "another model");
}

Test(reader, an_empty_or_missing_directory_is_no_error_and_no_checkpoint)
{
    char save[FS_PATH_MAX];
    struct ckpt_group alone = {.size = 1};
    struct ckpt_choice choice;

    support_make_folder(save);
    assert_ok(ckpt_choose(fs_posix(), save, UINT64_MAX, false, &alone, &choice));
    cr_assert(!choice.found);
    support_remove_folder(save);
    assert_ok(ckpt_choose(fs_posix(), save, UINT64_MAX, false, &alone, &choice));
    cr_assert(!choice.found);
    assert_status(ckpt_choose(fs_posix(), save, 3, true, &alone, &choice), STATUS_NO_CHECKPOINT);
}

Test(reader, the_newest_up_to_a_step_or_exactly_a_step_or_a_checkpoints_own_folder_is_chosen)
{
    char save[FS_PATH_MAX], own[FS_PATH_MAX];
    struct ckpt_group alone = {.size = 1};
    struct small_model model;
    struct small_world world;
    struct ckpt_choice choice;

    support_make_folder(save);
    small_model_init(&model, (struct small_model_shape){.vocab = 11, .hidden = 4, .layers = 1});
    small_world_init(&world, &model, (struct layout){1, 1, 1}, save);
    for (uint64_t step = 10; step <= 30; step += 10) {
        small_world_save_well(&world, step);
    }
    static const struct {
        uint64_t step_max;
        bool exact;
        uint64_t step; /* 0: none */
    } cases[] = {
        {UINT64_MAX, false, 30}, {29, false, 20}, {20, true, 20}, {25, true, 0}, {9, false, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum status st =
            ckpt_choose(fs_posix(), save, cases[i].step_max, cases[i].exact, &alone, &choice);
        cr_assert(st == (cases[i].step > 0 ? STATUS_OK : STATUS_NO_CHECKPOINT), "case %zu", i);
        cr_assert(st != STATUS_OK || choice.manifest.step == cases[i].step, "case %zu", i);
        ckpt_choice_deinit(&choice);
    }
    assert_ok(fs_join(own, save, "step_0000010"));
    assert_ok(ckpt_choose(fs_posix(), own, UINT64_MAX, false, &alone, &choice));
    cr_assert(choice.manifest.step == 10);
    ckpt_choice_deinit(&choice);
    assert_status(ckpt_choose(fs_posix(), own, 20, true, &alone, &choice), STATUS_NO_CHECKPOINT);
    small_world_deinit(&world);
    small_model_deinit(&model);
    support_remove_folder(save);
}
