/* Causal self-attention by blocks of queries, one head of one sample per thread at a time.
 *
 * A block of QUERY_BLOCK queries sees only the keys up to its end, so about half of the products
 * are never taken. Its scores [QUERY_BLOCK, keys] stay in cache; only the log-sum-exp of each row
 * is kept, and backward takes the scores again. Inside a parallel region oneDNN's sgemm uses the
 * calling thread alone.
 */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "train/device/cpu_math.h"
#include "train/device/device_cpu.h"

#define QUERY_BLOCK 64

/* One head of one sample: strided views of [B,T,H,3,D] and [B,T,H,D]. */
struct head {
    const float *q, *k, *v;
    const int32_t *starts;      /* [T] first key that each query sees, or NULL */
    int qkv_stride, out_stride; /* between positions */
    size_t qkv_at, out_at;      /* of position 0 in dqkv; in out and dout */
    uint64_t sample;
    uint32_t number; /* global */
    size_t stats_at;
};

static struct head view_head(const float *qkv, const int32_t *starts, int index, int T, int H,
                             int D, const struct device_dropout *dropout)
{
    int b = index / H, h = index % H;
    size_t rows = (size_t)b * (size_t)T * (size_t)H + (size_t)h;
    struct head head = {
        .starts = starts != NULL ? starts + (size_t)b * (size_t)T : NULL,
        .qkv_stride = H * 3 * D,
        .out_stride = H * D,
        .qkv_at = rows * 3 * (size_t)D,
        .out_at = rows * (size_t)D,
        .sample = dropout->first_sample + (uint64_t)b,
        .number = dropout->head_offset + (uint32_t)h,
        .stats_at = (size_t)index * (size_t)T,
    };

    head.q = qkv + head.qkv_at;
    head.k = head.q + D;
    head.v = head.k + D;
    return head;
}

/* Keys of earlier documents are not seen: their values become 0. Returns the first one seen. */
static int hide_keys(const struct head *head, int query, float *row)
{
    int first = head->starts != NULL ? head->starts[query] : 0;

    memset(row, 0, (size_t)first * sizeof(float));
    return first;
}

/* scores[0 .. seen) to probabilities, the rest up to `keys` to 0; returns log sum exp. */
CPU_KERNEL static float softmax_row(float *scores, int seen, int keys)
{
    float max = scores[0], sum = 0.0f;

#pragma omp simd reduction(max : max)
    for (int j = 0; j < seen; j++) {
        max = scores[j] > max ? scores[j] : max;
    }
#pragma omp simd reduction(+ : sum)
    for (int j = 0; j < seen; j++) {
        float e = cpu_exp(scores[j] - max);
        scores[j] = e;
        sum += e;
    }
    float inverse = 1.0f / sum;
#pragma omp simd
    for (int j = 0; j < seen; j++) {
        scores[j] *= inverse;
    }
    for (int j = seen; j < keys; j++) {
        scores[j] = 0.0f;
    }
    return max + logf(sum);
}

CPU_KERNEL static void multiply_row(float *x, const float *factors, int count)
{
#pragma omp simd
    for (int j = 0; j < count; j++) {
        x[j] *= factors[j];
    }
}

/* `scratch` [QUERY_BLOCK, T] and, for dropout, one row more. */
static enum status forward_block(float *out, float *stats, const struct head *head, int begin,
                                 int end, int D, int T, float *scratch,
                                 const struct device_dropout *dropout)
{
    int rows = end - begin;
    float *factors = scratch + (size_t)QUERY_BLOCK * (size_t)T;
    enum status st = STATUS_OK;

    TRY(st,
        cpu_gemm('N', 'T', rows, end, D, 1.0f / sqrtf((float)D),
                 head->q + (size_t)begin * (size_t)head->qkv_stride, head->qkv_stride, head->k,
                 head->qkv_stride, 0.0f, scratch, end),
        done);
    for (int i = 0; i < rows; i++) {
        float *row = scratch + (size_t)i * (size_t)end;
        int seen = begin + i + 1, first = hide_keys(head, begin + i, row);

        stats[head->stats_at + (size_t)(begin + i)] =
            softmax_row(row + first, seen - first, end - first);
        if (dropout->probability > 0.0f) {
            cpu_dropout_row(factors, dropout, head->sample, head->number, (uint32_t)(begin + i),
                            seen);
            multiply_row(row, factors, seen);
        }
    }
    TRY(st,
        cpu_gemm('N', 'N', rows, D, end, 1.0f, scratch, end, head->v, head->qkv_stride, 0.0f,
                 out + head->out_at + (size_t)begin * (size_t)head->out_stride, head->out_stride),
        done);
done:
    return st;
}

enum status cpu_attention_forward(struct device *device, float *out, float *stats, const float *qkv,
                                  const int32_t *starts, int B, int T, int H, int D,
                                  const struct device_dropout *dropout)
{
    int threads = cpu_threads(device, (size_t)B * (size_t)T * (size_t)H * (size_t)D);
    size_t scratch_count = (size_t)(QUERY_BLOCK + 1) * (size_t)T;
    int blocks = (T + QUERY_BLOCK - 1) / QUERY_BLOCK;
    float *scratch = NULL;
    struct status_record failure = {.code = STATUS_OK};
    enum status st = STATUS_OK;

    TRY(st, cpu_workspace(device, (size_t)threads * scratch_count * sizeof(float), &scratch), done);
    /* The longest blocks first, so that the threads end together. */
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int task = 0; task < B * H * blocks; task++) {
        struct head head = view_head(qkv, starts, task % (B * H), T, H, D, dropout);
        int begin = (blocks - 1 - task / (B * H)) * QUERY_BLOCK;
        int end = begin + QUERY_BLOCK < T ? begin + QUERY_BLOCK : T;

        if (forward_block(out, stats, &head, begin, end, D, T,
                          scratch + (size_t)omp_get_thread_num() * scratch_count,
                          dropout) != STATUS_OK) {
#pragma omp critical(cpu_attention_failure)
            status_take(&failure);
        }
    }
    if (failure.code != STATUS_OK) {
        st = status_give(&failure);
    }
done:
    return st;
}

/* p = exp(score - log sum exp), 0 beyond `seen`. */
CPU_KERNEL static void probabilities_row(float *p, float log_sum, int seen, int keys)
{
#pragma omp simd
    for (int j = 0; j < seen; j++) {
        p[j] = cpu_exp(p[j] - log_sum);
    }
    for (int j = seen; j < keys; j++) {
        p[j] = 0.0f;
    }
}

/* dp (of the dropped probabilities) becomes the gradient of the scores, p what multiplied v.
 * delta = sum over channels of out dout = sum over keys of p dp, dropout or not. */
CPU_KERNEL static void score_gradient_row(float *dp, float *p, const float *factors,
                                          const float *out, const float *dout, float scale, int D,
                                          int seen, int keys)
{
    float delta = 0.0f;

#pragma omp simd reduction(+ : delta)
    for (int d = 0; d < D; d++) {
        delta += out[d] * dout[d];
    }
    if (factors == NULL) {
#pragma omp simd
        for (int j = 0; j < seen; j++) {
            dp[j] = p[j] * (dp[j] - delta) * scale;
        }
    } else {
#pragma omp simd
        for (int j = 0; j < seen; j++) {
            dp[j] = p[j] * (dp[j] * factors[j] - delta) * scale;
            p[j] *= factors[j];
        }
    }
    for (int j = seen; j < keys; j++) {
        dp[j] = 0.0f;
    }
}

struct backward_args {
    float *dqkv;
    const float *dout, *out, *stats;
    int T, D;
    float *p, *dp, *factors; /* [QUERY_BLOCK, T] twice, [T] */
    const struct device_dropout *dropout;
};

static enum status score_gradients(const struct backward_args *a, const struct head *head,
                                   int begin, int end)
{
    int rows = end - begin;
    float scale = 1.0f / sqrtf((float)a->D);
    bool drops = a->dropout->probability > 0.0f;
    enum status st = STATUS_OK;

    TRY(st,
        cpu_gemm('N', 'T', rows, end, a->D, scale,
                 head->q + (size_t)begin * (size_t)head->qkv_stride, head->qkv_stride, head->k,
                 head->qkv_stride, 0.0f, a->p, end),
        done);
    TRY(st,
        cpu_gemm('N', 'T', rows, end, a->D, 1.0f,
                 a->dout + head->out_at + (size_t)begin * (size_t)head->out_stride,
                 head->out_stride, head->v, head->qkv_stride, 0.0f, a->dp, end),
        done);
    for (int i = 0; i < rows; i++) {
        int seen = begin + i + 1;
        size_t at = head->out_at + (size_t)(begin + i) * (size_t)head->out_stride;
        float *p = a->p + (size_t)i * (size_t)end;

        int first = hide_keys(head, begin + i, p);
        probabilities_row(p + first, a->stats[head->stats_at + (size_t)(begin + i)], seen - first,
                          end - first);
        if (drops) {
            cpu_dropout_row(a->factors, a->dropout, head->sample, head->number,
                            (uint32_t)(begin + i), seen);
        }
        score_gradient_row(a->dp + (size_t)i * (size_t)end, p, drops ? a->factors : NULL,
                           a->out + at, a->dout + at, scale, a->D, seen, end);
    }
done:
    return st;
}

/* From the last block to the first: the last one sees all keys and so overwrites dk and dv, the
 * others add. */
static enum status backward_head(const struct backward_args *a, const struct head *head)
{
    int stride = head->qkv_stride, D = a->D;
    float *dq = a->dqkv + head->qkv_at, *dk = dq + D, *dv = dk + D;
    enum status st = STATUS_OK;

    for (int begin = (a->T - 1) / QUERY_BLOCK * QUERY_BLOCK; begin >= 0; begin -= QUERY_BLOCK) {
        int end = begin + QUERY_BLOCK < a->T ? begin + QUERY_BLOCK : a->T;
        int rows = end - begin;
        float beta = end == a->T ? 0.0f : 1.0f;
        size_t at = (size_t)begin * (size_t)stride;

        TRY(st, score_gradients(a, head, begin, end), done);
        TRY(st,
            cpu_gemm('N', 'N', rows, D, end, 1.0f, a->dp, end, head->k, stride, 0.0f, dq + at,
                     stride),
            done);
        TRY(st,
            cpu_gemm('T', 'N', end, D, rows, 1.0f, a->dp, end, head->q + at, stride, beta, dk,
                     stride),
            done);
        TRY(st,
            cpu_gemm('T', 'N', end, D, rows, 1.0f, a->p, end,
                     a->dout + head->out_at + (size_t)begin * (size_t)head->out_stride,
                     head->out_stride, beta, dv, stride),
            done);
    }
done:
    return st;
}

enum status cpu_attention_backward(struct device *device, float *dqkv, const float *dout,
                                   const float *out, const float *stats, const float *qkv,
                                   const int32_t *starts, int B, int T, int H, int D,
                                   const struct device_dropout *dropout)
{
    int threads = cpu_threads(device, (size_t)B * (size_t)T * (size_t)H * (size_t)D);
    size_t block = (size_t)QUERY_BLOCK * (size_t)T;
    size_t scratch_count = 2 * block + (size_t)T;
    float *scratch = NULL;
    struct status_record failure = {.code = STATUS_OK};
    enum status st = STATUS_OK;

    TRY(st, cpu_workspace(device, (size_t)threads * scratch_count * sizeof(float), &scratch), done);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int index = 0; index < B * H; index++) {
        float *mine = scratch + (size_t)omp_get_thread_num() * scratch_count;
        struct head head = view_head(qkv, starts, index, T, H, D, dropout);
        struct backward_args args = {
            .dqkv = dqkv,
            .dout = dout,
            .out = out,
            .stats = stats,
            .T = T,
            .D = D,
            .p = mine,
            .dp = mine + block,
            .factors = mine + 2 * block,
            .dropout = dropout,
        };

        if (backward_head(&args, &head) != STATUS_OK) {
#pragma omp critical(cpu_attention_failure)
            status_take(&failure);
        }
    }
    if (failure.code != STATUS_OK) {
        st = status_give(&failure);
    }
done:
    return st;
}
