/* Claims of diff.h: layouts are no difference, and each difference is named with its numbers. */
#include "ckpt/diff.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/json.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "tests/unit/ckpt/small_world.h"
#include "tests/unit/meta/meta_support.h"

#define FINDINGS_MAX 16

static void quiet(void)
{
    log_init(LOG_LEVEL_ERROR, "");
}

TestSuite(diff, .init = quiet, .timeout = 100);

/* Findings as text lines, and the totals. */
struct found {
    char lines[FINDINGS_MAX][256];
    size_t count;
    struct diff_totals totals;
};

static const char *shape_text(const struct manifest_tensor *tensor, char out_text[64])
{
    (void)snprintf(out_text, 64, "%s", tensor == NULL ? "none" : manifest_type_name(tensor->type));
    for (int d = 0; tensor != NULL && d < tensor->dims; d++) {
        size_t used = strlen(out_text);
        (void)snprintf(out_text + used, 64 - used, " %llu", (unsigned long long)tensor->shape[d]);
    }
    return out_text;
}

static enum status note(void *context, const struct diff_finding *finding)
{
    struct found *found = context;
    char a[64], b[64], *texts[2] = {NULL, NULL};

    cr_assert_lt(found->count, FINDINGS_MAX);
    char *line = found->lines[found->count++];
    const size_t room = sizeof found->lines[0];
    if (finding->kind == DIFF_VALUES) {
        const struct diff_values *values = &finding->values;
        (void)snprintf(line, room, "%s: %llu of %llu, %g, %g, first %llu", finding->name,
                       (unsigned long long)values->differing, (unsigned long long)values->elements,
                       values->max_abs, values->max_relative, (unsigned long long)values->first);
    } else if (finding->kind == DIFF_SHAPE) {
        (void)snprintf(line, room, "%s: %s | %s", finding->name, shape_text(finding->tensor[0], a),
                       shape_text(finding->tensor[1], b));
    } else {
        for (int side = 0; side < 2; side++) {
            if (finding->value[side] != NULL) {
                assert_ok(json_print_line(finding->value[side], &texts[side]));
            }
        }
        (void)snprintf(line, room, "%s: %s | %s", finding->name, texts[0] ? texts[0] : "none",
                       texts[1] ? texts[1] : "none");
        mem_free(&texts[0]);
        mem_free(&texts[1]);
    }
    return STATUS_OK;
}

/* Compares two checkpoints by their paths. */
static enum status compare(const char *a, const char *b, struct found *out_found)
{
    struct manifest manifests[2];
    struct diff_side sides[2] = {{a, &manifests[0]}, {b, &manifests[1]}};

    *out_found = (struct found){.count = 0};
    assert_ok(manifest_read(fs_posix(), a, &manifests[0]));
    assert_ok(manifest_read(fs_posix(), b, &manifests[1]));
    enum status st = diff_run(fs_posix(), sides, 2, note, out_found, &out_found->totals);
    manifest_deinit(&manifests[0]);
    manifest_deinit(&manifests[1]);
    return st;
}

static void expect_line(const struct found *found, size_t number, const char *line)
{
    cr_assert_lt(number, found->count, "no '%s'", line);
    cr_assert_str_eq(found->lines[number], line);
}

/* ---- layouts ---- */

Test(diff, a_checkpoint_equals_its_reshard)
{
    struct small_model model;
    struct small_world one, many;
    struct found found;
    char root[FS_PATH_MAX], first[FS_PATH_MAX], second[FS_PATH_MAX];

    small_model_init(&model, (struct small_model_shape){.vocab = 997, .hidden = 8, .layers = 5});
    support_make_folder(root);
    assert_ok(fs_join(first, root, "first"));
    assert_ok(fs_join(second, root, "second"));
    small_world_init(&one, &model, (struct layout){1, 1, 1}, first);
    small_world_fill(&one);
    small_world_save_well(&one, 7);
    small_world_init(&many, &model, (struct layout){2, 2, 2}, first);
    small_world_load_well(&many);
    many.save = second;
    many.run_id = "run-b";
    many.compression = "zstd";
    small_world_save_well(&many, 7);
    assert_ok(
        compare(support_path(first, "step_0000007"), support_path(second, "step_0000007"), &found));
    cr_assert_eq(found.count, 0);
    cr_assert_eq(found.totals.settings + found.totals.tensors, 0);
    cr_assert_eq(found.totals.tensors_compared, model.count);
    small_world_deinit(&one);
    small_world_deinit(&many);
    small_model_deinit(&model);
    support_remove_folder(root);
}

/* ---- one process's checkpoints of any tensors ---- */

struct scene {
    char root[FS_PATH_MAX];
    char paths[2][FS_PATH_MAX];
};

static void scene_init(struct scene *scene)
{
    support_make_folder(scene->root);
    (void)snprintf(scene->paths[0], FS_PATH_MAX, "%.4000s/a/step_0000003", scene->root);
    (void)snprintf(scene->paths[1], FS_PATH_MAX, "%.4000s/b/step_0000003", scene->root);
}

static void scene_save(const struct scene *scene, int side, struct ckpt_tensor *tensors,
                       size_t count, const char *options_text, const char *state_text)
{
    char save[FS_PATH_MAX];
    cJSON *options = NULL, *state = NULL;
    struct ckpt_writer *writer = NULL;
    struct ckpt_save_result result;
    struct ckpt_writer_config config = {.fs = fs_posix(),
                                        .save = save,
                                        .run_id = side == 0 ? "run-a" : "run-b",
                                        .layout = {1, 1, 1},
                                        .group = {.size = 1},
                                        .compression = "none",
                                        .thread_count = 1};

    fs_parent(save, scene->paths[side]);
    for (size_t i = 0; i < count; i++) {
        tensors[i].box = tensors[i].owned = box_whole(tensors[i].dims, tensors[i].shape);
    }
    assert_ok(json_parse(options_text, strlen(options_text), "options", &options));
    assert_ok(json_parse(state_text, strlen(state_text), "state", &state));
    assert_ok(ckpt_writer_open(&config, &writer));
    struct ckpt_save what = {
        .step = 3, .tensors = tensors, .tensor_count = count, .options = options, .state = state};
    assert_ok(ckpt_save(writer, &what, &result));
    ckpt_writer_close(&writer);
    cJSON_Delete(options);
    cJSON_Delete(state);
}

#define TENSOR(tensor_name, tensor_type, values, ...)                                              \
    {                                                                                              \
        .name = tensor_name, .type = tensor_type, .dims = sizeof((int[]){__VA_ARGS__}) / 4,        \
        .shape = {__VA_ARGS__}, .data = values                                                     \
    }

Test(diff, a_changed_element_is_named_with_its_size)
{
    struct scene scene;
    struct found found;
    float a[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, b[12];
    struct ckpt_tensor left[] = {TENSOR("param/same", MANIFEST_F32, a, 12),
                                 TENSOR("param/w", MANIFEST_F32, a, 3, 4)};
    struct ckpt_tensor right[] = {TENSOR("param/same", MANIFEST_F32, a, 12),
                                  TENSOR("param/w", MANIFEST_F32, b, 3, 4)};

    memcpy(b, a, sizeof a);
    b[6] = 8;
    b[9] = 9.5F;
    scene_init(&scene);
    scene_save(&scene, 0, left, 2, "{}", "{}");
    scene_save(&scene, 1, right, 2, "{}", "{}");
    assert_ok(compare(scene.paths[0], scene.paths[1], &found));
    cr_assert_eq(found.count, 1);
    expect_line(&found, 0, "param/w: 2 of 12, 2, 0.25, first 6");
    cr_assert(found.totals.tensors == 1 && found.totals.tensors_compared == 2);
    assert_ok(compare(scene.paths[1], scene.paths[0], &found));
    expect_line(&found, 0, "param/w: 2 of 12, 2, 0.25, first 6");
    support_remove_folder(scene.root);
}

Test(diff, bits_count_and_what_is_not_finite_is_infinitely_far)
{
    struct scene scene;
    struct found found;
    float a[] = {NAN, 0, INFINITY, 1}, same_nan[] = {NAN, -0.0F, INFINITY, 1};
    float none[] = {NAN, 0, 3, 1};
    uint16_t half_a[] = {0x3c00, 0x0001, 0x7c00}, half_b[] = {0x4000, 0x0001, 0x7c00};
    uint16_t brain_a[] = {0x3f80}, brain_b[] = {0xbf80};
    int64_t whole_a[] = {1, -7}, whole_b[] = {1, 9};
    struct ckpt_tensor left[] = {TENSOR("a", MANIFEST_F32, a, 4), TENSOR("b", MANIFEST_F32, a, 4),
                                 TENSOR("c", MANIFEST_F16, half_a, 3),
                                 TENSOR("d", MANIFEST_BF16, brain_a, 1),
                                 TENSOR("e", MANIFEST_I64, whole_a, 2)};
    struct ckpt_tensor right[] = {
        TENSOR("a", MANIFEST_F32, same_nan, 4), TENSOR("b", MANIFEST_F32, none, 4),
        TENSOR("c", MANIFEST_F16, half_b, 3), TENSOR("d", MANIFEST_BF16, brain_b, 1),
        TENSOR("e", MANIFEST_I64, whole_b, 2)};

    scene_init(&scene);
    scene_save(&scene, 0, left, 5, "{}", "{}");
    scene_save(&scene, 1, right, 5, "{}", "{}");
    assert_ok(compare(scene.paths[0], scene.paths[1], &found));
    cr_assert_eq(found.count, 5);
    expect_line(&found, 0, "a: 1 of 4, 0, 0, first 1");
    expect_line(&found, 1, "b: 1 of 4, inf, inf, first 2");
    expect_line(&found, 2, "c: 1 of 3, 1, 0.5, first 0");
    expect_line(&found, 3, "d: 1 of 1, 2, 2, first 0");
    expect_line(&found, 4, "e: 1 of 2, 16, 1.77778, first 1");
    support_remove_folder(scene.root);
}

Test(diff, tensors_of_one_side_and_of_other_shapes_or_types_are_named)
{
    struct scene scene;
    struct found found;
    float a[12] = {0};
    uint16_t halves[12] = {0};
    struct ckpt_tensor left[] = {TENSOR("a", MANIFEST_F32, a, 12), TENSOR("b", MANIFEST_F32, a, 12),
                                 TENSOR("c", MANIFEST_F32, a, 12), TENSOR("e", MANIFEST_F32, a, 3)};
    struct ckpt_tensor right[] = {TENSOR("b", MANIFEST_F32, a, 3, 4),
                                  TENSOR("c", MANIFEST_F16, halves, 12),
                                  TENSOR("d", MANIFEST_F32, a, 2), TENSOR("e", MANIFEST_F32, a, 3),
                                  TENSOR("f", MANIFEST_F32, a, 1)};

    scene_init(&scene);
    scene_save(&scene, 0, left, 4, "{}", "{}");
    scene_save(&scene, 1, right, 5, "{}", "{}");
    assert_ok(compare(scene.paths[0], scene.paths[1], &found));
    cr_assert_eq(found.count, 5);
    expect_line(&found, 0, "a: f32 12 | none");
    expect_line(&found, 1, "b: f32 12 | f32 3 4");
    expect_line(&found, 2, "c: f32 12 | f16 12");
    expect_line(&found, 3, "d: none | f32 2");
    expect_line(&found, 4, "f: none | f32 1");
    cr_assert(found.totals.tensors == 5 && found.totals.tensors_compared == 1);
    support_remove_folder(scene.root);
}

Test(diff, settings_and_state_are_compared_but_for_layouts)
{
    struct scene scene;
    struct found found;
    float a[1] = {0};
    struct ckpt_tensor tensor[] = {TENSOR("a", MANIFEST_F32, a, 1)};

    scene_init(&scene);
    scene_save(&scene, 0, tensor, 1,
               "{\"lr\": {\"value\": 0.5, \"class\": \"TUNE\"},"
               " \"seed\": {\"value\": 1, \"class\": \"FIXED\"},"
               " \"tp\": {\"value\": 1, \"class\": \"RESHARD\"},"
               " \"pp\": {\"value\": 1, \"class\": \"RESHARD\"},"
               " \"old\": {\"value\": \"x\", \"class\": \"FIXED\"}}",
               "{\"consumed_samples\": 8, \"rng\": {\"seed\": 3}}");
    scene_save(&scene, 1, tensor, 1,
               "{\"tp\": {\"value\": 2, \"class\": \"RESHARD\"},"
               " \"dp\": {\"value\": 1, \"class\": \"RESHARD\"},"
               " \"new\": {\"value\": true, \"class\": \"TUNE\"},"
               " \"seed\": {\"value\": 1, \"class\": \"FIXED\"},"
               " \"lr\": {\"value\": 0.25, \"class\": \"TUNE\"}}",
               "{\"consumed_samples\": 16, \"rng\": {\"seed\": 4}}");
    assert_ok(compare(scene.paths[0], scene.paths[1], &found));
    cr_assert_eq(found.count, 5);
    expect_line(&found, 0, "consumed_samples: 8 | 16");
    expect_line(&found, 1, "rng: {\"seed\":3} | {\"seed\":4}");
    expect_line(&found, 2, "lr: 0.5 | 0.25");
    expect_line(&found, 3, "old: \"x\" | none");
    expect_line(&found, 4, "new: none | true");
    cr_assert(found.totals.settings == 5 && found.totals.tensors == 0);
    support_remove_folder(scene.root);
}

Test(diff, steps_differ)
{
    struct small_model model;
    struct small_world world;
    struct found found;
    char save[FS_PATH_MAX];

    small_model_init(&model, (struct small_model_shape){.vocab = 7, .hidden = 4, .layers = 1});
    support_make_folder(save);
    small_world_init(&world, &model, (struct layout){1, 1, 1}, save);
    small_world_fill(&world);
    small_world_save_well(&world, 1);
    small_world_save_well(&world, 2);
    assert_ok(
        compare(support_path(save, "step_0000001"), support_path(save, "step_0000002"), &found));
    cr_assert_eq(found.count, 2);
    expect_line(&found, 0, "step: 1 | 2");
    expect_line(&found, 1, "consumed_samples: 8 | 16");
    small_world_deinit(&world);
    small_model_deinit(&model);
    support_remove_folder(save);
}

/* A tensor of more than one slab: the first difference is counted from the tensor's beginning. */
Test(diff, large_tensors_are_read_slab_by_slab)
{
    struct scene scene;
    struct found found;
    const size_t columns = (size_t)1 << 18, rows = 65;
    float *values = NULL;

    assert_ok(mem_alloc(&values, rows * columns, sizeof *values));
    struct ckpt_tensor tensor[] = {TENSOR("a", MANIFEST_F32, values, rows, columns)};
    scene_init(&scene);
    scene_save(&scene, 0, tensor, 1, "{}", "{}");
    values[64 * columns + 5] = 1;
    scene_save(&scene, 1, tensor, 1, "{}", "{}");
    mem_free(&values);
    assert_ok(compare(scene.paths[0], scene.paths[1], &found));
    cr_assert_eq(found.count, 1);
    expect_line(&found, 0, "a: 1 of 17039360, 1, 1, first 16777221");
    support_remove_folder(scene.root);
}

Test(diff, damage_is_no_difference)
{
    struct scene scene;
    struct found found;
    float a[4] = {0};
    struct ckpt_tensor tensor[] = {TENSOR("a", MANIFEST_F32, a, 4)};
    struct fs_file *file = NULL;

    scene_init(&scene);
    scene_save(&scene, 0, tensor, 1, "{}", "{}");
    scene_save(&scene, 1, tensor, 1, "{}", "{}");
    assert_ok(
        fs_open(fs_posix(), support_path(scene.paths[1], "tp00_pp00_dp00.h5"), FS_UPDATE, &file));
    assert_ok(fs_pwrite(file, "x", 1, 4096));
    fs_close(&file);
    assert_status(compare(scene.paths[0], scene.paths[1], &found), STATUS_CORRUPT);
    cr_assert_eq(found.count, 0);
    support_remove_folder(scene.root);
}
