/* One step gives the same loss and gradients however the model is cut: tensor parallel over threads
 * that are ranks, and pipeline stages one after the other. Dropout is on, so the masks are compared
 * too. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/mem.h"
#include "train/comm/comm.h"
#include "train/device/device.h"
#include "train/model/gpt.h"

#define must(call) cr_assert_eq((call), STATUS_OK, "%s: %s", #call, status_last()->message)

#define LAYERS 3
#define LAYERS_CHUNKED 4
#define ROWS (2 * 70)
#define TENSORS_MAX 64
#define LOSS_TOLERANCE 1e-6 /* relative */
#define GRAD_TOLERANCE                                                                             \
    5e-6 /* of the tensor's norm: weights are ten times as large as
                                         * real ones, so that every mask and cut matters, and so is
                                         * float32's noise (1.5e-6) */

static int32_t tokens[ROWS], labels[ROWS], starts[ROWS];
static float mask[ROWS];

struct global {
    char name[GPT_PARAM_NAME_MAX];
    size_t count;
    float *values;
};

/* The gradients of all ranks, put together. */
struct outcome {
    double loss;
    size_t count;
    struct global tensors[TENSORS_MAX];
};

static struct gpt_config config_of(float dropout, bool untied)
{
    return (struct gpt_config){
        .layers = LAYERS,
        .hidden = 48,
        .heads = 4,
        .ffn_hidden = 192,
        .vocab = 300,
        .vocab_divisor = 64,
        .max_positions = 80,
        .sequence = 70,
        .micro_batch = 2,
        .untied = untied,
        .attention_dropout = dropout,
        .hidden_dropout = dropout,
        .layernorm_epsilon = 1e-5f,
        .init_std = 0.2f,
        .seed = 77,
    };
}

static struct gpt_batch batch_of(void)
{
    for (int r = 0; r < ROWS; r++) {
        tokens[r] = (r * 7 + r * r) % 300;
        labels[r] = (r * 13 + 5) % 300;
        mask[r] = r % 5 == 0 ? 0.0f : 1.0f;
        starts[r] = r % (ROWS / 2) / 25 * 25; /* documents of 25 tokens */
    }
    return (struct gpt_batch){
        .tokens = tokens,
        .labels = labels,
        .loss_mask = mask,
        .position_starts = starts,
        .attention_starts = starts,
        .loss_scale = 1.0f / ROWS,
        .first_sample = 41,
        .step = 3,
        .is_training = true,
    };
}

static struct global *global_of(struct outcome *outcome, const struct gpt_param *param)
{
    struct box whole = box_whole(param->dims, param->shape);

    for (size_t i = 0; i < outcome->count; i++) {
        if (strcmp(outcome->tensors[i].name, param->name) == 0) {
            return &outcome->tensors[i];
        }
    }
    struct global *global = &outcome->tensors[outcome->count++];
    cr_assert_leq(outcome->count, TENSORS_MAX);
    snprintf(global->name, sizeof(global->name), "%s", param->name);
    global->count = box_count(&whole);
    global->values = calloc(global->count, sizeof(float));
    return global;
}

/* Puts a rank's gradients where they belong; a tied copy's are added, as the trainer adds them. */
static void collect(struct gpt *gpt, struct outcome *outcome)
{
    for (size_t i = 0; i < gpt_param_count(gpt); i++) {
        const struct gpt_param *param = &gpt_params(gpt)[i];
        const float *grads = gpt_grad_data(gpt) + param->begin;
        struct global *global = global_of(outcome, param);
        struct box whole = box_whole(param->dims, param->shape);

        if (param->tied_copy) {
            for (size_t e = 0; e < global->count; e++) {
                global->values[e] += grads[e];
            }
        } else {
            box_copy(&param->box, sizeof(float), &whole, global->values, &param->box, grads);
        }
    }
}

static void release(struct outcome *outcome)
{
    for (size_t i = 0; i < outcome->count; i++) {
        free(outcome->tensors[i].values);
    }
    free(outcome);
}

/* --- tensor parallel --- */

struct rank {
    struct gpt_config config;
    int rank, size;
    const char *folder;
    struct device *device;
    struct comm *comm;
    struct gpt *gpt;
    double loss;
    enum status status;
};

static enum status run_rank(struct rank *rank)
{
    struct comm_config comm = {.rank = rank->rank,
                               .size = rank->size,
                               .rendezvous_dir = rank->folder,
                               .generation = 1,
                               .init_timeout_ms = 20000,
                               .call_timeout_ms = 20000};
    struct gpt_batch batch = batch_of();
    enum status st = STATUS_OK;

    TRY(st, comm_open(&comm, &rank->comm), done);
    TRY(st, device_open("cpu", 1, &rank->device), done);
    struct gpt_stage stage = {.layer_end = LAYERS,
                              .is_first = true,
                              .is_last = true,
                              .tp_rank = rank->rank,
                              .tp_size = rank->size,
                              .tp = rank->comm};
    TRY(st, gpt_create(&rank->config, &stage, rank->device, 1, &rank->gpt), done);
    TRY(st, gpt_init_params(rank->gpt), done);
    TRY(st, gpt_forward(rank->gpt, 0, 0, &batch, NULL, NULL, &rank->loss), done);
    TRY(st, gpt_backward(rank->gpt, 0, 0, &batch, NULL, NULL), done);
    TRY(st, gpt_sum_gradients(rank->gpt), done);
    TRY(st, comm_barrier(rank->comm), done);
done:
    return st;
}

static void *rank_main(void *argument)
{
    struct rank *rank = argument;

    rank->status = run_rank(rank);
    if (rank->status != STATUS_OK) {
        status_print("rank", true);
    }
    return NULL;
}

static void remove_folder(const char *folder)
{
    DIR *dir = opendir(folder);
    char path[4096];

    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] != '.') {
            unlink(path);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    rmdir(folder);
}

/* Replicated tensors must get the same bits on every rank. */
static void check_replicas(struct gpt *first, struct gpt *other)
{
    for (size_t i = 0; i < gpt_param_count(first); i++) {
        const struct gpt_param *param = &gpt_params(first)[i];

        if (param->tp_replicated) {
            cr_expect_arr_eq(gpt_grad_data(first) + param->begin,
                             gpt_grad_data(other) + param->begin,
                             param->rows * param->columns * sizeof(float), "%s", param->name);
        }
    }
}

static struct outcome *run_tensor_parallel(int size, struct gpt_config config)
{
    struct outcome *outcome = calloc(1, sizeof(*outcome));
    struct rank ranks[4] = {0};
    pthread_t threads[4];
    const char *base = getenv("TMPDIR");
    char folder[1024];

    snprintf(folder, sizeof(folder), "%s/layoutsXXXXXX", base != NULL ? base : "/tmp");
    cr_assert_not_null(mkdtemp(folder));
    (void)batch_of();
    for (int r = 0; r < size; r++) {
        ranks[r] = (struct rank){.config = config, .rank = r, .size = size, .folder = folder};
        cr_assert_eq(pthread_create(&threads[r], NULL, rank_main, &ranks[r]), 0);
    }
    for (int r = 0; r < size; r++) {
        pthread_join(threads[r], NULL);
    }
    for (int r = 0; r < size; r++) {
        cr_assert_eq(ranks[r].status, STATUS_OK);
        cr_expect_eq(ranks[r].loss, ranks[0].loss, "the ranks disagree on the loss");
        check_replicas(ranks[0].gpt, ranks[r].gpt);
        collect(ranks[r].gpt, outcome);
    }
    outcome->loss = ranks[0].loss;
    for (int r = 0; r < size; r++) {
        gpt_destroy(&ranks[r].gpt);
        device_close(&ranks[r].device);
        comm_close(&ranks[r].comm);
    }
    remove_folder(folder);
    return outcome;
}

static void expect_same(const struct outcome *have, const struct outcome *want)
{
    cr_expect_float_eq(have->loss, want->loss, LOSS_TOLERANCE * want->loss, "loss %.9g for %.9g",
                       have->loss, want->loss);
    cr_assert_eq(have->count, want->count);
    for (size_t i = 0; i < want->count; i++) {
        const struct global *w = &want->tensors[i], *h = NULL;
        double error = 0.0, squares = 0.0;

        for (size_t k = 0; k < have->count; k++) {
            if (strcmp(have->tensors[k].name, w->name) == 0) {
                h = &have->tensors[k];
            }
        }
        cr_assert_not_null(h, "%s is missing", w->name);
        for (size_t e = 0; e < w->count; e++) {
            error += pow((double)h->values[e] - (double)w->values[e], 2.0);
            squares += pow((double)w->values[e], 2.0);
        }
        cr_expect_gt(squares, 0.0, "no gradient of %s", w->name);
        cr_expect_leq(sqrt(error), GRAD_TOLERANCE * sqrt(squares), "gradient of %s is off by %g",
                      w->name, sqrt(error / squares));
    }
}

static void check_tensor_parallel(int size, float dropout, bool untied)
{
    struct gpt_config config = config_of(dropout, untied);
    struct outcome *one = run_tensor_parallel(1, config);
    struct outcome *several = run_tensor_parallel(size, config);

    expect_same(several, one);
    release(one);
    release(several);
}

static void check_sequence_parallel(enum gpt_recompute recompute, float dropout)
{
    struct gpt_config config = config_of(dropout, false);
    struct outcome *one = run_tensor_parallel(1, config);

    config.sequence_parallel = true;
    config.recompute = recompute;
    config.recompute_layers = 2;
    struct outcome *several = run_tensor_parallel(2, config);
    expect_same(several, one);
    release(one);
    release(several);
}

Test(gpt_layouts, two_tensor_parallel_ranks_equal_one)
{
    check_tensor_parallel(2, 0.1f, false);
}

Test(gpt_layouts, four_tensor_parallel_ranks_equal_one)
{
    check_tensor_parallel(4, 0.1f, false);
}

Test(gpt_layouts, four_ranks_with_a_separate_output_equal_one)
{
    check_tensor_parallel(4, 0.0f, true);
}

Test(gpt_layouts, ranks_with_a_part_of_the_positions_equal_one)
{
    check_sequence_parallel(GPT_RECOMPUTE_NONE, 0.1f);
    check_sequence_parallel(GPT_RECOMPUTE_NONE, 0.0f);
}

Test(gpt_layouts, ranks_with_a_part_of_the_positions_can_make_activations_again)
{
    check_sequence_parallel(GPT_RECOMPUTE_SELECTIVE, 0.1f);
    check_sequence_parallel(GPT_RECOMPUTE_UNIFORM, 0.1f);
    check_sequence_parallel(GPT_RECOMPUTE_BLOCK, 0.1f);
}

/* The residual stream is kept four times a layer, at the stage's begin and twice at its end. */
Test(gpt_layouts, a_part_of_the_positions_takes_less_memory)
{
    enum { SLOTS = 8, TP = 2 };
    struct gpt_config config = config_of(0.1f, false);
    struct gpt_stage stage = {
        .layer_end = LAYERS, .is_first = true, .is_last = true, .tp_size = TP};
    double rows = config.micro_batch * config.sequence, row = config.hidden * sizeof(float);

    double all = (double)gpt_memory_bytes(&config, &stage, SLOTS);
    config.sequence_parallel = true;
    double part = (double)gpt_memory_bytes(&config, &stage, SLOTS);
    double saved = SLOTS * (4 * LAYERS + 3) * rows * row * (TP - 1) / TP;
    cr_expect_float_eq(all - part, saved, 0.1 * saved, "%g for %g bytes", all - part, saved);
    stage.tp_size = 4;
    cr_expect_eq(gpt_memory_bytes(&config, &stage, SLOTS), 0);
    cr_expect_not_null(strstr(status_last()->message, "sequence length 70 cannot be cut into 4"));
}

/* --- pipeline --- */

/* Stages of `cuts` layers, one after the other in this thread. */
static struct outcome *run_pipeline(const int *cuts, int stages, bool untied)
{
    struct outcome *outcome = calloc(1, sizeof(*outcome));
    struct gpt_config config = config_of(0.1f, untied);
    struct gpt_batch batch = batch_of();
    struct device *device = NULL;
    struct gpt *gpts[LAYERS] = {NULL};
    float *between[LAYERS + 1] = {NULL};

    must(device_open("cpu", 2, &device));
    for (int s = 0, begin = 0; s < stages; begin += cuts[s], s++) {
        struct gpt_stage stage = {.layer_begin = begin,
                                  .layer_end = begin + cuts[s],
                                  .is_first = s == 0,
                                  .is_last = s == stages - 1,
                                  .tp_size = 1};
        must(gpt_create(&config, &stage, device, 1, &gpts[s]));
        must(gpt_init_params(gpts[s]));
        must(mem_alloc(&between[s + 1], gpt_activation_bytes(gpts[s]), 1));
    }
    for (int s = 0; s < stages; s++) {
        bool is_last = s == stages - 1;
        must(gpt_forward(gpts[s], 0, 0, &batch, between[s], is_last ? NULL : between[s + 1],
                         &outcome->loss));
    }
    for (int s = stages - 1; s >= 0; s--) {
        bool is_last = s == stages - 1;
        must(gpt_backward(gpts[s], 0, 0, &batch, is_last ? NULL : between[s + 1], between[s]));
    }
    for (int s = 0; s < stages; s++) {
        collect(gpts[s], outcome);
        gpt_destroy(&gpts[s]);
        mem_free(&between[s + 1]);
    }
    device_close(&device);
    return outcome;
}

static void check_pipeline(const int *cuts, int stages, bool untied)
{
    static const int whole[] = {LAYERS};
    struct outcome *one = run_pipeline(whole, 1, untied);
    struct outcome *several = run_pipeline(cuts, stages, untied);

    expect_same(several, one);
    release(one);
    release(several);
}

Test(gpt_layouts, uneven_stages_equal_one)
{
    static const int cuts[] = {2, 1};

    check_pipeline(cuts, 2, false);
}

Test(gpt_layouts, a_stage_without_layers_equals_none)
{
    static const int cuts[] = {1, 2, 0};

    check_pipeline(cuts, 3, true);
}

/* Two stages of LAYERS_CHUNKED layers hold every second one, a chunk each; all in one slot. */
static struct outcome *run_chunks(enum gpt_recompute recompute, bool untied, int stages)
{
    struct outcome *outcome = calloc(1, sizeof(*outcome));
    struct gpt_config config = config_of(0.1f, untied);
    struct gpt_batch batch = batch_of();
    int chunks = LAYERS_CHUNKED / stages;
    struct device *device = NULL;
    struct gpt *gpts[2] = {NULL};
    float *flow = NULL;

    config.layers = LAYERS_CHUNKED;
    config.recompute = recompute;
    config.recompute_layers = 1;
    must(device_open("cpu", 2, &device));
    for (int s = 0; s < stages; s++) {
        struct gpt_stage stage = {.layer_begin = s,
                                  .layer_end = stages == 1 ? LAYERS_CHUNKED : s + 1,
                                  .chunks = stages == 1 ? 1 : chunks,
                                  .chunk_stride = stages,
                                  .is_first = s == 0,
                                  .is_last = s == stages - 1,
                                  .tp_size = 1};
        /* As many slots as chunks, taken from the last: a chunk belongs to no slot. */
        must(gpt_create(&config, &stage, device, chunks, &gpts[s]));
        must(gpt_init_params(gpts[s]));
    }
    must(mem_alloc(&flow, gpt_activation_bytes(gpts[0]), 1));
    int last = stages == 1 ? 0 : LAYERS_CHUNKED - 1;
    for (int place = 0; place <= last; place++) {
        int chunk = place / stages;
        must(gpt_forward(gpts[place % stages], chunk, chunks - 1 - chunk, &batch, flow, flow,
                         &outcome->loss));
    }
    for (int place = last; place >= 0; place--) {
        int chunk = place / stages;
        must(gpt_backward(gpts[place % stages], chunk, chunks - 1 - chunk, &batch, flow, flow));
    }
    for (int s = 0; s < stages; s++) {
        collect(gpts[s], outcome);
        gpt_destroy(&gpts[s]);
    }
    mem_free(&flow);
    device_close(&device);
    return outcome;
}

static void check_chunks(enum gpt_recompute recompute, bool untied)
{
    struct outcome *one = run_chunks(GPT_RECOMPUTE_NONE, untied, 1);
    struct outcome *several = run_chunks(recompute, untied, 2);

    expect_same(several, one);
    release(one);
    release(several);
}

Test(gpt_layouts, stages_of_several_chunks_equal_one)
{
    check_chunks(GPT_RECOMPUTE_NONE, false);
    check_chunks(GPT_RECOMPUTE_NONE, true);
}

Test(gpt_layouts, stages_of_several_chunks_can_make_activations_again)
{
    check_chunks(GPT_RECOMPUTE_SELECTIVE, false);
    check_chunks(GPT_RECOMPUTE_UNIFORM, false);
    check_chunks(GPT_RECOMPUTE_BLOCK, false);
}

/* --- what a slot and a mode keep apart --- */

Test(gpt_layouts, micro_batches_in_flight_do_not_disturb_each_other)
{
    struct gpt_config config = config_of(0.1f, false);
    struct gpt_stage stage = {.layer_end = LAYERS, .is_first = true, .is_last = true, .tp_size = 1};
    struct gpt_batch batch = batch_of(), other = batch_of();
    struct device *device = NULL;
    struct gpt *gpt = NULL;
    float *want = NULL;
    double loss = 0.0, squares = 0.0, difference = 0.0;

    must(device_open("cpu", 2, &device));
    must(gpt_create(&config, &stage, device, 2, &gpt));
    must(gpt_init_params(gpt));
    size_t bytes = gpt_flat_count(gpt) * sizeof(float);
    other.first_sample = 500;
    for (int slot = 0; slot < 2; slot++) {
        const struct gpt_batch *each = slot == 0 ? &batch : &other;
        must(gpt_forward(gpt, 0, 0, each, NULL, NULL, &loss));
        must(gpt_backward(gpt, 0, 0, each, NULL, NULL));
    }
    must(mem_alloc(&want, gpt_flat_count(gpt), sizeof(float)));
    memcpy(want, gpt_grad_data(gpt), bytes);
    must(device->ops->fill_zero(device, gpt_grad_data(gpt), bytes));
    must(gpt_forward(gpt, 0, 0, &batch, NULL, NULL, &loss));
    must(gpt_forward(gpt, 0, 1, &other, NULL, NULL, &loss));
    must(gpt_backward(gpt, 0, 0, &batch, NULL, NULL));
    must(gpt_backward(gpt, 0, 1, &other, NULL, NULL));
    for (size_t i = 0; i < gpt_flat_count(gpt); i++) {
        squares += pow((double)want[i], 2.0);
        difference += pow((double)want[i] - (double)gpt_grad_data(gpt)[i], 2.0);
    }
    cr_expect_leq(sqrt(difference), GRAD_TOLERANCE * sqrt(squares));
    mem_free(&want);
    gpt_destroy(&gpt);
    device_close(&device);
}

Test(gpt_layouts, a_repeated_step_gives_the_same_bits)
{
    static const int whole[] = {LAYERS};
    struct outcome *first = run_pipeline(whole, 1, false);

    for (int repeat = 0; repeat < 5; repeat++) {
        struct outcome *again = run_pipeline(whole, 1, false);

        cr_expect_eq(again->loss, first->loss);
        for (size_t i = 0; i < first->count; i++) {
            cr_expect_arr_eq(again->tensors[i].values, first->tensors[i].values,
                             first->tensors[i].count * sizeof(float), "%s", first->tensors[i].name);
        }
        release(again);
    }
    release(first);
}

Test(gpt_layouts, evaluation_has_no_dropout_and_no_gradient)
{
    struct gpt_config config = config_of(0.1f, false), plain = config_of(0.0f, false);
    struct gpt_stage stage = {.layer_end = LAYERS, .is_first = true, .is_last = true, .tp_size = 1};
    struct gpt_batch batch = batch_of();
    struct device *device = NULL;
    struct gpt *gpt = NULL, *without = NULL;
    double trained = 0.0, evaluated = 0.0, want = 0.0;

    must(device_open("cpu", 2, &device));
    must(gpt_create(&config, &stage, device, 1, &gpt));
    must(gpt_create(&plain, &stage, device, 1, &without));
    must(gpt_init_params(gpt));
    must(gpt_init_params(without));
    must(gpt_forward(without, 0, 0, &batch, NULL, NULL, &want));
    batch.is_training = false;
    must(gpt_forward(gpt, 0, 0, &batch, NULL, NULL, &evaluated));
    for (size_t i = 0; i < gpt_flat_count(gpt); i++) {
        cr_assert_eq(gpt_grad_data(gpt)[i], 0.0f);
    }
    batch.is_training = true;
    must(gpt_forward(gpt, 0, 0, &batch, NULL, NULL, &trained));
    cr_expect_eq(evaluated, want);
    cr_expect_neq(trained, evaluated);
    gpt_destroy(&gpt);
    gpt_destroy(&without);
    device_close(&device);
}
