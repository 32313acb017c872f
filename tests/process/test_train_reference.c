/* Training in every kind of layout, by real rank processes, gives torch's losses, gradient norms and
 * weights. The comparison is in train_reference_rank.c, which is one rank. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "tests/support/ranks.h"

#define TIMEOUT_S 60

static void expect_reference(const char *model, const char *setup, int micro_batch, int tp, int pp,
                             int dp)
{
    struct ranks_command command = {0};
    struct ranks ranks;
    char numbers[3][16];

    snprintf(numbers[0], sizeof(numbers[0]), "%d", micro_batch);
    snprintf(numbers[1], sizeof(numbers[1]), "%d", tp);
    snprintf(numbers[2], sizeof(numbers[2]), "%d", pp);
    ranks_add(&command,
              (const char *[]){REFERENCE_RANK, model, setup, numbers[0], numbers[1], numbers[2]},
              6);
    ranks_start(&ranks, tp * pp * dp, &command, -1);
    ranks_wait(&ranks, TIMEOUT_S);
    bool all = ranks_all_left_with(&ranks, 0);
    if (!all) {
        ranks_dump(&ranks);
    }
    ranks_remove(&ranks);
    cr_assert(all, "%s %s, micro-batch %d, TP %d x PP %d x DP %d", model, setup, micro_batch, tp,
              pp, dp);
}

Test(train_reference, one_rank_is_torch)
{
    expect_reference("a", "base", 4, 1, 1, 1);
    expect_reference("a500", "base", 4, 1, 1, 1);
}

Test(train_reference, accumulated_micro_batches_are_one_batch)
{
    expect_reference("a", "accum2", 2, 1, 1, 1);
    expect_reference("a500", "accum2", 2, 1, 1, 1);
    expect_reference("a", "accum2", 1, 1, 1, 1);
}

Test(train_reference, tensor_parallel_ranks_are_one_rank)
{
    expect_reference("a", "base", 4, 2, 1, 1);
    expect_reference("a500", "accum2", 2, 2, 1, 1);
}

Test(train_reference, pipeline_stages_are_one_rank)
{
    expect_reference("a", "base", 4, 1, 2, 1);
    expect_reference("a500", "accum2", 2, 1, 2, 1);
    expect_reference("a", "accum2", 1, 1, 2, 1);
}

Test(train_reference, data_parallel_ranks_are_one_rank)
{
    expect_reference("a", "base", 2, 1, 1, 2);
    expect_reference("a500", "accum2", 1, 1, 1, 2);
    expect_reference("a", "base", 1, 1, 1, 4);
}

Test(train_reference, all_three_together_are_one_rank)
{
    expect_reference("a", "base", 2, 2, 2, 2);
    expect_reference("a", "accum2", 1, 2, 2, 2);
    expect_reference("a500", "accum2", 1, 2, 2, 2);
    expect_reference("a500", "base", 1, 1, 2, 4);
}
