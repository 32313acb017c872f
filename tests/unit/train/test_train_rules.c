/* The rules about flags, each broken once: the whole message, with the numbers in it. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "train/train_options.h"

#define BASE                                                                                       \
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "                     \
    "--max-position-embeddings 32 --micro-batch-size 2 --lr 1e-3 "
#define TEN BASE "--vocab-size 100 --mock-data --train-iters 10 "
#define SAMPLES BASE "--vocab-size 100 --mock-data --train-samples 100 "
#define WORDS_MAX 64

static const struct rule {
    int ranks;
    const char *line, *message;
} rules[] = {
    /* the layout */
    {6, TEN "--tensor-model-parallel-size 4",
     "6 ranks are not a multiple of --tensor-model-parallel-size 4 x "
     "--pipeline-model-parallel-size 1"},
    {4, TEN "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 3",
     "4 ranks are not a multiple of --tensor-model-parallel-size 2 x "
     "--pipeline-model-parallel-size 3"},
    {5, TEN "--pipeline-model-parallel-size 5",
     "--pipeline-model-parallel-size 5 is more than --num-layers 4: a stage needs a layer"},
    {2, TEN "--decoder-first-pipeline-num-layers 2",
     "--decoder-first-pipeline-num-layers 2 and --decoder-last-pipeline-num-layers 0 need a "
     "--pipeline-model-parallel-size of more than 1"},
    {3,
     TEN "--pipeline-model-parallel-size 3 --decoder-first-pipeline-num-layers 1 "
         "--decoder-last-pipeline-num-layers 3",
     "--decoder-first-pipeline-num-layers 1 and --decoder-last-pipeline-num-layers 3 leave 0 of "
     "--num-layers 4 to the 1 other stages"},
    {2, TEN "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1",
     "number of microbatches (1) is not divisible by pipeline-model-parallel-size (2) when using "
     "interleaved schedule: --global-batch-size 2 is 1 x --micro-batch-size 2 x DP 1"},
    {4, TEN "--tensor-model-parallel-size 4 --sequence-parallel --seq-length 30",
     "--seq-length 30 is not a multiple of --tensor-model-parallel-size 4, which "
     "--sequence-parallel needs"},
    {2,
     TEN "--tensor-model-parallel-size 2 --sequence-parallel --distribute-saved-activations "
         "--checkpoint-activations",
     "--sequence-parallel and --distribute-saved-activations exclude each other: what is saved is "
     "distributed already"},
    {1, TEN "--context-parallel-size 2",
     "'--context-parallel-size' is '2', only 1 is possible: a sequence is not cut over ranks"},
    {1, TEN "--expert-model-parallel-size 2",
     "'--expert-model-parallel-size' is '2', only 1 is possible: there are no experts"},
    {1, TEN "--overlap-param-gather",
     "--overlap-param-gather needs --overlap-grad-reduce beside it"},
    {3,
     TEN "--tensor-model-parallel-size 3 --num-attention-heads 6 --hidden-size 66 "
         "--ffn-hidden-size 66 --sequence-parallel",
     "--seq-length 32 is not a multiple of --tensor-model-parallel-size 3, which "
     "--sequence-parallel needs"},
    {2,
     TEN "--tensor-model-parallel-size 2 --sequence-parallel --checkpoint-activations "
         "--distribute-saved-activations",
     "--sequence-parallel and --distribute-saved-activations exclude each other: what is saved is "
     "distributed already"},
    {1, TEN "--num-virtual-stages-per-pipeline-rank 2",
     "2 virtual stages need a --pipeline-model-parallel-size of more than 1"},
    {2, TEN "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3",
     "--num-layers 4 is not a multiple of --pipeline-model-parallel-size 2 x "
     "--num-layers-per-virtual-pipeline-stage 3"},
    {2,
     TEN "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 "
         "--num-virtual-stages-per-pipeline-rank 2",
     "--num-layers-per-virtual-pipeline-stage 1 and --num-virtual-stages-per-pipeline-rank 2 "
     "exclude each other"},
    {2,
     TEN "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 "
         "--decoder-first-pipeline-num-layers 1",
     "--num-layers-per-virtual-pipeline-stage 1 needs stages of equal size: with "
     "--decoder-first-pipeline-num-layers 1 and --decoder-last-pipeline-num-layers 0 give "
     "--num-virtual-stages-per-pipeline-rank"},
    {4,
     TEN "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 "
         "--global-batch-size 8",
     "2 virtual stages do not divide the 1 layers of stage 0"},
    {2,
     TEN "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 "
         "--global-batch-size 6",
     "number of microbatches (3) is not divisible by pipeline-model-parallel-size (2) when using "
     "interleaved schedule: --global-batch-size 6 is 3 x --micro-batch-size 2 x DP 1"},
    /* the model */
    {1, TEN "--hidden-size 66", "--hidden-size 66 is not a multiple of --num-attention-heads 4"},
    {1, TEN "--kv-channels 32",
     "--kv-channels 32 is not --hidden-size 64 / --num-attention-heads 4"},
    {1, TEN "--max-position-embeddings 16",
     "--max-position-embeddings 16 is less than --seq-length 32"},
    {3, TEN "--tensor-model-parallel-size 3",
     "--num-attention-heads 4 is not a multiple of --tensor-model-parallel-size 3"},
    {2, TEN "--tensor-model-parallel-size 2 --ffn-hidden-size 129",
     "--ffn-hidden-size 129 is not a multiple of --tensor-model-parallel-size 2"},
    {1, BASE "--mock-data --train-iters 10",
     "missing --vocab-size, or the tokenizer's --vocab-file and --merge-file, or its "
     "--tokenizer-model"},
    /* the batch */
    {3, TEN "--global-batch-size 8",
     "--global-batch-size 8 is not a multiple of --micro-batch-size 2 x DP 3"},
    {1, TEN "--global-batch-size 8 --gradient-accumulation-steps 3",
     "--global-batch-size 8 and --gradient-accumulation-steps 3 do not agree (--micro-batch-size 2 "
     "x DP 1 x 3 is 6)"},
    {1, TEN "--micro-batch-size 0",
     "'--micro-batch-size' is '0', wanted an integer from 1 to 65536"},
    {2, TEN "--global-batch-size 16 --rampup-batch-size 4 6 64",
     "--global-batch-size 10 on the way of 4 6 64 is not a multiple of --micro-batch-size 2 x DP "
     "2"},
    {1, TEN "--global-batch-size 16 --rampup-batch-size 4 5 64",
     "--rampup-batch-size 4 5 64: from 4 to --global-batch-size 16 is no whole number of "
     "increments of 5"},
    {1, TEN "--global-batch-size 16 --rampup-batch-size 4 4",
     "--rampup-batch-size '4 4' is not START INCREMENT SAMPLES, as in 16 8 300000"},
    {1, TEN "--global-batch-size 4 --step-batch-size-schedule 0:8",
     "--global-batch-size 4 is not 8, the last of --step-batch-size-schedule '0:8'"},
    {1, TEN "--step-batch-size-schedule 0:8 --rampup-batch-size 4 4 64",
     "--rampup-batch-size '4 4 64' and --step-batch-size-schedule '0:8' exclude each other"},
    {1, TEN "--step-batch-size-schedule 64:8",
     "--step-batch-size-schedule '64:8' is not a list of growing TOKENS:BATCH that begins with 0, "
     "as in '0:4 32K:8 1M:16'"},
    /* the length */
    {1, BASE "--vocab-size 100 --mock-data",
     "--train-iters 0 and --train-samples 0: give exactly one of them"},
    {1, TEN "--train-samples 50",
     "--train-iters 10 and --train-samples 50: give exactly one of them"},
    {1, SAMPLES "--lr-warmup-iters 2",
     "--lr-decay-iters 0, --lr-warmup-iters 2 and --lr-wsd-decay-iters 0 do not go with "
     "--train-samples: use the same flags with -samples"},
    {1, SAMPLES "--lr-decay-iters 7",
     "--lr-decay-iters 7, --lr-warmup-iters 0 and --lr-wsd-decay-iters 0 do not go with "
     "--train-samples: use the same flags with -samples"},
    {1, SAMPLES "--lr-wsd-decay-iters 3",
     "--lr-decay-iters 0, --lr-warmup-iters 0 and --lr-wsd-decay-iters 3 do not go with "
     "--train-samples: use the same flags with -samples"},
    {1, TEN "--lr-decay-samples 2",
     "--lr-decay-samples 2, --lr-warmup-samples 0 and --lr-wsd-decay-samples 0 do not go with "
     "--train-iters: use the same flags with -iters"},
    {1, TEN "--lr-warmup-samples 2",
     "--lr-decay-samples 0, --lr-warmup-samples 2 and --lr-wsd-decay-samples 0 do not go with "
     "--train-iters: use the same flags with -iters"},
    {1, SAMPLES "--global-batch-size 200", "--train-samples 100 is less than one step of 200"},
    {1, TEN "--iterations-to-skip 3 four",
     "--iterations-to-skip '3 four' is no list of whole numbers"},
    /* the learning rate */
    {1, TEN "--lr-warmup-iters 10",
     "the learning rate's warm-up of 20 samples is not shorter than its decay of 20"},
    {1, TEN "--lr-warmup-iters 5 --lr-warmup-fraction 0.1",
     "--lr-warmup-fraction 0.1 and a warm-up of 10 samples exclude each other"},
    {1, SAMPLES "--lr-warmup-samples 5 --lr-warmup-fraction 0.1",
     "--lr-warmup-fraction 0.1 and a warm-up of 5 samples exclude each other"},
    {1, TEN "--lr-warmup-fraction 1",
     "the learning rate's warm-up of 20 samples is not shorter than its decay of 20"},
    {1, TEN "--min-lr 0.01", "--min-lr 0.01 is more than --lr 0.001"},
    {1, TEN "--lr-warmup-init 0.01", "--lr-warmup-init 0.01 is more than --lr 0.001"},
    {1, TEN "--lr-decay-style WSD",
     "--lr-decay-style WSD needs --lr-wsd-decay-iters or -samples from 1 to its whole length (they "
     "make 0 of 20 samples)"},
    {1, TEN "--lr-decay-style WSD --lr-wsd-decay-iters 11",
     "--lr-decay-style WSD needs --lr-wsd-decay-iters or -samples from 1 to its whole length (they "
     "make 22 of 20 samples)"},
    {1, TEN "--override-opt_param-scheduler --use-checkpoint-opt_param-scheduler",
     "--override-opt-param-scheduler and --use-checkpoint-opt-param-scheduler exclude each other"},
    /* weight decay */
    {1, TEN "--start-weight-decay 0.1",
     "--start-weight-decay 0.1 and --end-weight-decay 0 need a --weight-decay-incr-style: linear "
     "or cosine"},
    {1, TEN "--weight-decay-incr-style linear --start-weight-decay 0.1",
     "--weight-decay-incr-style linear needs --start-weight-decay and --end-weight-decay"},
    {1, TEN "--weight-decay-incr-style cosine --start-weight-decay 0.1 --end-weight-decay 0.05",
     "--end-weight-decay 0.05 is less than --start-weight-decay 0.1"},
    /* recompute */
    {1, TEN "--recompute-activations --recompute-method uniform",
     "--recompute-method uniform and --recompute-num-layers 0 are for --recompute-granularity "
     "full, not selective"},
    {1, TEN "--recompute-num-layers 2",
     "--recompute-method none and --recompute-num-layers 2 are for --recompute-granularity full, "
     "not none"},
    {1, TEN "--recompute-granularity full",
     "--recompute-granularity full needs --recompute-method uniform or block (not none) and "
     "--recompute-num-layers of at least 1 (not 0)"},
    {1, TEN "--recompute-granularity full --recompute-method block --recompute-num-layers 5",
     "--recompute-num-layers 5 is more than --num-layers 4"},
    {1, TEN "--distribute-saved-activations --checkpoint-activations",
     "--distribute-saved-activations needs a --tensor-model-parallel-size of more than 1"},
    {2, TEN "--tensor-model-parallel-size 2 --distribute-saved-activations --recompute-activations",
     "--distribute-saved-activations needs --recompute-granularity full, not selective"},
    /* data */
    {1, BASE "--vocab-size 100 --train-iters 10",
     "no data: give --data-path, or --train-data-path, or --mock-data"},
    {1, TEN "--data-path a",
     "several sources of data (--data-path 'a', --data-args-path '', --train-data-path '', "
     "--valid-data-path '', --test-data-path '', --mock-data true): give one of the first two, or "
     "paths for each split, or --mock-data"},
    {1, BASE "--vocab-size 100 --train-iters 10 --data-path a --data-args-path b",
     "several sources of data (--data-path 'a', --data-args-path 'b', --train-data-path '', "
     "--valid-data-path '', --test-data-path '', --mock-data false): give one of the first two, or "
     "paths for each split, or --mock-data"},
    {1, BASE "--vocab-size 100 --train-iters 10 --data-path a --train-data-path b",
     "several sources of data (--data-path 'a', --data-args-path '', --train-data-path 'b', "
     "--valid-data-path '', --test-data-path '', --mock-data false): give one of the first two, or "
     "paths for each split, or --mock-data"},
    {1, BASE "--vocab-size 100 --train-iters 10 --valid-data-path b",
     "--valid-data-path 'b' and --test-data-path '' need a --train-data-path beside them"},
    {1, BASE "--vocab-size 100 --train-iters 10 --train-data-path a --eval-interval 5",
     "--eval-interval 5 needs a --valid-data-path beside --train-data-path 'a'"},
    {1, BASE "--vocab-size 100 --train-iters 10 --train-data-path a --split 9,1,0",
     "--split '9,1,0' does not go with --train-data-path 'a': it cuts --data-path"},
    {1, TEN "--eod-mask-loss",
     "--eod-mask-loss, --reset-position-ids and --reset-attention-mask need the id that ends a "
     "document, below --vocab-size 100, and not -1: give --eod-id, or the tokenizer's files"},
    {1, TEN "--reset-position-ids --eod-id 100",
     "--eod-mask-loss, --reset-position-ids and --reset-attention-mask need the id that ends a "
     "document, below --vocab-size 100, and not 100: give --eod-id, or the tokenizer's files"},
    /* checkpoints */
    {1, TEN "--save x", "--save 'x' needs a --save-interval above 0"},
    {1, TEN "--save-interval 2", "--save-interval 2 needs a directory: --save"},
    {1, TEN "--save x --save-interval 4 --save-retain-interval 6",
     "--keep-every 6 is not a multiple of --save-interval 4"},
    {1, TEN "--ckpt-step 3", "--ckpt-step 3 needs a directory: --load"},
    {1, TEN "--finetune", "--finetune needs a --load, and a --save '' that is another"},
    {1, TEN "--finetune --load x --save x --save-interval 1",
     "--finetune needs a --load, and a --save 'x' that is another"},
    {1, TEN "--load x --ckpt-step 3 --from-scratch",
     "--from-scratch excludes --ckpt-step and --exit-on-missing-checkpoint"},
    /* numbers */
    {1, TEN "--attention-dropout 1.5",
     "'--attention-dropout' is '1.5', wanted a number from 0 to 0.99"},
    {1, TEN "--seed -1", "'--seed' is '-1', wanted an integer from 0 to 9007199254740991"},
    {1, TEN "--optimizer sgd", "'--optimizer' is 'sgd', wanted one of adam"},
    {1, TEN "--lr-decay-style triangle",
     "'--lr-decay-style' is 'triangle', wanted one of "
     "constant|linear|cosine|inverse-square-root|WSD"},
    {1, TEN "--dataloader-type external",
     "'--dataloader-type' is 'external', wanted one of single|cyclic"},
    {1, TEN "--log-interval 0",
     "'--log-interval' is '0', wanted an integer from 1 to 1000000000000"},
};

static struct train_options options;
static struct train_plan plan;

/* Parses a line of words and resolves it for so many ranks. */
static enum status try_line(const char *line, int ranks)
{
    char copy[1024];
    char *argv[WORDS_MAX] = {(char *)"train"}, *rest = NULL;
    const char *texts[WORDS_MAX];
    struct option_positionals positionals = {.texts = texts};
    bool help = false;
    int argc = 1;

    snprintf(copy, sizeof(copy), "%s", line);
    for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        cr_assert(argc < WORDS_MAX);
        argv[argc++] = word;
    }
    memset(&options, 0, sizeof(options));
    enum status st = options_parse(&train_options_table, argc, argv, &options, &positionals, &help);
    return st != STATUS_OK ? st : train_options_resolve(&options, ranks, &plan);
}

Test(train_rules, what_the_lines_begin_with_is_well)
{
    cr_assert_eq(try_line(TEN, 1), STATUS_OK, "%s", status_last()->message);
    cr_assert_eq(try_line(SAMPLES, 1), STATUS_OK, "%s", status_last()->message);
}

Test(train_rules, each_broken_rule_is_told_with_its_numbers)
{
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        cr_expect_eq(try_line(rules[i].line, rules[i].ranks), STATUS_USAGE, "%s", rules[i].line);
        cr_expect_str_eq(status_last()->message, rules[i].message, "%s", rules[i].line);
    }
}
