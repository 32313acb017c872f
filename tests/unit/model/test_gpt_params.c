/* The table of tensors: names, cuts, order, padding; and that creation gives everything back when
 * memory runs out. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/mem.h"
#include "train/device/device.h"
#include "train/model/gpt.h"

#define must(call) cr_assert_eq((call), STATUS_OK, "%s: %s", #call, status_last()->message)

/* Never called: a comm that only has to be there. */
static int no_group;

static struct gpt_config small_config(void)
{
    return (struct gpt_config){
        .layers = 4,
        .hidden = 32,
        .heads = 4,
        .ffn_hidden = 96,
        .vocab = 300,
        .vocab_divisor = 128,
        .max_positions = 16,
        .sequence = 8,
        .micro_batch = 2,
        .layernorm_epsilon = 1e-5f,
        .init_std = 0.02f,
        .seed = 1234,
    };
}

static struct gpt_stage stage_of(int begin, int end, int layers, int tp_rank, int tp_size)
{
    return (struct gpt_stage){
        .layer_begin = begin,
        .layer_end = end,
        .is_first = begin == 0,
        .is_last = end == layers,
        .tp_rank = tp_rank,
        .tp_size = tp_size,
        .tp = (struct comm *)(void *)&no_group,
    };
}

static const struct gpt_param *find(const struct gpt *gpt, const char *name)
{
    for (size_t i = 0; i < gpt_param_count(gpt); i++) {
        if (strcmp(gpt_params(gpt)[i].name, name) == 0) {
            return &gpt_params(gpt)[i];
        }
    }
    return NULL;
}

struct made {
    struct device *device;
    struct gpt *gpt;
};

static struct made make(const struct gpt_config *config, struct gpt_stage stage)
{
    struct made made = {0};

    must(device_open("cpu", 1, &made.device));
    must(gpt_create(config, &stage, made.device, 1, &made.gpt));
    must(gpt_init_params(made.gpt));
    return made;
}

static void unmake(struct made *made)
{
    gpt_destroy(&made->gpt);
    device_close(&made->device);
}

Test(gpt_params, the_table_is_megatrons)
{
    static const char *const names[] = {
        "embedding.word_embeddings.weight",
        "embedding.position_embeddings.weight",
        "decoder.layers.0.input_layernorm.weight",
        "decoder.layers.0.input_layernorm.bias",
        "decoder.layers.0.self_attention.linear_qkv.weight",
        "decoder.layers.0.self_attention.linear_qkv.bias",
        "decoder.layers.0.self_attention.linear_proj.weight",
        "decoder.layers.0.self_attention.linear_proj.bias",
        "decoder.layers.0.pre_mlp_layernorm.weight",
        "decoder.layers.0.pre_mlp_layernorm.bias",
        "decoder.layers.0.mlp.linear_fc1.weight",
        "decoder.layers.0.mlp.linear_fc1.bias",
        "decoder.layers.0.mlp.linear_fc2.weight",
        "decoder.layers.0.mlp.linear_fc2.bias",
    };
    struct gpt_config config = small_config();
    struct made made = make(&config, stage_of(0, 4, 4, 0, 1));
    size_t count = gpt_param_count(made.gpt), parameters = 0;

    cr_assert_eq(count, 2 + 4 * 12 + 2);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        cr_expect_str_eq(gpt_params(made.gpt)[i].name, names[i]);
    }
    cr_expect_str_eq(gpt_params(made.gpt)[count - 1].name, "decoder.final_layernorm.bias");
    for (size_t i = 0; i < count; i++) {
        const struct gpt_param *param = &gpt_params(made.gpt)[i];

        cr_expect_eq(param->begin % GPT_PARAM_ALIGN, 0);
        cr_expect_eq(param->decay, param->dims == 2);
        cr_expect_not(param->tied_copy);
        parameters += box_count(&param->box);
    }
    cr_expect_eq(parameters, (300 + 16) * 32 + 64 +
                                 4 * (4 * 32 + 4 * 32 * 32 + 4 * 32 + 2 * 96 * 32 + 96 + 32));
    cr_expect_eq(find(made.gpt, "decoder.layers.3.input_layernorm.bias")->tp_replicated, true);
    cr_expect_eq(find(made.gpt, "decoder.layers.3.mlp.linear_fc2.bias")->tp_replicated, true);
    cr_expect_eq(find(made.gpt, "decoder.layers.3.mlp.linear_fc1.bias")->tp_replicated, false);
    unmake(&made);
}

Test(gpt_params, the_last_stage_begins_with_its_copy_of_the_word_embedding)
{
    struct gpt_config config = small_config();
    struct made made = make(&config, stage_of(2, 4, 4, 0, 1));

    cr_expect_str_eq(gpt_params(made.gpt)[0].name, "embedding.word_embeddings.weight");
    cr_expect(gpt_params(made.gpt)[0].tied_copy);
    cr_expect_eq(gpt_params(made.gpt)[0].begin, 0);
    cr_expect_str_eq(gpt_params(made.gpt)[1].name, "decoder.layers.2.input_layernorm.weight");
    cr_expect_null(find(made.gpt, "embedding.position_embeddings.weight"));
    unmake(&made);

    config.untied = true;
    made = make(&config, stage_of(2, 4, 4, 0, 1));
    cr_expect_null(find(made.gpt, "embedding.word_embeddings.weight"));
    cr_expect_not_null(find(made.gpt, "output_layer.weight"));
    unmake(&made);
}

/* Every tensor's parts over the TP ranks together are the tensor of one rank, initial values
 * included; padding rows are zero. */
static void check_cut(int tp_size)
{
    struct gpt_config config = small_config();
    struct made whole = make(&config, stage_of(0, 4, 4, 0, 1));
    size_t covered = 0, split_elements = 0;

    for (int rank = 0; rank < tp_size; rank++) {
        struct made part = make(&config, stage_of(0, 4, 4, rank, tp_size));

        for (size_t i = 0; i < gpt_param_count(part.gpt); i++) {
            const struct gpt_param *p = &gpt_params(part.gpt)[i];
            const struct gpt_param *w = find(whole.gpt, p->name);
            float *values = calloc(box_count(&p->box) + 1, sizeof(float));

            cr_assert_leq(box_count(&p->box), p->rows * p->columns);
            box_copy(&p->box, sizeof(float), &p->box, values, &w->box,
                     gpt_param_data(whole.gpt) + w->begin);
            cr_expect_arr_eq(gpt_param_data(part.gpt) + p->begin, values,
                             box_count(&p->box) * sizeof(float), "%s of rank %d", p->name, rank);
            for (size_t e = box_count(&p->box); e < p->rows * p->columns; e++) {
                cr_expect_eq(gpt_param_data(part.gpt)[p->begin + e], 0.0f, "padding of %s",
                             p->name);
            }
            if (!p->tp_replicated) {
                covered += box_count(&p->box);
                split_elements += rank == 0 ? box_count(&w->box) : 0;
            }
            free(values);
        }
        unmake(&part);
    }
    cr_expect_eq(covered, split_elements);
    unmake(&whole);
}

Test(gpt_params, two_parts_make_the_whole_and_start_from_its_weights)
{
    check_cut(2);
}

Test(gpt_params, four_parts_make_the_whole_though_one_is_only_padding)
{
    check_cut(4);
}

Test(gpt_params, the_initial_values_are_megatrons)
{
    struct gpt_config config = small_config();
    struct made made = make(&config, stage_of(0, 4, 4, 0, 1));

    for (size_t i = 0; i < gpt_param_count(made.gpt); i++) {
        const struct gpt_param *p = &gpt_params(made.gpt)[i];
        const float *values = gpt_param_data(made.gpt) + p->begin;
        size_t count = box_count(&p->box);
        bool scaled = strstr(p->name, "linear_proj.weight") || strstr(p->name, "fc2.weight");
        double want = p->dims == 1 ? 0.0 : scaled ? 0.02 / sqrt(8.0) : 0.02, squares = 0.0;

        for (size_t e = 0; e < count; e++) {
            bool is_one = strstr(p->name, "layernorm.weight") != NULL;
            squares += pow((double)values[e] - (is_one ? 1.0 : 0.0), 2.0);
        }
        cr_expect_float_eq(sqrt(squares / (double)count), want, 0.12 * want, "%s", p->name);
    }
    unmake(&made);
}

Test(gpt_params, impossible_shapes_are_refused_by_name)
{
    struct gpt_config config = small_config();
    struct gpt_stage stage = stage_of(0, 4, 4, 0, 1);
    struct device *device = NULL;
    struct gpt *gpt = NULL;

    must(device_open("cpu", 1, &device));
    config.heads = 5;
    cr_expect_eq(gpt_create(&config, &stage, device, 1, &gpt), STATUS_USAGE);
    cr_expect_not_null(strstr(status_last()->message, "5 attention heads"));
    config = small_config();
    config.sequence = 17;
    cr_expect_eq(gpt_create(&config, &stage, device, 1, &gpt), STATUS_USAGE);
    config = small_config();
    stage.tp_size = 3;
    cr_expect_eq(gpt_create(&config, &stage, device, 1, &gpt), STATUS_USAGE);
    config.hidden_dropout = 1.0f;
    stage.tp_size = 1;
    cr_expect_eq(gpt_create(&config, &stage, device, 1, &gpt), STATUS_USAGE);
    cr_expect_null(gpt);
    device_close(&device);
}

Test(gpt_params, a_failed_allocation_leaves_nothing_behind)
{
    struct gpt_config config = small_config();
    struct gpt_stage stage = stage_of(0, 4, 4, 0, 1);
    struct device *device = NULL;
    struct gpt *gpt = NULL;
    int failures = 0;

    must(device_open("cpu", 1, &device));
    size_t before = mem_used_bytes();
    for (uint64_t n = 1; gpt == NULL; n++) {
        mem_fail_at(n);
        enum status st = gpt_create(&config, &stage, device, 2, &gpt);
        mem_fail_at(0);
        if (st != STATUS_OK) {
            failures++;
            cr_assert_eq(st, STATUS_NO_MEMORY);
            cr_assert_eq(mem_used_bytes(), before, "allocation %d", (int)n);
        }
    }
    cr_expect_geq(failures, 8);
    cr_expect_geq(gpt_memory_bytes(&config, &stage, 2), 0.95 * (double)(mem_used_bytes() - before));
    cr_expect_leq(gpt_memory_bytes(&config, &stage, 2), mem_used_bytes() - before);
    gpt_destroy(&gpt);
    cr_expect_eq(mem_used_bytes(), before);
    device_close(&device);
}

Test(gpt_params, a_token_of_another_vocabulary_is_refused)
{
    struct gpt_config config = small_config();
    struct made made = make(&config, stage_of(0, 4, 4, 0, 1));
    int32_t tokens[16] = {0}, labels[16] = {0};
    struct gpt_batch batch = {.tokens = tokens, .labels = labels};
    double loss = 0.0;

    tokens[3] = 300; /* within the padding, but not a token */
    cr_expect_eq(gpt_forward(made.gpt, 0, 0, &batch, NULL, NULL, &loss), STATUS_BAD_DATA);
    tokens[3] = 299;
    labels[2] = -1;
    cr_expect_eq(gpt_forward(made.gpt, 0, 0, &batch, NULL, NULL, &loss), STATUS_BAD_DATA);
    labels[2] = 0;
    must(gpt_forward(made.gpt, 0, 0, &batch, NULL, NULL, &loss));
    cr_expect_float_eq(loss / 16, log(300.0), 0.5);
    unmake(&made);
}
