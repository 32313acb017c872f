/* However a training is cut over at most eight ranks, and whatever it makes again, the losses of 20
 * steps are those of one rank: dropout on, real rank processes. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/ranks.h"

#define TIMEOUT_S 60
#define STEPS 20
#define WORDS_MAX 12
#define TOLERANCE 1e-5 /* relative, in float32 */

/* Words and how many: the last two arguments of ranks_add. */
#define WORD_ARRAY(...) ((const char *const[]){__VA_ARGS__})
#define WORDS(...) WORD_ARRAY(__VA_ARGS__), sizeof(WORD_ARRAY(__VA_ARGS__)) / sizeof(char *)

struct setup {
    int tp, pp, dp;
    const char *words[WORDS_MAX]; /* further flags, ended by NULL */
};

TestSuite(train_layouts, .timeout = 120);

static void read_losses(const char *output, double losses[STEPS])
{
    const char *line = output;

    for (int step = 0; step < STEPS; step++) {
        line = strstr(line, "] iteration ");
        cr_assert_not_null(line, "only %d steps in: %s", step, output);
        const char *loss = strstr(line, "lm loss: ");
        cr_assert_not_null(loss);
        losses[step] = strtod(loss + strlen("lm loss: "), NULL);
        line = loss;
    }
}

static void train(const struct setup *setup, double losses[STEPS])
{
    char program[RANKS_PATH_MAX], tp[16], pp[16];
    struct ranks_command command = {0};
    struct ranks ranks;
    size_t count = 0;

    cr_assert_not_null(getenv("HOLDFAST_BIN"), "run the test through ctest");
    snprintf(program, sizeof(program), "%s/holdfast-train", getenv("HOLDFAST_BIN"));
    snprintf(tp, sizeof(tp), "%d", setup->tp);
    snprintf(pp, sizeof(pp), "%d", setup->pp);
    while (setup->words[count] != NULL) {
        count++;
    }
    ranks_add(&command,
              WORDS(program, "--num-layers", "8", "--hidden-size", "32", "--num-attention-heads",
                    "8", "--seq-length", "16", "--max-position-embeddings", "16", "--vocab-size",
                    "61", "--make-vocab-size-divisible-by", "8", "--mock-data",
                    "--micro-batch-size", "1", "--global-batch-size", "8", "--lr", "1e-3",
                    "--lr-decay-style", "cosine", "--train-iters", "20", "--log-interval", "1",
                    "--num-threads", "1", "--init-method-std", "0.1",
                    "--tensor-model-parallel-size", tp, "--pipeline-model-parallel-size", pp));
    ranks_add(&command, setup->words, count);
    ranks_start(&ranks, setup->tp * setup->pp * setup->dp, &command, -1);
    ranks_wait(&ranks, TIMEOUT_S);
    bool all = ranks_all_left_with(&ranks, 0);
    if (!all) {
        ranks_dump(&ranks);
    }
    char *output = ranks_output(&ranks, ranks.size - 1);
    ranks_remove(&ranks);
    cr_assert(all);
    read_losses(output, losses);
    free(output);
}

static void expect_one_rank(const struct setup *setups, size_t count)
{
    static const struct setup alone = {1, 1, 1, {NULL}};
    double want[STEPS], have[STEPS];

    train(&alone, want);
    cr_assert_lt(want[STEPS - 1], want[0] - 0.005, "the model learns nothing");
    for (size_t i = 0; i < count; i++) {
        const struct setup *s = &setups[i];

        train(s, have);
        for (int step = 0; step < STEPS; step++) {
            cr_assert_leq(fabs(have[step] - want[step]), TOLERANCE * want[step],
                          "setup %zu, TP %d x PP %d x DP %d: loss %.6e for %.6e at step %d", i,
                          s->tp, s->pp, s->dp, have[step], want[step], step + 1);
        }
    }
}

#define EXPECT_ONE_RANK(setups) expect_one_rank(setups, sizeof(setups) / sizeof((setups)[0]))

Test(train_layouts, tensor_pipeline_and_data_parallel_ranks_are_one_rank)
{
    static const struct setup setups[] = {
        {2, 1, 1, {NULL}}, {8, 1, 1, {NULL}}, {1, 2, 1, {NULL}}, {1, 8, 1, {NULL}},
        {1, 1, 2, {NULL}}, {1, 1, 8, {NULL}}, {2, 2, 2, {NULL}}, {1, 3, 2, {NULL}},
    };

    EXPECT_ONE_RANK(setups);
}

Test(train_layouts, stages_of_unequal_size_are_one_rank)
{
    static const struct setup setups[] = {
        {1, 3, 1, {"--decoder-first-pipeline-num-layers", "1", NULL}},
        {2,
         2,
         1,
         {"--decoder-first-pipeline-num-layers", "3", "--decoder-last-pipeline-num-layers", "5",
          NULL}},
    };

    EXPECT_ONE_RANK(setups);
}

#define CHUNKS(count) "--num-virtual-stages-per-pipeline-rank", count

Test(train_layouts, interleaved_stages_are_one_rank)
{
    static const struct setup setups[] = {
        {1, 2, 1, {CHUNKS("2"), NULL}},
        {1, 4, 1, {CHUNKS("2"), NULL}},
        {2, 2, 2, {"--num-layers-per-virtual-pipeline-stage", "2", NULL}},
        {2, 2, 1, {CHUNKS("2"), "--recompute-activations", NULL}},
        {1, 2, 2, {CHUNKS("4"), NULL}},
        {1,
         2,
         2,
         {CHUNKS("2"), "--decoder-first-pipeline-num-layers", "2", "--recompute-granularity",
          "full", "--recompute-method", "block", "--recompute-num-layers", "1", NULL}},
    };

    EXPECT_ONE_RANK(setups);
}

#define POSITIONS "--sequence-parallel"

Test(train_layouts, ranks_with_a_part_of_the_positions_are_one_rank)
{
    static const struct setup setups[] = {
        {2, 1, 1, {POSITIONS, NULL}},
        {8, 1, 1, {POSITIONS, NULL}},
        {1, 2, 1, {POSITIONS, NULL}},
        {2, 2, 2, {POSITIONS, "--micro-batch-size", "2", NULL}},
        {4, 2, 1, {POSITIONS, CHUNKS("2"), "--recompute-activations", NULL}},
    };

    EXPECT_ONE_RANK(setups);
}

Test(train_layouts, what_is_made_again_changes_nothing)
{
    static const struct setup setups[] = {
        {1, 1, 1, {"--recompute-activations", NULL}},
        {2, 2, 1, {"--recompute-granularity", "selective", NULL}},
        {2,
         2,
         1,
         {"--recompute-granularity", "full", "--recompute-method", "uniform",
          "--recompute-num-layers", "2", NULL}},
        {1,
         2,
         2,
         {"--recompute-granularity", "full", "--recompute-method", "block",
          "--recompute-num-layers", "3", NULL}},
    };

    EXPECT_ONE_RANK(setups);
}
