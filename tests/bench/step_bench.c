/* Milliseconds of one training step (forward, backward, gradient norm, AdamW) on one rank.
 *
 *     cmake --build BUILD --target step_bench && BUILD/bin/step_bench [--steps 30] [--threads 2]
 *         [--layers 4] [--hidden 256] [--heads 4] [--sequence 256] [--vocab 8192] [--batch 8]
 *         [--dropout 0]
 *
 * The same step in PyTorch (median over the steps after the fifth, as here):
 *
 *     python peer_cpu_train.py --modes compile --threads 2
 *         --L 4 --d 256 --h 4 --T 256 --V 8192 --B 8
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "train/device/device.h"
#include "train/model/gpt.h"

#define STEPS_MAX 1000
#define WARM_STEPS 5

struct sizes {
    int steps, threads, layers, hidden, heads, sequence, vocab, batch;
    double dropout;
};

static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void parse(int argc, char **argv, struct sizes *sizes)
{
    const struct {
        const char *name;
        int *value;
    } options[] = {
        {"--steps", &sizes->steps},   {"--threads", &sizes->threads},
        {"--layers", &sizes->layers}, {"--hidden", &sizes->hidden},
        {"--heads", &sizes->heads},   {"--sequence", &sizes->sequence},
        {"--vocab", &sizes->vocab},   {"--batch", &sizes->batch},
    };

    for (int i = 1; i + 1 < argc; i += 2) {
        for (size_t k = 0; k < sizeof(options) / sizeof(options[0]); k++) {
            if (strcmp(argv[i], options[k].name) == 0) {
                *options[k].value = atoi(argv[i + 1]);
            }
        }
        if (strcmp(argv[i], "--dropout") == 0) {
            sizes->dropout = atof(argv[i + 1]);
        }
    }
    if (sizes->steps <= WARM_STEPS || sizes->steps > STEPS_MAX) {
        fprintf(stderr, "step_bench: --steps is not in %d .. %d\n", WARM_STEPS + 1, STEPS_MAX);
        exit(2);
    }
}

static enum status step(struct device *device, struct gpt *gpt, float *moments[2],
                        const struct gpt_batch *batch, double *out_loss)
{
    size_t count = gpt_flat_count(gpt);
    double squares = 0.0;
    enum status st = STATUS_OK;

    TRY(st, device->ops->fill_zero(device, gpt_grad_data(gpt), count * sizeof(float)), done);
    TRY(st, gpt_forward(gpt, 0, 0, batch, NULL, NULL, out_loss), done);
    TRY(st, gpt_backward(gpt, 0, 0, batch, NULL, NULL), done);
    TRY(st, device->ops->sum_of_squares(device, gpt_grad_data(gpt), count, &squares), done);
    struct adamw_args args = {
        .learning_rate = 6e-4f,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .epsilon = 1e-8f,
        .weight_decay = 0.1f,
        .grad_scale = squares > 1.0 ? (float)(1.0 / sqrt(squares)) : 1.0f,
        .step = (int64_t)batch->step + 1,
    };
    TRY(st,
        device->ops->adamw(device, gpt_param_data(gpt), moments[0], moments[1], gpt_grad_data(gpt),
                           count, &args),
        done);
done:
    return st;
}

static enum status run(const struct sizes *s, double *times)
{
    struct gpt_config config = {
        .layers = s->layers,
        .hidden = s->hidden,
        .heads = s->heads,
        .ffn_hidden = 4 * s->hidden,
        .vocab = s->vocab,
        .vocab_divisor = 128,
        .max_positions = s->sequence,
        .sequence = s->sequence,
        .micro_batch = s->batch,
        .attention_dropout = (float)s->dropout,
        .hidden_dropout = (float)s->dropout,
        .layernorm_epsilon = 1e-5f,
        .init_std = 0.02f,
        .seed = 1234,
    };
    struct gpt_stage stage = {
        .layer_end = s->layers, .is_first = true, .is_last = true, .tp_size = 1};
    size_t rows = (size_t)s->batch * (size_t)s->sequence;
    int32_t *ids = calloc(2 * rows, sizeof(int32_t));
    float *moments[2] = {NULL, NULL};
    struct device *device = NULL;
    struct gpt *gpt = NULL;
    enum status st = STATUS_OK;

    TRY(st, device_open("cpu", s->threads, &device), done);
    TRY(st, gpt_create(&config, &stage, device, 1, &gpt), done);
    TRY(st, gpt_init_params(gpt), done);
    for (int i = 0; i < 2; i++) {
        TRY(st,
            device->ops->alloc(device, (void **)&moments[i], gpt_flat_count(gpt) * sizeof(float)),
            done);
    }
    for (int i = 0; ids != NULL && i < s->steps; i++) {
        struct gpt_batch batch = {.tokens = ids,
                                  .labels = ids + rows,
                                  .loss_scale = 1.0f / (float)rows,
                                  .step = (uint64_t)i,
                                  .is_training = true};
        double loss = 0.0, begin;

        for (size_t k = 0; k < 2 * rows; k++) {
            ids[k] = rand() % s->vocab;
        }
        begin = now_ms();
        TRY(st, step(device, gpt, moments, &batch, &loss), done);
        times[i] = now_ms() - begin;
        if (i == 0 || i == s->steps - 1) {
            printf("step %d: loss %.4f\n", i, loss / (double)rows);
        }
    }
done:
    for (int i = 0; i < 2 && device != NULL; i++) {
        device->ops->free(device, moments[i]);
    }
    gpt_destroy(&gpt);
    device_close(&device);
    free(ids);
    return st;
}

int main(int argc, char **argv)
{
    struct sizes sizes = {.steps = 30,
                          .threads = 2,
                          .layers = 4,
                          .hidden = 256,
                          .heads = 4,
                          .sequence = 256,
                          .vocab = 8192,
                          .batch = 8};
    static double times[STEPS_MAX];

    parse(argc, argv, &sizes);
    if (run(&sizes, times) != STATUS_OK) {
        status_print("step_bench", true);
        return status_exit_code(status_last()->code);
    }
    int count = sizes.steps - WARM_STEPS;
    qsort(times + WARM_STEPS, (size_t)count, sizeof(*times), compare);
    printf("median %.1f ms, fastest %.1f ms, %.0f tokens/s\n", times[WARM_STEPS + count / 2],
           times[WARM_STEPS], sizes.batch * sizes.sequence / times[WARM_STEPS + count / 2] * 1e3);
    return 0;
}
