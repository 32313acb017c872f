/* The cut of the flat gradients over DP: slices tile, end at row boundaries, and the embedding is
 * cut alike wherever it lies. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "train/optim/grads.h"

#define PARAMS 5

/* What a first stage might hold, with alignment gaps; returns the flat size. */
static size_t make_params(struct gpt_param *params, size_t embedding_rows)
{
    static const struct {
        const char *name;
        size_t rows, columns;
    } rows[PARAMS] = {{GRADS_EMBEDDING, 0, 24},
                      {"embedding.position_embeddings.weight", 7, 24},
                      {"decoder.layers.0.mlp.linear_fc1.weight", 10, 33},
                      {"decoder.layers.0.mlp.linear_fc1.bias", 10, 1},
                      {"decoder.layers.0.input_layernorm.weight", 3, 1}};
    size_t at = 0;

    for (size_t i = 0; i < PARAMS; i++) {
        params[i] = (struct gpt_param){.begin = at,
                                       .rows = i == 0 ? embedding_rows : rows[i].rows,
                                       .columns = rows[i].columns};
        snprintf(params[i].name, sizeof(params[i].name), "%s", rows[i].name);
        at += params[i].rows * params[i].columns;
        at = (at + GPT_PARAM_ALIGN - 1) / GPT_PARAM_ALIGN * GPT_PARAM_ALIGN;
    }
    return at;
}

/* Marks each row that a rank owns. */
static void mark(const struct grads_plan *plan, const struct gpt_param *params,
                 int owned[PARAMS][512])
{
    for (size_t i = 0; i < plan->segment_count; i++) {
        const struct grads_segment *segment = &plan->segments[i];
        const struct gpt_param *param = &params[segment->param];
        cr_assert_lt(segment->row_begin, segment->row_end);
        cr_assert_leq(segment->row_end, param->rows);
        cr_assert_eq(segment->begin, param->begin + segment->row_begin * param->columns);
        cr_assert_eq(segment->count, (segment->row_end - segment->row_begin) * param->columns);
        for (size_t row = segment->row_begin; row < segment->row_end; row++) {
            owned[segment->param][row]++;
        }
    }
}

Test(grads, slices_of_all_ranks_tile_every_tensor_row_by_row)
{
    struct gpt_param params[PARAMS];
    size_t flat = make_params(params, 50);

    for (int dp = 1; dp <= 9; dp++) {
        static int owned[PARAMS][512];
        memset(owned, 0, sizeof(owned));
        for (int rank = 0; rank < dp; rank++) {
            struct grads_plan plan;
            size_t sum = 0;
            cr_assert_eq(grads_plan_init(&plan, params, PARAMS, flat, dp, rank), STATUS_OK);
            cr_assert_eq(plan.bucket_count, 2);
            for (size_t b = 0; b < plan.bucket_count; b++) {
                for (int r = 0; r < dp; r++) {
                    sum += plan.buckets[b].counts[r];
                }
            }
            cr_assert_eq(sum, flat, "the buckets cover the flat array");
            mark(&plan, params, owned);
            grads_plan_deinit(&plan);
        }
        for (size_t i = 0; i < PARAMS; i++) {
            for (size_t row = 0; row < params[i].rows; row++) {
                cr_assert_eq(owned[i][row], 1, "DP %d: row %zu of tensor %zu has %d owners", dp,
                             row, i, owned[i][row]);
            }
        }
    }
}

Test(grads, more_ranks_than_rows_leave_empty_slices)
{
    struct gpt_param param = {.rows = 2, .columns = 40};
    int holders = 0;

    snprintf(param.name, sizeof(param.name), "decoder.final_layernorm.weight");
    for (int rank = 0; rank < 8; rank++) {
        struct grads_plan plan;
        cr_assert_eq(grads_plan_init(&plan, &param, 1, 128, 8, rank), STATUS_OK);
        holders += plan.segment_count > 0 ? 1 : 0;
        cr_assert(plan.segment_count > 0 || plan.moment_count == 0);
        grads_plan_deinit(&plan);
    }
    cr_assert_eq(holders, 2);
}

Test(grads, the_embedding_is_cut_alike_on_first_and_last_stage)
{
    struct gpt_param first[PARAMS], last[2];
    size_t flat = make_params(first, 50);

    last[0] = first[0];
    last[1] = first[3];
    last[1].begin = first[1].begin;
    for (int rank = 0; rank < 4; rank++) {
        struct grads_plan a, b;
        cr_assert_eq(grads_plan_init(&a, first, PARAMS, flat, 4, rank), STATUS_OK);
        cr_assert_eq(grads_plan_init(&b, last, 2, last[1].begin + GPT_PARAM_ALIGN, 4, rank),
                     STATUS_OK);
        cr_assert(a.buckets[0].is_embedding && b.buckets[0].is_embedding);
        cr_assert_eq(a.buckets[0].own_begin, b.buckets[0].own_begin);
        cr_assert_arr_eq(a.buckets[0].counts, b.buckets[0].counts, 4 * sizeof(size_t));
        grads_plan_deinit(&a);
        grads_plan_deinit(&b);
    }
}

Test(grads, clipping_scales_only_what_is_too_long)
{
    cr_assert_eq(grads_clip_scale(0.5, 1.0), 1.0F);
    cr_assert_eq(grads_clip_scale(2.0, 1.0), (float)(1.0 / (2.0 + 1e-6)));
    cr_assert_eq(grads_clip_scale(2.0, 0.0), 1.0F, "0 is no limit");
}
