/* What was not finite first: put there, and found. One rank, one small model. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/blame.h"

#define LAYERS 3
#define T 8

static struct comm *world;
static struct topology topology;
static struct device *device;
static struct gpt *gpt;
static struct grads grads;
static struct pipeline *pipeline;
static int32_t tokens[T] = {1, 2, 3, 4, 5, 6, 7, 8}, labels[T] = {2, 3, 4, 5, 6, 7, 8, 9};
static struct gpt_batch batch = {
    .tokens = tokens, .labels = labels, .loss_scale = 1.0F / T, .is_training = true};
static struct blame_case in;

static void make(void)
{
    struct comm_config meeting = {
        .rank = 0, .size = 1, .init_timeout_ms = 1000, .call_timeout_ms = 10000};
    struct gpt_config config = {.layers = LAYERS,
                                .hidden = 16,
                                .heads = 2,
                                .ffn_hidden = 32,
                                .vocab = 20,
                                .vocab_divisor = 4,
                                .max_positions = T,
                                .sequence = T,
                                .micro_batch = 1,
                                .layernorm_epsilon = 1e-5F,
                                .init_std = 0.02F};
    struct gpt_stage stage = {.layer_end = LAYERS, .is_first = true, .is_last = true, .tp_size = 1};
    struct pipeline_config runs = {.topology = &topology, .chunks = 1, .micro_batches = 1};

    cr_assert_eq(comm_open(&meeting, &world), STATUS_OK);
    cr_assert_eq(topology_open((struct layout){1, 1, 1}, true, world, &topology), STATUS_OK);
    cr_assert_eq(device_open("cpu", 1, &device), STATUS_OK);
    stage.tp = topology.tp;
    cr_assert_eq(gpt_create(&config, &stage, device, 1, &gpt), STATUS_OK);
    cr_assert_eq(gpt_init_params(gpt), STATUS_OK);
    runs.gpt = gpt;
    runs.device = device;
    cr_assert_eq(pipeline_create(&runs, &pipeline), STATUS_OK);
    cr_assert_eq(grads_init(&grads, gpt, device, &topology), STATUS_OK);
    in = (struct blame_case){
        .world = world, .grads = &grads, .pipeline = pipeline, .batches = &batch};
}

static void run(void)
{
    cr_assert_eq(grads_zero(&grads), STATUS_OK);
    cr_assert_eq(pipeline_train(pipeline, &batch, &in.loss_sum), STATUS_OK);
    cr_assert_eq(grads_reduce(&grads), STATUS_OK);
}

static void unmake(void)
{
    grads_deinit(&grads);
    pipeline_destroy(&pipeline);
    gpt_destroy(&gpt);
    device_close(&device);
    topology_close(&topology);
    comm_close(&world);
}

TestSuite(blame, .init = make, .fini = unmake);

static size_t begin_of(const char *name)
{
    for (size_t i = 0; i < gpt_param_count(gpt); i++) {
        if (strcmp(gpt_params(gpt)[i].name, name) == 0) {
            return gpt_params(gpt)[i].begin;
        }
    }
    cr_assert_fail("no tensor '%s'", name);
    return 0;
}

static void expect(enum blame_kind kind, const char *tensor, bool again, const char *text)
{
    struct blame blame;
    char message[512];

    cr_assert_eq(blame_find(&in, &blame), STATUS_OK);
    blame_format(&blame, message, sizeof(message));
    cr_assert(blame.kind == kind && blame.again == again && blame.rank == 0, "%s", message);
    cr_assert_str_eq(blame.tensor, tensor);
    cr_assert(strstr(message, text) != NULL && strstr(message, tensor) != NULL, "%s", message);
}

Test(blame, a_bad_weight_is_named_whatever_follows_from_it)
{
    const char *name = "decoder.layers.1.mlp.linear_fc1.weight";

    gpt_param_data(gpt)[begin_of(name) + 5] = NAN;
    run();
    cr_assert(!isfinite(in.loss_sum));
    expect(BLAME_WEIGHT, name, false, "weight");
}

Test(blame, a_loss_out_of_range_is_no_weights_fault)
{
    float *weights = gpt_param_data(gpt);
    const char *names[] = {"decoder.final_layernorm.weight", "embedding.word_embeddings.weight"};

    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 16; j++) {
            weights[begin_of(names[i]) + (size_t)j] = 3e38F;
        }
    }
    run();
    cr_assert(!isfinite(in.loss_sum));
    expect(BLAME_LOSS, "", true, "finite weights");
}

Test(blame, a_gradient_that_is_bad_once_is_a_fault_of_the_machine)
{
    const char *name = "decoder.layers.2.self_attention.linear_qkv.weight";

    run();
    gpt_grad_data(gpt)[begin_of(name) + 7] = INFINITY;
    gpt_grad_data(gpt)[begin_of("decoder.layers.0.mlp.linear_fc2.bias")] = NAN;
    expect(BLAME_GRADIENT, name, false, "faulty");
}

Test(blame, a_gradient_that_is_bad_each_time_is_the_trainings)
{
    run();
    batch.loss_scale = INFINITY; /* as a loss scale that is too large makes it */
    run();
    expect(BLAME_GRADIENT, gpt_params(gpt)[gpt_param_count(gpt) - 1].name, true, "finite loss");
    batch.loss_scale = 1.0F / T;
}

Test(blame, nothing_bad_is_nothing_blamed)
{
    run();
    expect(BLAME_NOTHING, "", false, "nothing");
}
