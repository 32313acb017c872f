/* Training in every kind of layout, by real rank processes, gives torch's losses, gradient norms
 * and weights. The comparison is in train_reference_rank.c, which is one rank. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/fs.h"
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

/* A flipped bit in one of two replicas of `tensor` must stop the run at the save, before it is
 * written. */
static void expect_flip_is_found(const char *tensor, const char *tp, const char *pp, int size)
{
    struct ranks_command command = {0};
    struct ranks ranks;
    char save[RANKS_PATH_MAX + 8], message[160];
    const char *parent = getenv("TMPDIR");

    snprintf(save, sizeof(save), "%s/flip-XXXXXX", parent != NULL ? parent : "/tmp");
    cr_assert_not_null(mkdtemp(save));
    snprintf(message, sizeof(message),
             "the copies of 'param/%s' on ranks 0 and %d differ at step 2", tensor, size - 1);
    ranks_add(&command, (const char *[]){REFERENCE_RANK, "a", "base", "1", tp, pp, save, tensor},
              8);
    ranks_start(&ranks, size, &command, -1);
    ranks_wait(&ranks, TIMEOUT_S);
    char *text = ranks_output(&ranks, 0);
    bool found = ranks_all_left_with(&ranks, 1) && strstr(text, message) != NULL;
    if (!found) {
        ranks_dump(&ranks);
    }
    free(text);
    ranks_remove(&ranks);
    cr_assert_eq(fs_remove_tree(fs_posix(), save), STATUS_OK);
    cr_assert(found, "'%s' on %d ranks, TP %s, PP %s", tensor, size, tp, pp);
}

Test(train_reference, a_flipped_bit_in_a_replica_is_found_before_it_is_saved)
{
    expect_flip_is_found("decoder.layers.1.mlp.linear_fc1.weight", "1", "1", 2);
    expect_flip_is_found("decoder.layers.1.mlp.linear_fc2.bias", "2", "1", 2);
    expect_flip_is_found("embedding.word_embeddings.weight", "1", "2", 2);
}
