/* A small state in any layout; see small_model.h. */
#include "tests/unit/ckpt/small_model.h"

#include <stdio.h>
#include <string.h>

#include "ckpt/base/hash.h"
#include "ckpt/base/mem.h"
#include "tests/unit/meta/meta_support.h"

enum cut { CUT_ROWS, CUT_COLUMNS, CUT_NONE };
enum place { PLACE_FIRST, PLACE_LAYER, PLACE_LAST, PLACE_BOTH_ENDS };

/* Sizes by letter: V vocabulary, H hidden, 3 and 4 times hidden, 1 none. */
static const struct pattern {
    const char *name;
    char rows, columns;
    enum cut cut;
    enum place place;
} patterns[] = {
    {"embedding.word_embeddings.weight", 'V', 'H', CUT_ROWS, PLACE_BOTH_ENDS},
    {"embedding.position_embeddings.weight", '4', 'H', CUT_NONE, PLACE_FIRST},
    {"decoder.layers.%d.input_layernorm.weight", 'H', '1', CUT_NONE, PLACE_LAYER},
    {"decoder.layers.%d.self_attention.linear_qkv.weight", '3', 'H', CUT_ROWS, PLACE_LAYER},
    {"decoder.layers.%d.self_attention.linear_qkv.bias", '3', '1', CUT_ROWS, PLACE_LAYER},
    {"decoder.layers.%d.self_attention.linear_proj.weight", 'H', 'H', CUT_COLUMNS, PLACE_LAYER},
    {"decoder.layers.%d.mlp.linear_fc1.weight", '4', 'H', CUT_ROWS, PLACE_LAYER},
    {"decoder.layers.%d.mlp.linear_fc2.weight", 'H', '4', CUT_COLUMNS, PLACE_LAYER},
    {"decoder.final_layernorm.weight", 'H', '1', CUT_NONE, PLACE_LAST},
};
static const char *const kinds[] = {"param", "exp_avg", "exp_avg_sq"};

#define PATTERN_COUNT (sizeof patterns / sizeof *patterns)
#define KIND_COUNT (sizeof kinds / sizeof *kinds)

static uint64_t size_of(const struct small_model_shape *shape, char letter)
{
    switch (letter) {
    case 'V':
        return shape->vocab;
    case 'H':
        return shape->hidden;
    case '3':
        return 3 * shape->hidden;
    case '4':
        return 4 * shape->hidden;
    default:
        return 1;
    }
}

/* Numbers as weights are: near 0.02, random but for sign and exponent. */
static void fill_truth(struct ckpt_tensor *tensor)
{
    uint64_t state = hash_bytes64(tensor->name, strlen(tensor->name));
    uint64_t count = box_count(&tensor->box);
    float *values = tensor->data;

    for (uint64_t i = 0; i < count; i++) {
        values[i] = (float)((double)(support_random(&state) >> 11) * 0x1p-53 - 0.5) * 0.04F;
    }
}

static void add_tensor(struct small_model *model, const struct pattern *pattern, const char *kind,
                       int layer)
{
    char pattern_text[128], *name = NULL;
    const char *hole = strstr(pattern->name, "%d");
    struct ckpt_tensor *tensor = &model->tensors[model->count++];

    if (hole == NULL) {
        (void)snprintf(pattern_text, sizeof pattern_text, "%s", pattern->name);
    } else {
        (void)snprintf(pattern_text, sizeof pattern_text, "%.*s%d%s", (int)(hole - pattern->name),
                       pattern->name, layer, hole + 2);
    }
    assert_ok(mem_format(&name, "%s/%s", kind, pattern_text));
    *tensor = (struct ckpt_tensor){
        .name = name,
        .type = MANIFEST_F32,
        .dims = pattern->columns == '1' ? 1 : 2,
        .shape = {size_of(&model->shape, pattern->rows), size_of(&model->shape, pattern->columns)}};
    tensor->box = tensor->owned = box_whole(tensor->dims, tensor->shape);
    assert_ok(mem_alloc(&tensor->data, (size_t)box_count(&tensor->box), sizeof(float)));
    fill_truth(tensor);
}

/* Tensors come pattern by pattern; per layer, then per kind. */
void small_model_init(struct small_model *model, struct small_model_shape shape)
{
    *model = (struct small_model){.shape = shape};
    assert_ok(mem_alloc(&model->tensors, PATTERN_COUNT * KIND_COUNT * (size_t)shape.layers,
                        sizeof *model->tensors));
    for (size_t p = 0; p < PATTERN_COUNT; p++) {
        uint64_t layers = patterns[p].place == PLACE_LAYER ? shape.layers : 1;
        for (uint64_t layer = 0; layer < layers; layer++) {
            for (size_t k = 0; k < KIND_COUNT; k++) {
                add_tensor(model, &patterns[p], kinds[k], (int)layer);
            }
        }
    }
}

void small_model_deinit(struct small_model *model)
{
    for (size_t i = 0; i < model->count; i++) {
        char *name = (char *)model->tensors[i].name;
        mem_free(&name);
        mem_free(&model->tensors[i].data);
    }
    mem_free(&model->tensors);
}

/* Stage of a layer: the first stages get the smaller share. */
static int stage_of(uint64_t layer, uint64_t layers, int stages)
{
    return (int)((layer * (uint64_t)stages + (uint64_t)stages - 1) / layers);
}

static bool is_held(const struct pattern *pattern, uint64_t layer, uint64_t layers, int pp,
                    int stages)
{
    switch (pattern->place) {
    case PLACE_FIRST:
        return pp == 0;
    case PLACE_LAST:
        return pp == stages - 1;
    case PLACE_BOTH_ENDS:
        return pp == 0 || pp == stages - 1;
    case PLACE_LAYER:
        return stage_of(layer, layers, stages) == pp;
    }
    return false;
}

/* Part `index` of `count` of one dimension, ends rounded down. */
static void cut_dimension(struct box *box, int dimension, int index, int count)
{
    uint64_t extent = box->extent[dimension];
    uint64_t begin = extent * (uint64_t)index / (uint64_t)count;

    box->extent[dimension] = extent * ((uint64_t)index + 1) / (uint64_t)count - begin;
    box->offset[dimension] += begin;
}

/* What a data-parallel rank answers for of the box: a slice of rows, or all or nothing. */
static struct box slice(struct box box, size_t number, int dp, int size)
{
    if (box_count(&box) >= 64) {
        cut_dimension(&box, 0, dp, size);
    } else if ((int)(number % (size_t)size) != dp) {
        box.extent[0] = 0;
    }
    return box;
}

/* Adds tensor `number` of the model, cut for one rank. */
static void hold(struct small_part *part, const struct small_model *model, size_t number,
                 enum cut cut, bool is_moment, struct layout layout, struct coords coords,
                 bool owns)
{
    struct ckpt_tensor tensor = model->tensors[number];

    if (cut != CUT_NONE) {
        cut_dimension(&tensor.box, cut == CUT_ROWS ? 0 : 1, coords.tp, layout.tp);
    }
    tensor.owned = slice(tensor.box, number, coords.dp, layout.dp);
    if (!owns) {
        tensor.owned.extent[0] = 0;
    }
    if (is_moment) {
        tensor.box = tensor.owned;
    }
    if (is_moment && box_is_empty(&tensor.box)) {
        return;
    }
    tensor.data = NULL;
    assert_ok(mem_alloc(&tensor.data, (size_t)box_count(&tensor.box), sizeof(float)));
    part->tensors[part->count++] = tensor;
}

void small_part_init(struct small_part *part, const struct small_model *model, struct layout layout,
                     struct coords coords)
{
    size_t at = 0;

    *part = (struct small_part){.count = 0};
    assert_ok(mem_alloc(&part->tensors, model->count, sizeof *part->tensors));
    for (size_t p = 0; p < PATTERN_COUNT; p++) {
        const struct pattern *pattern = &patterns[p];
        uint64_t layers = pattern->place == PLACE_LAYER ? model->shape.layers : 1;
        bool owns = (pattern->cut != CUT_NONE || coords.tp == 0) &&
                    (pattern->place != PLACE_BOTH_ENDS || coords.pp == 0);
        for (uint64_t layer = 0; layer < layers; layer++) {
            for (size_t k = 0; k < KIND_COUNT; k++, at++) {
                if (is_held(pattern, layer, layers, coords.pp, layout.pp)) {
                    hold(part, model, at, pattern->cut, k > 0, layout, coords, owns);
                }
            }
        }
    }
}

void small_part_deinit(struct small_part *part)
{
    for (size_t i = 0; i < part->count; i++) {
        mem_free(&part->tensors[i].data);
    }
    mem_free(&part->tensors);
}

static const struct ckpt_tensor *truth_of(const struct small_model *model, const char *name)
{
    for (size_t i = 0; i < model->count; i++) {
        if (strcmp(model->tensors[i].name, name) == 0) {
            return &model->tensors[i];
        }
    }
    return NULL;
}

static void copy_truth(const struct ckpt_tensor *tensor, const struct small_model *model,
                       void *out_data)
{
    const struct ckpt_tensor *truth = truth_of(model, tensor->name);

    if (!box_is_empty(&tensor->box)) {
        box_copy(&tensor->box, sizeof(float), &tensor->box, out_data, &truth->box, truth->data);
    }
}

void small_part_fill(struct small_part *part, const struct small_model *model)
{
    for (size_t i = 0; i < part->count; i++) {
        copy_truth(&part->tensors[i], model, part->tensors[i].data);
    }
}

bool small_part_is_right(const struct small_part *part, const struct small_model *model,
                         const char **out_name)
{
    bool is_right = true;

    for (size_t i = 0; i < part->count && is_right; i++) {
        const struct ckpt_tensor *tensor = &part->tensors[i];
        size_t count = (size_t)box_count(&tensor->box);
        float *expected = NULL;
        assert_ok(mem_alloc(&expected, count, sizeof *expected));
        copy_truth(tensor, model, expected);
        is_right = memcmp(expected, tensor->data, count * sizeof *expected) == 0;
        *out_name = tensor->name;
        mem_free(&expected);
    }
    return is_right;
}
