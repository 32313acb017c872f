/* All ranks of a layout; see small_world.h. */
#include "tests/unit/ckpt/small_world.h"

#include <string.h>

#include "ckpt/base/json.h"
#include "tests/unit/meta/meta_support.h"

void small_world_init(struct small_world *world, const struct small_model *model,
                      struct layout layout, const char *save)
{
    *world = (struct small_world){.model = model,
                                  .layout = layout,
                                  .fs = fs_posix(),
                                  .save = save,
                                  .compression = "none",
                                  .run_id = "run-a"};
    world->ranks = rank_threads_create(layout_size(layout));
    for (int r = 0; r < layout_size(layout); r++) {
        small_part_init(&world->parts[r], model, layout, layout_coords(layout, r));
    }
}

void small_world_deinit(struct small_world *world)
{
    small_world_close(world);
    for (int r = 0; r < layout_size(world->layout); r++) {
        small_part_deinit(&world->parts[r]);
    }
    rank_threads_destroy(&world->ranks);
}

void small_world_fill(struct small_world *world)
{
    for (int r = 0; r < layout_size(world->layout); r++) {
        small_part_fill(&world->parts[r], world->model);
    }
}

void small_world_clear(struct small_world *world)
{
    for (int r = 0; r < layout_size(world->layout); r++) {
        struct small_part *part = &world->parts[r];
        for (size_t i = 0; i < part->count; i++) {
            memset(part->tensors[i].data, 0,
                   (size_t)box_count(&part->tensors[i].box) * sizeof(float));
        }
    }
}

static enum status open_rank(const struct ckpt_group *group, void *context)
{
    struct small_world *world = context;
    struct ckpt_writer_config config = {
        .fs = world->fs,
        .save =
            group->rank == 1 && world->save_of_rank_1 != NULL ? world->save_of_rank_1 : world->save,
        .run_id = world->run_id,
        .layout = world->layout,
        .coords = layout_coords(world->layout, group->rank),
        .group = *group,
        .compression = world->compression,
        .thread_count = 1,
        .keep_last = world->keep_last,
    };

    return ckpt_writer_open(&config, &world->writers[group->rank]);
}

struct saving {
    struct small_world *world;
    uint64_t step;
};

static enum status save_rank(const struct ckpt_group *group, void *context)
{
    const struct saving *saving = context;
    struct small_world *world = saving->world;
    const struct small_part *part = &world->parts[group->rank];
    enum status st = STATUS_OK;
    struct ckpt_save_result result;
    cJSON *options = NULL, *state = NULL;

    TRY(st, json_new_object(&options), done);
    TRY(st, json_new_object(&state), done);
    TRY(st, json_add_u64(state, "consumed_samples", saving->step * 8), done);
    struct ckpt_save save = {.step = saving->step,
                             .tensors = part->tensors,
                             .tensor_count = part->count,
                             .options = options,
                             .state = state};
    TRY(st, ckpt_save(world->writers[group->rank], &save, &result), done);
    if (group->rank == 0) {
        world->result = result;
    }
done:
    cJSON_Delete(options);
    cJSON_Delete(state);
    return st;
}

static enum status load_rank(const struct ckpt_group *group, void *context)
{
    struct small_world *world = context;
    const struct small_part *part = &world->parts[group->rank];
    enum status st = STATUS_OK;
    struct ckpt_choice choice = {.found = false};

    TRY(st, ckpt_choose(world->fs, world->save, UINT64_MAX, false, group, &choice), done);
    CHECK(choice.found);
    TRY(st, ckpt_load(world->fs, &choice, part->tensors, part->count, 1, group), done);
done:
    ckpt_choice_deinit(&choice);
    return st;
}

void small_world_open(struct small_world *world, struct status_record out_records[RANK_THREADS_MAX])
{
    rank_threads_run(world->ranks, open_rank, world, out_records);
}

void small_world_save(struct small_world *world, uint64_t step,
                      struct status_record out_records[RANK_THREADS_MAX])
{
    struct saving saving = {world, step};

    rank_threads_run(world->ranks, save_rank, &saving, out_records);
}

void small_world_load(struct small_world *world, struct status_record out_records[RANK_THREADS_MAX])
{
    rank_threads_run(world->ranks, load_rank, world, out_records);
}

void small_world_close(struct small_world *world)
{
    for (int r = 0; r < layout_size(world->layout); r++) {
        ckpt_writer_close(&world->writers[r]);
    }
}

static void expect_ok(const struct small_world *world,
                      const struct status_record records[RANK_THREADS_MAX], const char *what)
{
    char name[LAYOUT_NAME_MAX];

    layout_format(world->layout, name);
    for (int r = 0; r < layout_size(world->layout); r++) {
        cr_assert(records[r].code == STATUS_OK, "%s, rank %d of %s: %s", what, r, name,
                  records[r].message);
    }
}

void small_world_save_well(struct small_world *world, uint64_t step)
{
    struct status_record records[RANK_THREADS_MAX];

    small_world_open(world, records);
    expect_ok(world, records, "open");
    small_world_save(world, step, records);
    expect_ok(world, records, "save");
    small_world_close(world);
}

void small_world_load_well(struct small_world *world)
{
    struct status_record records[RANK_THREADS_MAX];
    const char *name = NULL;

    small_world_clear(world);
    small_world_load(world, records);
    expect_ok(world, records, "load");
    for (int r = 0; r < layout_size(world->layout); r++) {
        cr_assert(small_part_is_right(&world->parts[r], world->model, &name),
                  "rank %d: '%s' is not as it was saved", r, name);
    }
}
