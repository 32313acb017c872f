/* Claims about samples of several documents: with positions and attention reset, a document's
 * losses and gradients are those it has alone. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/device/device.h"
#include "train/model/gpt.h"

#define must(call) cr_assert_eq((call), STATUS_OK, "%s: %s", #call, status_last()->message)

#define T 70
#define FIRST 41 /* tokens of the first document of the long sample; the rest are the second's */
#define SECOND (T - FIRST)

enum reset { RESET_NOTHING, RESET_POSITIONS, RESET_ATTENTION, RESET_BOTH };

static int32_t tokens[2 * T], labels[2 * T], starts[2 * T];
static float mask[2 * T];

static struct gpt *open_model(struct device **out_device)
{
    struct gpt_config config = {.layers = 2,
                                .hidden = 32,
                                .heads = 4,
                                .ffn_hidden = 64,
                                .vocab = 300,
                                .vocab_divisor = 64,
                                .max_positions = T,
                                .sequence = T,
                                .micro_batch = 2,
                                .layernorm_epsilon = 1e-5f,
                                .init_std = 0.2f,
                                .seed = 77};
    struct gpt_stage stage = {.layer_end = 2, .is_first = true, .is_last = true, .tp_size = 1};
    struct gpt *gpt = NULL;

    must(device_open("cpu", 2, out_device));
    must(gpt_create(&config, &stage, *out_device, 1, &gpt));
    must(gpt_init_params(gpt));
    return gpt;
}

/* Row 0: the two documents one after the other. Row 1: the second one alone, and then others. Only
 * the second document's losses count, those of row `counted`. */
static struct gpt_batch batch_of(enum reset reset, int counted)
{
    memset(mask, 0, sizeof(mask));
    memset(starts, 0, sizeof(starts));
    for (int t = 0; t < T; t++) {
        tokens[t] = (t * 7 + t * t) % 300;
        labels[t] = (t * 13 + 5) % 300;
        starts[t] = t < FIRST ? 0 : FIRST;
        int from = t < SECOND ? FIRST + t : t - SECOND;
        tokens[T + t] = (from * 7 + from * from) % 300;
        labels[T + t] = (from * 13 + 5) % 300;
    }
    for (int t = 0; t < SECOND; t++) {
        mask[counted == 0 ? FIRST + t : T + t] = 1.0f;
    }
    return (struct gpt_batch){
        .tokens = tokens,
        .labels = labels,
        .loss_mask = mask,
        .position_starts = (reset & RESET_POSITIONS) != 0 ? starts : NULL,
        .attention_starts = (reset & RESET_ATTENTION) != 0 ? starts : NULL,
        .loss_scale = 1.0f / SECOND,
        .is_training = true,
    };
}

/* The gradients, freed by free. */
static float *run(struct gpt *gpt, enum reset reset, int counted, double *out_loss)
{
    struct gpt_batch batch = batch_of(reset, counted);
    size_t bytes = gpt_flat_count(gpt) * sizeof(float);
    float *grads = malloc(bytes);

    cr_assert_not_null(grads);
    memset(gpt_grad_data(gpt), 0, bytes);
    must(gpt_forward(gpt, 0, 0, &batch, NULL, NULL, out_loss));
    must(gpt_backward(gpt, 0, 0, &batch, NULL, NULL));
    memcpy(grads, gpt_grad_data(gpt), bytes);
    return grads;
}

/* How far two runs' gradients are apart, relative to their norm. */
static double distance(const float *a, const float *b, size_t count)
{
    double apart = 0, norm = 0;

    for (size_t i = 0; i < count; i++) {
        apart += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)a[i] * (double)a[i];
    }
    return sqrt(apart / norm);
}

Test(gpt_documents, reset_document_is_as_if_alone)
{
    struct device *device = NULL;
    struct gpt *gpt = open_model(&device);
    double behind = 0, alone = 0;
    float *grads_behind = run(gpt, RESET_BOTH, 0, &behind);
    float *grads_alone = run(gpt, RESET_BOTH, 1, &alone);

    cr_assert_lt(fabs(behind - alone), 1e-6 * alone, "%.9g behind, %.9g alone", behind, alone);
    cr_assert_lt(distance(grads_alone, grads_behind, gpt_flat_count(gpt)), 5e-6);
    free(grads_behind);
    free(grads_alone);
    gpt_destroy(&gpt);
    device_close(&device);
}

Test(gpt_documents, each_reset_is_one_half_of_it)
{
    struct device *device = NULL;
    struct gpt *gpt = open_model(&device);
    double losses[4];

    for (int reset = RESET_NOTHING; reset <= RESET_BOTH; reset++) {
        free(run(gpt, (enum reset)reset, 0, &losses[reset]));
        for (int other = 0; other < reset; other++) {
            cr_assert_gt(fabs(losses[reset] - losses[other]), 1e-4 * losses[reset], "%d and %d",
                         reset, other);
        }
    }
    gpt_destroy(&gpt);
    device_close(&device);
}
