/* Settings in YAML and JSON: what they set, what goes before them, and every way to be wrong, with
 * the file and the line.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/train_options.h"

static struct train_options options;
static char folder[] = "/tmp/holdfast-config.XXXXXX";
static char path[sizeof(folder) + 16];

static void make_folder(void)
{
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/run.yaml", folder);
}

static void remove_folder(void)
{
    (void)unlink(path);
    cr_assert_eq(rmdir(folder), 0);
}

TestSuite(config_file, .init = make_folder, .fini = remove_folder);

/* The text as a file, and one flag of the command line (NULL: none). */
static enum status read_bytes(const char *text, size_t bytes, const char *flag)
{
    const char *texts[4];
    char *argv[] = {(char *)"train", (char *)"--config", path, (char *)flag};
    struct option_positionals positionals = {.texts = texts};
    bool help = false;
    FILE *stream = fopen(path, "w");

    cr_assert_not_null(stream);
    cr_assert_eq(fwrite(text, 1, bytes, stream), bytes);
    cr_assert_eq(fclose(stream), 0);
    memset(&options, 0, sizeof(options));
    return options_parse(&train_options_table, flag == NULL ? 3 : 4, argv, &options, &positionals,
                         &help);
}

static void read_well(const char *text, const char *flag)
{
    cr_assert_eq(read_bytes(text, strlen(text), flag), STATUS_OK, "%s", status_last()->message);
}

/* The whole message; %s stands for the file. */
static void refuse_bytes(const char *text, size_t bytes, const char *message)
{
    char wanted[1024];

    snprintf(wanted, sizeof(wanted), "%s%s", path, message);
    cr_assert_eq(read_bytes(text, bytes, NULL), STATUS_USAGE, "%s", text);
    cr_assert_str_eq(status_last()->message, wanted);
}

static void refuse(const char *text, const char *message)
{
    refuse_bytes(text, strlen(text), message);
}

#define NEEDED                                                                                     \
    "num-layers: 2\nhidden-size: 8\nnum-attention-heads: 2\nseq-length: 4\n"                       \
    "max-position-embeddings: 4\nmicro-batch-size: 1\nlr: 1e-3\n"

Test(config_file, yaml_sets_what_the_command_line_leaves)
{
    read_well("# a comment\n---\n" NEEDED "global_batch_size: 16   # another spelling\n"
              "data_path: [0.7, 'a b', 0.3, c]\n"
              "rampup-batch-size:\n  - 4\n  - 4\n  - 64\n"
              "split: 969,30,1\nsave: \"x y\"\nload: 'yes'\nfinetune: yes\neod-mask-loss: True\n"
              "no-check-for-nan-in-loss-and-grad: true\ncheck-for-spiky-loss: off\n"
              "seed: null\nadam-beta2: ~\nmin-lr:\nlr-decay-iters: None\n",
              "--num-layers=3");
    cr_assert(options.num_layers == 3 && options.global_batch_size == 16 && options.lr == 1e-3);
    cr_assert_str_eq(options.data_path, "0.7 a\\ b 0.3 c");
    cr_assert_str_eq(options.rampup_batch_size, "4 4 64");
    cr_assert_str_eq(options.save, "x y");
    cr_assert_str_eq(options.load, "yes");
    cr_assert(options.finetune && options.eod_mask_loss);
    cr_assert(!options.check_for_nan_in_loss_and_grad && !options.check_for_spiky_loss);
    cr_assert(options.seed == 1234 && !options.given[TRAIN_OPTION_seed]);
    cr_assert(options.adam_beta2 == 0.999 && options.min_lr == 0 && options.lr_decay_iters == 0);
    cr_assert(options.given[TRAIN_OPTION_global_batch_size]);
}

Test(config_file, json_says_the_same)
{
    read_well("{\"num-layers\":2,\n\t\"hidden_size\": 8, \"num-attention-heads\": 2,\n"
              "\"seq-length\": 4, \"max-position-embeddings\": 4, \"micro-batch-size\": 1,\n"
              "\"lr\": 0.001, \"data-path\": [0.7, \"a\\u0020b\", 0.3, \"c\\/d\"],\n"
              "\"seed\": null, \"finetune\": true, \"check-for-spiky-loss\": false}\n",
              "--finetune");
    cr_assert(options.num_layers == 2 && options.lr == 0.001 && options.seed == 1234);
    cr_assert_str_eq(options.data_path, "0.7 a\\ b 0.3 c/d");
    cr_assert(options.finetune && !options.check_for_spiky_loss);
}

Test(config_file, flags_may_stand_in_sections)
{
    read_well("model:\n  num_layers: 2\n  hidden-size: 8\n  num-attention-heads: 2\n"
              "  seq-length: 4\n  max-position-embeddings: 4\n"
              "run: {micro-batch-size: 1, lr: 0.1}\nempty: {}\nseed: 5\n",
              "--micro-batch-size=7");
    cr_assert(options.num_layers == 2 && options.micro_batch_size == 7 && options.seed == 5);
}

Test(config_file, flags_of_megatron_alone_count_when_they_are_on)
{
    read_well(NEEDED "swiglu: false\nnum-experts: null\nno-bias-gelu-fusion: true\n", NULL);
    refuse(NEEDED "swiglu: true\n", ":8: '--swiglu' is not possible here: the MLP is GELU");
}

Test(config_file, an_empty_file_sets_nothing)
{
    cr_assert_eq(read_bytes("# nothing\n", 10, NULL), STATUS_USAGE);
    cr_assert_not_null(strstr(status_last()->message, "missing --num-layers"));
}

Test(config_file, unknown_flags_name_the_nearest)
{
    refuse("lr: 0.1\nnum_layer: 2\n",
           ":2: unknown option '--num_layer'; did you mean '--num-layers'?");
    refuse("model:\n  # sizes\n  hiden-size: 2\n",
           ":3: unknown option '--hiden-size'; did you mean '--hidden-size'?");
}

Test(config_file, a_flag_stands_there_once)
{
    refuse("lr: 0.1\nseed: 3\nlr: 0.2\n", ":3: 'lr' again: line 1 gives --lr already");
    refuse("num-layers: 1\na:\n  num_layers: 2\n",
           ":3: 'num_layers' again: line 1 gives --num-layers already");
    refuse("micro-batch-size: 1\nbatch_size: 1\n",
           ":2: 'batch_size' again: line 1 gives --micro-batch-size already");
    refuse("finetune: true\nno-finetune: true\n",
           ":2: 'no-finetune' again: line 1 gives --finetune already");
}

Test(config_file, values_are_checked_as_on_the_command_line)
{
    refuse("\nnum-layers: 2.5\n",
           ":2: '--num-layers' is '2.5', wanted an integer from 1 to 100000");
    refuse("lr: fast\n", ":1: '--lr' is 'fast', wanted a number from 0 to 1e+06");
    refuse("finetune: maybe\n", ":1: '--finetune' is 'maybe', wanted true or false");
    refuse("seed: [1]\n", ":1: '--seed' takes one value, no list");
    refuse("lr-decay-style: triangle\n", ":1: '--lr-decay-style' is 'triangle', wanted one of "
                                         "constant|linear|cosine|inverse-square-root|WSD");
}

Test(config_file, other_shapes_are_refused_with_their_line)
{
    refuse("a:\n  b:\n    lr: 1\n", ":2: 'b' is a section within a section");
    refuse("data-path: [a, [b]]\n", ":1: a list of words holds something else");
    refuse("data-path:\n  - a\n  - b: c\n", ":3: a list of words holds something else");
    refuse("- lr\n", ":1: wanted 'flag: value' or {\"flag\": value, ...}");
    refuse("just words\n", ":1: wanted 'flag: value' or {\"flag\": value, ...}");
    refuse("? [a]\n: b\n", ":1: wanted the name of a flag");
    refuse("lr: 0.1\n---\nlr: 0.2\n", ":2: a second document");
    refuse("save: &a x\nload: *a\n", ":2: aliases are not understood: repeat the value");
    refuse("save: \"a\\0b\"\n", ":1: a value with a 0 byte");
    refuse("lr: 0.1\nseed: [1\n", ":3: did not find expected ',' or ']'");
    refuse("lr: @x\n", ":1: found character that cannot start any token");
    refuse_bytes("lr: 0.1\xff\n", 9, ":1: invalid leading UTF-8 octet");
}

Test(config_file, a_file_that_is_not_there_is_named)
{
    char *argv[] = {(char *)"train", (char *)"--config=/nowhere/run.yaml"};
    struct option_positionals positionals = {0};
    bool help = false;

    cr_assert_eq(options_parse(&train_options_table, 2, argv, &options, &positionals, &help),
                 STATUS_NOT_FOUND);
    cr_assert_not_null(strstr(status_last()->message, "'/nowhere/run.yaml'"));
}
