/* Recompute gives the same bits with less memory: dropout on, two micro-batches in flight. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "train/device/device.h"
#include "train/model/gpt.h"

#define must(call) cr_assert_eq((call), STATUS_OK, "%s: %s", #call, status_last()->message)

#define LAYERS 5
#define T 24
#define ROWS (2 * T)
#define SLOTS 2

static struct gpt_config config_of(enum gpt_recompute recompute, int layers)
{
    return (struct gpt_config){
        .layers = LAYERS,
        .hidden = 32,
        .heads = 4,
        .ffn_hidden = 96,
        .vocab = 300,
        .vocab_divisor = 64,
        .max_positions = T,
        .sequence = T,
        .micro_batch = 2,
        .attention_dropout = 0.1f,
        .hidden_dropout = 0.2f,
        .layernorm_epsilon = 1e-5f,
        .init_std = 0.2f,
        .seed = 77,
        .recompute = recompute,
        .recompute_layers = layers,
    };
}

static struct gpt_stage whole(void)
{
    return (struct gpt_stage){.layer_end = LAYERS, .is_first = true, .is_last = true, .tp_size = 1};
}

/* The losses of two micro-batches and the sum of their gradients; freed by free. */
static float *run(struct gpt_config config, size_t *out_count)
{
    struct gpt_stage stage = whole();
    struct device *device = NULL;
    struct gpt *gpt = NULL;
    int32_t tokens[SLOTS][ROWS], labels[SLOTS][ROWS], starts[SLOTS][ROWS];
    struct gpt_batch batches[SLOTS];
    double losses[SLOTS];

    must(device_open("cpu", 2, &device));
    must(gpt_create(&config, &stage, device, SLOTS, &gpt));
    must(gpt_init_params(gpt));
    for (int slot = 0; slot < SLOTS; slot++) {
        for (int r = 0; r < ROWS; r++) {
            tokens[slot][r] = (r * 7 + r * r + slot) % 300;
            labels[slot][r] = (r * 13 + 5 + slot) % 300;
            starts[slot][r] = r % T / (7 + slot) * (7 + slot); /* documents */
        }
        batches[slot] = (struct gpt_batch){.tokens = tokens[slot],
                                           .labels = labels[slot],
                                           .position_starts = starts[slot],
                                           .attention_starts = starts[slot],
                                           .loss_scale = 1.0f / ROWS,
                                           .first_sample = 40 + 2 * (uint64_t)slot,
                                           .step = 3,
                                           .is_training = true};
    }
    for (int slot = 0; slot < SLOTS; slot++) {
        must(gpt_forward(gpt, 0, slot, &batches[slot], NULL, NULL, &losses[slot]));
    }
    for (int slot = 0; slot < SLOTS; slot++) {
        must(gpt_backward(gpt, 0, slot, &batches[slot], NULL, NULL));
    }
    size_t count = gpt_flat_count(gpt);
    float *values = malloc((count + SLOTS) * sizeof(float));
    cr_assert_not_null(values);
    memcpy(values, gpt_grad_data(gpt), count * sizeof(float));
    for (int slot = 0; slot < SLOTS; slot++) {
        values[count + (size_t)slot] = (float)losses[slot];
    }
    *out_count = count + SLOTS;
    gpt_destroy(&gpt);
    device_close(&device);
    return values;
}

static uint64_t bytes_of(enum gpt_recompute recompute, int layers)
{
    struct gpt_config config = config_of(recompute, layers);
    struct gpt_stage stage = whole();

    return gpt_memory_bytes(&config, &stage, SLOTS);
}

static void expect_the_same_bits(enum gpt_recompute recompute, int layers)
{
    size_t want_count = 0, have_count = 0;
    float *want = run(config_of(GPT_RECOMPUTE_NONE, 0), &want_count);
    float *have = run(config_of(recompute, layers), &have_count);

    cr_assert_eq(have_count, want_count);
    cr_expect_arr_eq(have, want, want_count * sizeof(float), "recompute %d of %d layers",
                     (int)recompute, layers);
    cr_expect_lt(bytes_of(recompute, layers), bytes_of(GPT_RECOMPUTE_NONE, 0));
    free(want);
    free(have);
}

Test(gpt_recompute, selective_gives_the_same_bits_with_less_memory)
{
    expect_the_same_bits(GPT_RECOMPUTE_SELECTIVE, 0);
}

/* Groups that divide the layers and groups that do not. */
Test(gpt_recompute, uniform_gives_the_same_bits_with_less_memory)
{
    expect_the_same_bits(GPT_RECOMPUTE_UNIFORM, 1);
    expect_the_same_bits(GPT_RECOMPUTE_UNIFORM, 2);
    expect_the_same_bits(GPT_RECOMPUTE_UNIFORM, 100);
}

Test(gpt_recompute, block_gives_the_same_bits_with_less_memory)
{
    expect_the_same_bits(GPT_RECOMPUTE_BLOCK, 2);
    expect_the_same_bits(GPT_RECOMPUTE_BLOCK, 100);
}

/* Uniform with one layer keeps the inputs of all layers and the insides of one. */
Test(gpt_recompute, the_more_is_made_again_the_less_is_kept)
{
    cr_expect_lt(bytes_of(GPT_RECOMPUTE_BLOCK, 4), bytes_of(GPT_RECOMPUTE_BLOCK, 2));
    cr_expect_eq(bytes_of(GPT_RECOMPUTE_BLOCK, LAYERS), bytes_of(GPT_RECOMPUTE_UNIFORM, 1));
    cr_expect_lt(bytes_of(GPT_RECOMPUTE_UNIFORM, 1), bytes_of(GPT_RECOMPUTE_SELECTIVE, 0));
}
