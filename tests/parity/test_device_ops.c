/* Every operation of the device against plain double arithmetic; every backward against central
 * differences of the plain forward. Sizes are odd on purpose: no vector width divides them. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/device/device.h"
#include "train/device/philox.h"

#define must(call) cr_assert_eq((call), STATUS_OK, "%s: %s", #call, status_last()->message)

#define VALUES_MAX 65536
#define STEP 1e-4 /* of central differences, in double */

static struct device *device;
static const struct device_ops *ops;
static uint64_t draw_state;

static void open_device(void)
{
    must(device_open("cpu", 2, &device));
    ops = device->ops;
    draw_state = 20261201;
}

static void close_device(void)
{
    device_close(&device);
}

TestSuite(device_ops, .init = open_device, .fini = close_device);

/* Uniform in -range .. range; the same sequence on every run. */
static void draw(float *out, size_t count, double range)
{
    for (size_t i = 0; i < count; i++) {
        draw_state++;
        out[i] = (float)(range * ((double)(philox_mix(draw_state) >> 11) * 0x1p-52 - 1.0));
    }
}

static void expect_near(const float *have, const double *want, size_t count, double tolerance,
                        const char *what)
{
    double worst = 0.0;
    size_t at = 0;

    for (size_t i = 0; i < count; i++) {
        double error = fabs((double)have[i] - want[i]) / (1.0 + fabs(want[i]));
        if (!(error <= worst)) {
            worst = error;
            at = i;
        }
    }
    cr_expect(worst <= tolerance, "%s[%zu] is %.8g, not %.8g", what, at, (double)have[at],
              want[at]);
}

static struct device_dropout no_dropout(int T)
{
    return (struct device_dropout){.T = T};
}

/* One factor as philox.h words it, one counter at a time. */
static double factor(const struct device_dropout *d, uint64_t sample, uint32_t head,
                     uint32_t position, uint32_t channel)
{
    uint32_t key[2], words[4];
    const uint32_t counter[4] = {channel / 64 * 16 + channel % 16, position, (uint32_t)sample,
                                 (uint32_t)(sample >> 32)};

    if (d->probability == 0.0f) {
        return 1.0;
    }
    philox_key(d->seed, d->step, (uint64_t)d->layer << 32 | d->site, head, key);
    philox_4x32(counter, key, words);
    return words[channel % 64 / 16] / 4294967296.0 < (double)d->probability
               ? 0.0
               : 1.0 / (1.0 - (double)d->probability);
}

/* A scalar of some doubles, and its gradient by differences. */
struct scalar {
    double (*value)(const struct scalar *scalar);
    const float *dout; /* weights of the outputs in the scalar */
    double *inputs[3];
    int sizes[5];
    struct device_dropout dropout;
};

static void differentiate(const struct scalar *scalar, double *x, size_t count, double *out)
{
    for (size_t i = 0; i < count; i++) {
        double saved = x[i];

        x[i] = saved + STEP;
        double above = scalar->value(scalar);
        x[i] = saved - STEP;
        double below = scalar->value(scalar);
        x[i] = saved;
        out[i] = (above - below) / (2.0 * STEP);
    }
}

static void widen(double *to, const float *from, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        to[i] = from[i];
    }
}

/* --- embedding and dropout --- */

Test(device_ops, embedding_takes_rows_of_its_part_and_adds_positions_in_documents)
{
    enum { R = 14, T = 7, C = 37, BEGIN = 10, END = 30 };
    static float word[(END - BEGIN) * C], position[T * C], out[R * C];
    static double want[R * C];
    int32_t tokens[R], starts[R];

    draw(word, sizeof(word) / 4, 1.0);
    draw(position, sizeof(position) / 4, 1.0);
    for (int r = 0; r < R; r++) {
        tokens[r] = (r * 11) % 40;
        starts[r] = r % T / 3 * 3; /* documents of 3 tokens */
        for (int c = 0; c < C; c++) {
            bool here = tokens[r] >= BEGIN && tokens[r] < END;
            want[r * C + c] = (here ? (double)word[(tokens[r] - BEGIN) * C + c] : 0.0) +
                              (double)position[(r % T - starts[r]) * C + c];
        }
    }
    must(ops->embed_forward(device, out, tokens, word, position, starts, R, T, C, BEGIN, END));
    expect_near(out, want, R * C, 1e-7, "out");
}

Test(device_ops, embedding_backward_adds_up_equal_tokens)
{
    enum { R = 1200, T = 300, C = 37, V = 9 };
    static float dword[V * C], dposition[T * C], dout[R * C];
    static double want_word[V * C], want_position[T * C];
    static int32_t tokens[R], starts[R];

    draw(dout, R * C, 1.0);
    draw(dword, V * C, 1.0);
    widen(want_word, dword, V * C);
    for (int r = 0; r < R; r++) {
        tokens[r] = r * r % 11; /* 9 and 10 are another part's */
        starts[r] = r % T / 100 * 100;
        for (int c = 0; c < C; c++) {
            if (tokens[r] < V) {
                want_word[tokens[r] * C + c] += (double)dout[r * C + c];
            }
            want_position[(r % T - starts[r]) * C + c] += (double)dout[r * C + c];
        }
    }
    must(ops->embed_backward(device, dword, dposition, dout, tokens, starts, R, T, C, 0, V));
    expect_near(dword, want_word, V * C, 1e-5, "dword");
    expect_near(dposition, want_position, T * C, 1e-6, "dposition");
}

Test(device_ops, dropout_follows_the_written_draw_and_keeps_the_mean)
{
    enum { R = 300, T = 100, C = 200 };
    struct device_dropout dropout = {.probability = 0.1f,
                                     .seed = 1234,
                                     .step = 7,
                                     .layer = 3,
                                     .site = 2,
                                     .first_sample = 0x100000005u,
                                     .T = T,
                                     .position = 50};
    static float x[R * C], out[R * C];
    static double want[R * C];
    int dropped = 0;

    draw(x, R * C, 1.0);
    for (int r = 0; r < R; r++) {
        for (int c = 0; c < C; c++) {
            double f = factor(&dropout, dropout.first_sample + (uint64_t)(r / T), 0,
                              50 + (uint32_t)(r % T), (uint32_t)c);
            want[r * C + c] = (double)x[r * C + c] * f;
            dropped += f == 0.0;
        }
    }
    must(ops->dropout(device, out, x, R, C, &dropout));
    expect_near(out, want, R * C, 1e-6, "out");
    cr_expect_float_eq(dropped / (double)(R * C), 0.1, 0.005);
    dropout.step = 8;
    must(ops->dropout(device, x, x, R, C, &dropout));
    cr_expect_neq(memcmp(x, out, sizeof(x)), 0, "another step has the same mask");
}

/* --- norm --- */

static void plain_norm(double *out, const double *x, const double *weight, const double *bias,
                       int R, int C)
{
    for (int r = 0; r < R; r++) {
        double mean = 0.0, variance = 0.0;
        for (int c = 0; c < C; c++) {
            mean += x[r * C + c] / C;
        }
        for (int c = 0; c < C; c++) {
            variance += (x[r * C + c] - mean) * (x[r * C + c] - mean) / C;
        }
        for (int c = 0; c < C; c++) {
            out[r * C + c] = (x[r * C + c] - mean) / sqrt(variance + 1e-5) * weight[c] + bias[c];
        }
    }
}

static double norm_scalar(const struct scalar *s)
{
    static double out[VALUES_MAX];
    double sum = 0.0;

    plain_norm(out, s->inputs[0], s->inputs[1], s->inputs[2], s->sizes[0], s->sizes[1]);
    for (int i = 0; i < s->sizes[0] * s->sizes[1]; i++) {
        sum += out[i] * (double)s->dout[i];
    }
    return sum;
}

Test(device_ops, layernorm_and_its_gradients)
{
    enum { R = 35, C = 67 };
    static float x[R * C], weight[C], bias[C], out[R * C], mean[R], rstd[R], dout[R * C];
    static float dx[R * C], dweight[C], dbias[C];
    static double wide_x[R * C], wide_weight[C], wide_bias[C], want[R * C];
    struct scalar s = {.value = norm_scalar,
                       .dout = dout,
                       .inputs = {wide_x, wide_weight, wide_bias},
                       .sizes = {R, C}};

    draw(x, R * C, 2.0);
    draw(weight, C, 1.0);
    draw(bias, C, 1.0);
    draw(dout, R * C, 1.0);
    for (int i = 0; i < R * C; i++) {
        x[i] += 3.0f; /* a mean that a one-pass variance would lose digits to */
    }
    widen(wide_x, x, R * C);
    widen(wide_weight, weight, C);
    widen(wide_bias, bias, C);
    must(ops->layernorm_forward(device, out, mean, rstd, x, weight, bias, R, C, 1e-5f));
    plain_norm(want, wide_x, wide_weight, wide_bias, R, C);
    expect_near(out, want, R * C, 2e-6, "out");

    must(ops->layernorm_backward(device, dx, dweight, dbias, dout, x, weight, mean, rstd, R, C));
    differentiate(&s, wide_x, R * C, want);
    expect_near(dx, want, R * C, 1e-5, "dx");
    differentiate(&s, wide_weight, C, want);
    expect_near(dweight, want, C, 1e-5, "dweight");
    differentiate(&s, wide_bias, C, want);
    expect_near(dbias, want, C, 1e-5, "dbias");

    must(ops->layernorm_backward(device, dx, dweight, dbias, dout, x, weight, mean, rstd, R, C));
    for (int c = 0; c < C; c++) {
        want[c] *= 2.0;
    }
    expect_near(dbias, want, C, 1e-5, "the sum of two gradients");
}

Test(device_ops, residual_and_norm_in_one_equal_the_parts)
{
    enum { R = 30, T = 10, C = 131 };
    struct device_dropout dropout = {.probability = 0.25f,
                                     .seed = 5,
                                     .step = 1,
                                     .layer = 0,
                                     .site = 3,
                                     .first_sample = 17,
                                     .T = T,
                                     .position = 20};
    static float residual[R * C], x[R * C], x_bias[C], weight[C], bias[C];
    static float sum[R * C], out[R * C], mean[R], rstd[R];
    static double want_sum[R * C], want[R * C], wide_weight[C], wide_bias[C];

    draw(residual, R * C, 1.0);
    draw(x, R * C, 1.0);
    draw(x_bias, C, 1.0);
    draw(weight, C, 1.0);
    draw(bias, C, 1.0);
    widen(wide_weight, weight, C);
    widen(wide_bias, bias, C);
    for (int variant = 0; variant < 4; variant++) {
        bool with_bias = variant & 1;

        dropout.probability = variant & 2 ? 0.25f : 0.0f;
        for (int i = 0; i < R * C; i++) {
            double f = factor(&dropout, 17 + (uint64_t)(i / C / T), 0, 20 + (uint32_t)(i / C % T),
                              (uint32_t)(i % C));
            want_sum[i] = (double)residual[i] +
                          f * ((double)x[i] + (with_bias ? (double)x_bias[i % C] : 0.0));
        }
        plain_norm(want, want_sum, wide_weight, wide_bias, R, C);
        must(ops->residual_layernorm_forward(device, sum, out, mean, rstd, residual, x,
                                             with_bias ? x_bias : NULL, weight, bias, R, C, 1e-5f,
                                             &dropout));
        expect_near(sum, want_sum, R * C, 1e-6, "residual");
        expect_near(out, want, R * C, 1e-5, "out");
    }
    memset(sum, 0, sizeof(sum));
    must(ops->residual_layernorm_forward(device, sum, NULL, NULL, NULL, residual, x, x_bias, NULL,
                                         NULL, R, C, 1e-5f, &dropout));
    expect_near(sum, want_sum, R * C, 1e-6, "residual without a norm");
}

/* --- linear and gelu --- */

/* Rows of `columns` to rows of `stride` and back. */
static void spread(float *to, const float *from, int rows, int columns, int to_stride,
                   int from_stride)
{
    for (int r = 0; r < rows; r++) {
        memmove(to + r * to_stride, from + r * from_stride, (size_t)columns * sizeof(float));
    }
}

Test(device_ops, linear_and_its_gradients)
{
    enum { R = 45, K = 33, N = 71, KS = 40, NS = 72 };
    static float x[R * K], weight[N * K], bias[N], out[R * NS], dout[R * N];
    static float spread_x[R * KS], spread_dout[R * NS];
    static float dx[R * KS], dweight[N * K], dbias[N];
    static double want[R * N], want_dx[R * K], want_dweight[N * K], want_dbias[N];

    draw(x, R * K, 1.0);
    draw(weight, N * K, 1.0);
    draw(bias, N, 1.0);
    draw(dout, R * N, 1.0);
    draw(dweight, N * K, 1.0);
    spread(spread_x, x, R, K, KS, K);
    spread(spread_dout, dout, R, N, NS, N);
    widen(want_dweight, dweight, N * K);
    for (int r = 0; r < R; r++) {
        for (int n = 0; n < N; n++) {
            double g = (double)dout[r * N + n];
            want[r * N + n] = (double)bias[n];
            want_dbias[n] += g;
            for (int k = 0; k < K; k++) {
                want[r * N + n] += (double)x[r * K + k] * (double)weight[n * K + k];
                want_dx[r * K + k] += g * (double)weight[n * K + k];
                want_dweight[n * K + k] += g * (double)x[r * K + k];
            }
        }
    }
    must(ops->linear_forward(device, out, NS, spread_x, KS, weight, bias, R, K, N));
    spread(out, out, R, N, N, NS);
    expect_near(out, want, R * N, 1e-5, "out");
    must(ops->linear_backward(device, dx, KS, dweight, dbias, spread_dout, NS, spread_x, KS, weight,
                              R, K, N));
    spread(dx, dx, R, K, K, KS);
    expect_near(dx, want_dx, R * K, 1e-5, "dx");
    expect_near(dweight, want_dweight, N * K, 1e-5, "dweight");
    expect_near(dbias, want_dbias, N, 1e-5, "dbias");

    for (int i = 0; i < R * N; i++) {
        want[i] -= (double)bias[i % N];
    }
    must(ops->linear_forward(device, out, N, x, K, weight, NULL, R, K, N));
    expect_near(out, want, R * N, 1e-5, "out without bias");
    must(ops->linear_backward(device, NULL, 0, dweight, NULL, dout, N, x, K, weight, R, K, N));
}

static double plain_gelu(double x)
{
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

Test(device_ops, gelu_and_its_gradient)
{
    enum { R = 200, N = 105, NS = 112 };
    static float x[R * N], bias[N], dout[R * N], dbias[N];
    static float spread_x[R * NS], spread_dout[R * NS], out[R * NS];
    static double want[R * N], want_dx[R * N], want_dbias[N];

    draw(x, R * N, 9.0);
    draw(bias, N, 0.5);
    draw(dout, R * N, 1.0);
    x[0] = 100.0f, x[1] = -100.0f, x[2] = 0.0f, x[3] = 1e-30f;
    for (int i = 0; i < R * N; i++) {
        double z = (double)x[i] + (double)bias[i % N];
        want[i] = plain_gelu(z);
        want_dx[i] = (double)dout[i] * (plain_gelu(z + STEP) - plain_gelu(z - STEP)) / (2 * STEP);
        want_dbias[i % N] += want_dx[i];
    }
    spread(spread_x, x, R, N, NS, N);
    spread(spread_dout, dout, R, N, NS, N);
    must(ops->gelu_forward(device, out, spread_x, NS, bias, R, N));
    spread(out, out, R, N, N, NS);
    expect_near(out, want, R * N, 1e-6, "out");
    must(ops->gelu_backward(device, spread_dout, dbias, spread_dout, spread_x, NS, bias, R, N));
    spread(dout, spread_dout, R, N, N, NS);
    expect_near(dout, want_dx, R * N, 2e-6, "dx");
    expect_near(dbias, want_dbias, N, 1e-5, "dbias");
}

/* --- attention --- */

/* out[B,T,H,D] and stats[B,H,T] of qkv[B,T,H,3,D], all in double; a sample has documents of
 * `document` tokens. */
static void plain_attention(double *out, double *stats, const double *qkv, int B, int T, int H,
                            int D, int document, const struct device_dropout *dropout)
{
    static double p[1024];

    for (int row = 0; row < B * H * T; row++) {
        int b = row / (H * T), h = row / T % H, i = row % T;
        const double *q = qkv + (size_t)((b * T + i) * H + h) * 3 * (size_t)D;
        double *to = out + (size_t)((b * T + i) * H + h) * (size_t)D, sum = 0.0;

        for (int j = i / document * document; j <= i; j++) {
            const double *k = qkv + (size_t)((b * T + j) * H + h) * 3 * (size_t)D + D;
            p[j] = 0.0;
            for (int d = 0; d < D; d++) {
                p[j] += q[d] * k[d] / sqrt(D);
            }
            p[j] = exp(p[j]);
            sum += p[j];
        }
        stats[(b * H + h) * T + i] = log(sum);
        memset(to, 0, (size_t)D * sizeof(double));
        for (int j = i / document * document; j <= i; j++) {
            const double *v = qkv + (size_t)((b * T + j) * H + h) * 3 * (size_t)D + 2 * D;
            double weight = p[j] / sum *
                            factor(dropout, dropout->first_sample + (uint64_t)b,
                                   dropout->head_offset + (uint32_t)h, (uint32_t)i, (uint32_t)j);
            for (int d = 0; d < D; d++) {
                to[d] += weight * v[d];
            }
        }
    }
}

static double attention_scalar(const struct scalar *s)
{
    static double out[VALUES_MAX], stats[VALUES_MAX];
    double sum = 0.0;

    plain_attention(out, stats, s->inputs[0], s->sizes[0], s->sizes[1], s->sizes[2], s->sizes[3],
                    s->sizes[4], &s->dropout);
    for (int i = 0; i < s->sizes[0] * s->sizes[1] * s->sizes[2] * s->sizes[3]; i++) {
        sum += out[i] * (double)s->dout[i];
    }
    return sum;
}

static void check_attention(int B, int T, int H, int D, int document,
                            const struct device_dropout *dropout, bool with_gradient)
{
    static float qkv[VALUES_MAX], out[VALUES_MAX], stats[VALUES_MAX], dout[VALUES_MAX];
    static float dqkv[VALUES_MAX];
    static double wide[VALUES_MAX], want[VALUES_MAX], want_stats[VALUES_MAX];
    static int32_t starts[VALUES_MAX];
    const int32_t *used = document < T ? starts : NULL;
    size_t count = (size_t)(B * T * H * D);
    struct scalar s = {.value = attention_scalar,
                       .dout = dout,
                       .inputs = {wide},
                       .sizes = {B, T, H, D, document},
                       .dropout = *dropout};

    cr_assert_leq(3 * count, VALUES_MAX);
    for (int r = 0; r < B * T; r++) {
        starts[r] = r % T / document * document;
    }
    draw(qkv, 3 * count, 1.5);
    draw(dout, count, 1.0);
    widen(wide, qkv, 3 * count);
    must(ops->attention_forward(device, out, stats, qkv, used, B, T, H, D, dropout));
    plain_attention(want, want_stats, wide, B, T, H, D, document, dropout);
    expect_near(out, want, count, 2e-6, "out");
    expect_near(stats, want_stats, (size_t)(B * H * T), 2e-6, "stats");
    if (with_gradient) {
        memset(dqkv, 0x7f, 3 * count * sizeof(float)); /* must be overwritten */
        must(ops->attention_backward(device, dqkv, dout, out, stats, qkv, used, B, T, H, D,
                                     dropout));
        differentiate(&s, wide, 3 * count, want);
        expect_near(dqkv, want, 3 * count, 1e-5, "dqkv");
    }
}

Test(device_ops, attention_and_its_gradients)
{
    struct device_dropout none = no_dropout(9);

    check_attention(2, 9, 2, 5, 9, &none, true);
}

Test(device_ops, attention_gradients_over_several_blocks_of_queries)
{
    struct device_dropout none = no_dropout(133);

    check_attention(1, 133, 1, 3, 133, &none, true);
    check_attention(2, 150, 3, 16, 150, &none, false);
    check_attention(1, 1, 1, 4, 1, &none, true);
}

Test(device_ops, attention_dropout_is_drawn_for_the_global_head)
{
    struct device_dropout dropout = {.probability = 0.2f,
                                     .seed = 99,
                                     .step = 3,
                                     .layer = 1,
                                     .site = 1,
                                     .first_sample = 8,
                                     .T = 70,
                                     .head_offset = 6};

    check_attention(1, 70, 2, 4, 70, &dropout, true);
}

Test(device_ops, attention_stays_within_documents)
{
    struct device_dropout none = no_dropout(133);
    struct device_dropout dropout = {.probability = 0.2f, .seed = 99, .step = 3, .T = 70};

    check_attention(2, 9, 2, 5, 4, &none, true);
    check_attention(1, 133, 1, 3, 70, &none, true);
    check_attention(2, 133, 2, 8, 1, &none, false);
    check_attention(1, 70, 2, 4, 33, &dropout, true);
}

/* --- loss --- */

enum { LOSS_R = 37, LOSS_V = 300 };

static double loss_scalar(const struct scalar *s)
{
    double total = 0.0;

    for (int r = 0; r < LOSS_R; r++) {
        const double *row = s->inputs[0] + r * LOSS_V;
        double sum = 0.0;
        for (int v = 0; v < s->sizes[0]; v++) {
            sum += exp(row[v]);
        }
        total += (double)s->dout[r] * (log(sum) - row[(int)s->inputs[1][r]]);
    }
    return total;
}

Test(device_ops, loss_and_its_gradient_never_see_padding)
{
    enum { VALID = 290 };
    static float logits[LOSS_R * LOSS_V], mask[LOSS_R], weights[LOSS_R], losses[LOSS_R];
    static double wide[LOSS_R * LOSS_V], wide_labels[LOSS_R], want[LOSS_R * LOSS_V];
    int32_t labels[LOSS_R];
    struct scalar s = {
        .value = loss_scalar, .dout = weights, .inputs = {wide, wide_labels}, .sizes = {VALID}};

    draw(logits, LOSS_R * LOSS_V, 4.0);
    for (int r = 0; r < LOSS_R; r++) {
        labels[r] = r * 31 % VALID;
        wide_labels[r] = labels[r];
        mask[r] = r % 3 == 0 ? 0.0f : 1.0f;
        weights[r] = mask[r] * 0.125f;
        for (int v = VALID; v < LOSS_V; v++) {
            logits[r * LOSS_V + v] = 50.0f;
        }
    }
    widen(wide, logits, LOSS_R * LOSS_V);
    must(ops->loss_whole(device, losses, logits, labels, mask, 0.125f, false, LOSS_R, LOSS_V,
                         VALID));
    double sum = 0.0, want_sum = loss_scalar(&s);
    for (int r = 0; r < LOSS_R; r++) {
        sum += 0.125 * (double)losses[r];
    }
    cr_expect_float_eq(sum, want_sum, 1e-5 * want_sum);
    expect_near(logits, wide, LOSS_R * LOSS_V, 0.0, "logits without gradient");

    must(
        ops->loss_whole(device, losses, logits, labels, mask, 0.125f, true, LOSS_R, LOSS_V, VALID));
    differentiate(&s, wide, LOSS_R * LOSS_V, want);
    expect_near(logits, want, LOSS_R * LOSS_V, 1e-6, "dlogits");
    for (int r = 0; r < LOSS_R; r++) {
        cr_expect_eq(logits[r * LOSS_V + VALID], 0.0f);
    }
}

Test(device_ops, loss_in_parts_equals_the_whole)
{
    enum { PART = LOSS_V / 2 };
    static float whole[LOSS_R * LOSS_V], parts[2][LOSS_R * PART], max[2][LOSS_R];
    static float sums[2][2 * LOSS_R], losses[LOSS_R], part_losses[LOSS_R];
    static double want[LOSS_R];
    int32_t labels[LOSS_R];

    draw(whole, LOSS_R * LOSS_V, 4.0);
    for (int r = 0; r < LOSS_R; r++) {
        labels[r] = r * 31 % LOSS_V;
        for (int p = 0; p < 2; p++) {
            memcpy(parts[p] + r * PART, whole + r * LOSS_V + p * PART, PART * sizeof(float));
        }
    }
    must(ops->loss_whole(device, losses, whole, labels, NULL, 0.5f, true, LOSS_R, LOSS_V, LOSS_V));
    widen(want, losses, LOSS_R);
    for (int p = 0; p < 2; p++) {
        must(ops->loss_max(device, max[p], parts[p], LOSS_R, PART, PART));
    }
    for (int r = 0; r < LOSS_R; r++) {
        max[0][r] = max[1][r] = fmaxf(max[0][r], max[1][r]);
    }
    for (int p = 0; p < 2; p++) {
        must(ops->loss_sums(device, sums[p], parts[p], max[p], labels, LOSS_R, PART, PART,
                            p * PART));
    }
    must(ops->add(device, sums[0], sums[1], 2 * LOSS_R));
    for (int p = 0; p < 2; p++) {
        must(ops->loss_finish(device, part_losses, parts[p], sums[0], labels, NULL, 0.5f, true,
                              LOSS_R, PART, PART, p * PART));
        expect_near(part_losses, want, LOSS_R, 1e-6, "losses");
        for (int i = 0; i < LOSS_R * PART; i++) {
            float gradient = whole[i / PART * LOSS_V + p * PART + i % PART];
            cr_assert_float_eq(parts[p][i], gradient, 1e-7, "part %d, %d", p, i);
        }
    }
    must(ops->loss_max(device, max[0], parts[0], 1, PART, 0));
    cr_expect_eq(max[0][0], -INFINITY, "a part of padding alone wins the maximum");
}

Test(device_ops, a_nan_in_the_logits_reaches_the_loss)
{
    static float logits[2 * LOSS_V], losses[2];
    int32_t labels[2] = {1, 2};

    draw(logits, 2 * LOSS_V, 1.0);
    logits[LOSS_V + 77] = NAN;
    must(ops->loss_whole(device, losses, logits, labels, NULL, 1.0f, true, 2, LOSS_V, LOSS_V));
    cr_expect(isfinite(losses[0]));
    cr_expect(isnan(losses[1]));
}

/* --- what the optimizer uses --- */

Test(device_ops, add_and_scale)
{
    enum { COUNT = 40003 };
    static float x[COUNT], y[COUNT];
    static double want[COUNT];

    draw(x, COUNT, 1.0);
    draw(y, COUNT, 1.0);
    for (int i = 0; i < COUNT; i++) {
        want[i] = ((double)x[i] + (double)y[i]) * 0.25;
    }
    must(ops->add(device, y, x, COUNT));
    must(ops->scale(device, y, 0.25f, COUNT));
    expect_near(y, want, COUNT, 1e-7, "y");
}

Test(device_ops, the_sum_of_squares_is_the_same_for_any_thread_count)
{
    enum { COUNT = 200001 };
    static float x[COUNT];
    struct device *single = NULL;
    double want = 0.0, two = 0.0, one = 0.0;

    draw(x, COUNT, 3.0);
    for (int i = 0; i < COUNT; i++) {
        want += (double)x[i] * (double)x[i];
    }
    must(ops->sum_of_squares(device, x, COUNT, &two));
    must(device_open("cpu", 1, &single));
    must(single->ops->sum_of_squares(single, x, COUNT, &one));
    device_close(&single);
    cr_expect_float_eq(two, want, 1e-11 * want);
    cr_expect_eq(one, two);
}

Test(device_ops, adamw_is_the_decoupled_one)
{
    enum { COUNT = 20011 };
    static float p[COUNT], m[COUNT], v[COUNT], g[COUNT];
    static double want_p[COUNT], want_m[COUNT], want_v[COUNT];
    struct adamw_args args = {.learning_rate = 0.01f,
                              .beta1 = 0.9f,
                              .beta2 = 0.95f,
                              .epsilon = 1e-8f,
                              .weight_decay = 0.1f,
                              .grad_scale = 0.5f};

    draw(p, COUNT, 1.0);
    widen(want_p, p, COUNT);
    for (args.step = 1; args.step <= 3; args.step++) {
        double t = (double)args.step, b1 = (double)args.beta1, b2 = (double)args.beta2;

        draw(g, COUNT, 1.0);
        must(ops->adamw(device, p, m, v, g, COUNT, &args));
        for (int i = 0; i < COUNT; i++) {
            double gradient = 0.5 * (double)g[i];
            want_m[i] = b1 * want_m[i] + (1.0 - b1) * gradient;
            want_v[i] = b2 * want_v[i] + (1.0 - b2) * gradient * gradient;
            want_p[i] -= (double)args.learning_rate * (double)args.weight_decay * want_p[i];
            want_p[i] -= (double)args.learning_rate * (want_m[i] / (1.0 - pow(b1, t))) /
                         (sqrt(want_v[i] / (1.0 - pow(b2, t))) + (double)args.epsilon);
        }
    }
    expect_near(p, want_p, COUNT, 1e-6, "param");
    expect_near(m, want_m, COUNT, 1e-6, "exp_avg");
    expect_near(v, want_v, COUNT, 1e-6, "exp_avg_sq");
}

Test(device_ops, an_unknown_device_is_refused_with_the_list)
{
    struct device *other = NULL;

    cr_expect_eq(device_open("tpu", 1, &other), STATUS_UNSUPPORTED);
    cr_expect_not_null(strstr(status_last()->message, "cpu"));
    cr_expect_eq(device_open("cpu", -1, &other), STATUS_USAGE);
    cr_expect_null(other);
}
