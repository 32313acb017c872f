/* Claims of options.h. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/json.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/base/options.h"
#include "tests/unit/base/base_support.h"

enum { LAYERS, BATCH, RATE, CLIP, FAST, SHUFFLE, SAVE, DTYPE, TENSOR, RAMP, LIMIT, OPTION_COUNT };

struct values {
    int64_t layers, batch, tensor, limit;
    double rate, clip;
    bool fast, shuffle;
    char save[OPTIONS_TEXT_MAX], dtype[OPTIONS_TEXT_MAX], ramp[OPTIONS_TEXT_MAX];
    bool given[OPTION_COUNT];
};

#define AT(name) offsetof(struct values, name)

static const struct option rows[OPTION_COUNT] = {
    [LAYERS] = {"num-layers", OPTION_INT, AT(layers), NULL, 1, 100, NULL, OPTION_FIXED, "model",
                true, "number of layers"},
    [BATCH] = {"micro-batch-size", OPTION_INT, AT(batch), "4", -8, 64, NULL, OPTION_TUNE, "run",
               false, "samples a step"},
    [RATE] = {"lr", OPTION_FLOAT, AT(rate), NULL, 0, 1, NULL, OPTION_TUNE, "run", true,
              "learning rate"},
    [CLIP] = {"clip-grad", OPTION_FLOAT, AT(clip), "1.0", -1, 1e3, NULL, OPTION_FIXED, "run", false,
              "norm to clip to"},
    [FAST] = {"fast", OPTION_BOOL, AT(fast), "false", 0, 0, NULL, OPTION_LOCAL, "run", false,
              "hurries"},
    [SHUFFLE] = {"shuffle", OPTION_BOOL, AT(shuffle), "true", 0, 0, NULL, OPTION_FIXED, "run",
                 false, "shuffles the samples"},
    [SAVE] = {"save", OPTION_TEXT, AT(save), "", 0, 0, NULL, OPTION_LOCAL, "checkpoint", true,
              "directory to save to"},
    [DTYPE] = {"dtype", OPTION_CHOICE, AT(dtype), "bf16", 0, 0, "fp32|bf16|fp16", OPTION_FIXED,
               "model", false, "type of numbers"},
    [TENSOR] = {"tensor-parallel", OPTION_INT, AT(tensor), "1", 1, 64, NULL, OPTION_RESHARD, "run",
                false, "ranks a layer is cut for"},
    [RAMP] = {"ramp", OPTION_WORDS, AT(ramp), "", 0, 0, NULL, OPTION_TUNE, "run", false,
              "start, step and length"},
    [LIMIT] = {"limit", OPTION_INT, AT(limit), "", 0, 64, NULL, OPTION_LOCAL, "run", false,
               "most steps"},
};

static const struct option_alias aliases[] = {
    {"mbs", "micro-batch-size"},
    {"tp", "tensor-parallel"},
};

static const struct option_foreign foreign[] = {
    {"no-gelu-fusion", false, "nothing is fused"},
    {"cloud-*", false, "there is no cloud"},
    {"swiglu", true, "the MLP is GELU"},
};

static const struct option_table table = {
    .program = "holdfast try",
    .usage = "[WHAT] [options]",
    .about = "Tries options.",
    .options = rows,
    .option_count = OPTION_COUNT,
    .aliases = aliases,
    .alias_count = sizeof aliases / sizeof aliases[0],
    .foreign = foreign,
    .foreign_count = sizeof foreign / sizeof foreign[0],
    .given_offset = offsetof(struct values, given),
    .positional_min = 0,
    .positional_max = 1,
};

static struct values values;
static const char *texts[32];
static struct option_positionals positionals = {.texts = texts};

static enum status parse_words(const char *const *words, size_t count)
{
    char *argv[32] = {(char *)"try"};
    bool help = false;

    for (size_t i = 0; i < count; i++) {
        argv[i + 1] = (char *)words[i];
    }
    enum status st = options_parse(&table, (int)count + 1, argv, &values, &positionals, &help);
    cr_assert(!help);
    return st;
}

#define WORDS(...)                                                                                 \
    (const char *const[]){__VA_ARGS__}, sizeof(const char *const[]){__VA_ARGS__} / sizeof(char *)
#define PARSE(...) parse_words(WORDS("--num-layers=2", "--lr", "0.1", __VA_ARGS__))

Test(options, values_and_defaults_are_set_and_what_was_given_is_known)
{
    assert_ok(PARSE("--save", "dir", "--dtype=fp32", "--clip-grad", "-0.5", "what"));
    cr_assert(values.layers == 2 && values.batch == 4 && values.rate == 0.1);
    cr_assert(values.clip == -0.5 && !values.fast && values.shuffle);
    cr_assert_str_eq(values.save, "dir");
    cr_assert_str_eq(values.dtype, "fp32");
    cr_assert(positionals.count == 1 && strcmp(texts[0], "what") == 0);
    cr_assert(options_given(&table, "save", &values) && options_given(&table, "lr", &values));
    cr_assert(!options_given(&table, "micro-batch-size", &values));
}

Test(options, both_spellings_aliases_and_the_last_of_two_count)
{
    assert_ok(PARSE("--micro_batch_size", "7", "--mbs=9", "--tp", "2"));
    cr_assert(values.batch == 9 && values.tensor == 2);
    cr_assert(options_given(&table, "micro-batch-size", &values));
    cr_assert(options_given(&table, "mbs", &values));
}

Test(options, words_go_up_to_the_next_option)
{
    assert_ok(PARSE("--ramp", "4", "-4", "64", "--fast"));
    cr_assert_str_eq(values.ramp, "4 -4 64");
    cr_assert(values.fast);
    assert_ok(PARSE("--ramp=1 2", "what"));
    cr_assert_str_eq(values.ramp, "1 2");
    cr_assert_eq(positionals.count, 1);
    assert_ok(PARSE("--ramp", "0.5", "my data", "x"));
    cr_assert_str_eq(values.ramp, "0.5 my\\ data x");
    cr_assert_eq(PARSE("--ramp", "--fast"), STATUS_USAGE);
    char longest[OPTIONS_TEXT_MAX];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_ok(PARSE("--ramp", longest));
    cr_assert_eq(PARSE("--ramp", longest, "y"), STATUS_USAGE);
}

Test(options, known_flags_of_others_are_passed_over_with_their_words_or_refused)
{
    assert_ok(PARSE("--no_gelu_fusion", "--cloud-project", "mine", "--cloud-", "--fast"));
    cr_assert(values.fast && positionals.count == 0);
    cr_assert_eq(PARSE("--cloud", "x"), STATUS_USAGE);
    cr_assert_eq(PARSE("--no-gelu-fusions"), STATUS_USAGE);
    cr_assert_eq(PARSE("--swiglu"), STATUS_USAGE);
    cr_assert_not_null(strstr(status_last()->message, "the MLP is GELU"));
}

Test(options, bools_have_a_no)
{
    assert_ok(PARSE("--fast", "--no-shuffle"));
    cr_assert(values.fast && !values.shuffle);
    assert_ok(PARSE("--no-fast", "--shuffle=false", "--fast=true"));
    cr_assert(values.fast && !values.shuffle);
    assert_ok(PARSE("--no_shuffle"));
    cr_assert(!values.shuffle);
    assert_status(PARSE("--no-fast=true"), STATUS_USAGE);
    assert_status(PARSE("--fast=maybe"), STATUS_USAGE);
    assert_status(PARSE("--no-dtype"), STATUS_USAGE);
}

Test(options, numbers_are_whole_and_within_inclusive_bounds)
{
    static const char *const bad_ints[] = {
        "", "x", "4x", "4.0", " 4", "4 ", "0x4", "1e1", "65", "-9", "99999999999999999999"};
    static const char *const bad_floats[] = {"",    "x",     "0.5x",      " 0.5", "nan",
                                             "inf", "-1e-9", "1.0000001", "1e999"};

    for (size_t i = 0; i < sizeof bad_ints / sizeof bad_ints[0]; i++) {
        assert_status(PARSE("--mbs", bad_ints[i]), STATUS_USAGE);
        assert_says("'--micro-batch-size' is '");
        assert_says(bad_ints[i]);
        assert_says("from -8 to 64");
    }
    for (size_t i = 0; i < sizeof bad_floats / sizeof bad_floats[0]; i++) {
        assert_status(PARSE("--lr", bad_floats[i]), STATUS_USAGE);
        assert_says("'--lr' is '");
        assert_says("from 0 to 1");
    }
    assert_ok(PARSE("--mbs", "64", "--lr", "1"));
    assert_ok(PARSE("--mbs", "-8", "--lr", "0"));
    cr_assert(values.batch == -8 && values.rate == 0);
}

Test(options, choices_are_whole_words)
{
    assert_status(PARSE("--dtype", "fp"), STATUS_USAGE);
    assert_says("'--dtype' is 'fp', wanted one of fp32|bf16|fp16");
    assert_status(PARSE("--dtype", "fp32|bf16"), STATUS_USAGE);
    assert_status(PARSE("--dtype="), STATUS_USAGE);
    assert_ok(PARSE("--dtype", "fp16"));
}

Test(options, texts_that_are_too_long_are_refused)
{
    char text[OPTIONS_TEXT_MAX + 1];

    memset(text, 'a', OPTIONS_TEXT_MAX);
    text[OPTIONS_TEXT_MAX] = '\0';
    assert_status(PARSE("--save", text), STATUS_USAGE);
    text[OPTIONS_TEXT_MAX - 1] = '\0';
    assert_ok(PARSE("--save", text));
    cr_assert_str_eq(values.save, text);
}

Test(options, an_unknown_name_names_the_nearest)
{
    char text[1000];

    assert_status(PARSE("--micro_bach_size", "4"), STATUS_USAGE);
    assert_says("unknown option '--micro_bach_size'; did you mean '--micro-batch-size'?");
    assert_status(PARSE("--sav=4"), STATUS_USAGE);
    assert_says("did you mean '--save'?");
    assert_status(PARSE("--zzzzzzzzzzzz"), STATUS_USAGE);
    assert_says("'holdfast try --help' lists all");
    assert_status(PARSE("-x"), STATUS_USAGE);
    assert_says("'-x'");
    memset(text, '-', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_status(PARSE(text), STATUS_USAGE);
}

Test(options, a_forgotten_value_is_noticed)
{
    assert_status(PARSE("--save"), STATUS_USAGE);
    assert_says("'--save' wants a value");
    assert_status(PARSE("--save", "--fast"), STATUS_USAGE);
    assert_says("'--save' wants a value, found '--fast'");
    assert_ok(PARSE("--save=--fast"));
    cr_assert_str_eq(values.save, "--fast");
}

Test(options, all_missing_options_are_named_at_once)
{
    assert_status(parse_words(WORDS("--fast")), STATUS_USAGE);
    assert_says("missing --num-layers, --lr;");
    assert_status(parse_words(WORDS("--lr=0")), STATUS_USAGE);
    assert_says("missing --num-layers;");
}

Test(options, arguments_are_counted_and_end_options)
{
    assert_status(PARSE("a", "b"), STATUS_USAGE);
    assert_says("'b'");
    assert_ok(PARSE("--", "--fast"));
    cr_assert(!values.fast && positionals.count == 1 && strcmp(texts[0], "--fast") == 0);
    assert_ok(PARSE("-"));
    cr_assert(positionals.count == 1);
}

static char *help_of(const char *word)
{
    struct support_catch caught;
    char *argv[] = {(char *)"try", (char *)"--bogus", (char *)word};
    bool help = false;

    support_catch(&caught, STDOUT_FILENO);
    enum status st = options_parse(&table, 3, argv, &values, &positionals, &help);
    char *text = support_release(&caught);
    assert_ok(st);
    cr_assert(help);
    return text;
}

Test(options, help_is_given_whatever_else_is_on_the_line)
{
    char *text = help_of("-h");

    cr_assert(strstr(text, "usage: holdfast try [WHAT] [options]") != NULL);
    cr_assert(strstr(text, "--num-layers N") != NULL && strstr(text, "(required)") != NULL);
    cr_assert(strstr(text, "--dtype") == NULL);
    free(text);
    text = help_of("--help=all");
    cr_assert(strstr(text, "--dtype fp32|bf16|fp16") != NULL && strstr(text, "[bf16]") != NULL);
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        cr_assert(strlen(line) <= 100, "%s", line);
    }
    free(text);
}

static const struct option_fact facts[] = {{"world-size", "8"}};

/* The expected text is what Python prints for these values by _print_args' format. */
Test(options, values_are_printed_as_megatron_prints_them)
{
    static const char wanted[] =
        "------------------------ arguments ------------------------\n"
        "  clip_grad ....................................... 1.0\n"
        "  dtype ........................................... bf16\n"
        "  fast ............................................ True\n"
        "  limit ........................................... None\n"
        "  lr .............................................. 6e-05\n"
        "  micro_batch_size ................................ 4\n"
        "  num_layers ...................................... 2\n"
        "  ramp ............................................ ['16', 'a b', '3']\n"
        "  save ............................................ None\n"
        "  shuffle ......................................... False\n"
        "  tensor_parallel ................................. 1\n"
        "  world_size ...................................... 8\n"
        "-------------------- end of arguments ---------------------\n";
    struct support_catch caught;

    assert_ok(PARSE("--fast", "--no-shuffle", "--lr", "6.0e-5", "--ramp", "16", "a b", "3"));
    support_catch(&caught, STDOUT_FILENO);
    options_print_values(&table, "arguments", &values, facts, 1);
    char *text = support_release(&caught);
    cr_assert_str_eq(text, wanted);
    free(text);
}

/* The right sides are repr() of the left ones. */
Test(options, floats_are_printed_as_python_prints_them)
{
    static const struct {
        const char *given, *printed;
    } cases[] = {{"0", "0.0"},
                 {"1e-4", "0.0001"},
                 {"0.00001", "1e-05"},
                 {"0.1", "0.1"},
                 {"0.30000000000000004", "0.30000000000000004"},
                 {"123.456", "123.456"},
                 {"500", "500.0"},
                 {"1.5e-7", "1.5e-07"},
                 {"-0.5", "-0.5"}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct support_catch caught;
        char line[128];

        assert_ok(PARSE("--clip-grad", cases[i].given));
        support_catch(&caught, STDOUT_FILENO);
        options_print_values(&table, "arguments", &values, facts, 1);
        char *text = support_release(&caught);
        (void)snprintf(line, sizeof line, "clip_grad %s %s\n",
                       ".......................................", cases[i].printed);
        cr_assert(strstr(text, line) != NULL, "%s in %s", line, text);
        free(text);
    }
}

Test(options, one_is_set_by_name)
{
    assert_ok(PARSE("--fast"));
    assert_ok(options_set(&table, "micro_batch_size", "5", &values));
    cr_assert(values.batch == 5 && options_given(&table, "mbs", &values));
    assert_status(options_set(&table, "micro-batch-size", "500", &values), STATUS_USAGE);
    assert_status(options_set(&table, "no-fast", "true", &values), STATUS_USAGE);
    assert_status(options_set(&table, "bogus", "1", &values), STATUS_USAGE);
    cr_assert(values.batch == 5);
}

/* What a manifest does with them: to a text and back. */
static cJSON *save_options(void)
{
    cJSON *object = NULL, *back = NULL;
    char *text = NULL;

    assert_ok(options_to_json(&table, &values, &object));
    assert_ok(json_print(object, &text));
    assert_ok(json_parse(text, strlen(text), "manifest", &back));
    mem_free(&text);
    cJSON_Delete(object);
    return back;
}

Test(options, all_but_local_ones_are_saved_with_their_class)
{
    const char *class = NULL;
    cJSON *row = NULL;

    assert_ok(PARSE("--save=x"));
    cJSON *saved = save_options();
    assert_ok(json_get_object(saved, "saved", "tensor-parallel", &row));
    assert_ok(json_get_string(row, "saved", "class", &class));
    cr_assert_str_eq(class, "RESHARD");
    cr_assert(cJSON_GetObjectItem(saved, "save") == NULL);
    cr_assert(cJSON_GetObjectItem(saved, "fast") == NULL);
    cr_assert(cJSON_GetArraySize(saved) == OPTION_COUNT - 3);
    cJSON_Delete(saved);
}

Test(options, a_resume_with_the_same_values_passes_bit_for_bit)
{
    uint64_t state = support_seed();

    for (int i = 0; i < 200; i++) {
        assert_ok(PARSE("--dtype=fp16"));
        values.clip = (double)(support_random(&state) >> 11) * 0x1p-53;
        cJSON *saved = save_options();
        assert_ok(options_check_resume(&table, &values, saved, "step_7"));
        cJSON_Delete(saved);
    }
}

Test(options, fixed_differences_are_all_named_with_both_values)
{
    assert_ok(PARSE("--fast"));
    cJSON *saved = save_options();
    assert_ok(PARSE("--num-layers=3", "--no-shuffle", "--dtype=fp32", "--clip-grad=2"));
    assert_status(options_check_resume(&table, &values, saved, "step_7"), STATUS_OPTIONS_DIFFER);
    assert_says("'step_7'");
    assert_says("--num-layers is 3 here and 2 there");
    assert_says("--shuffle is false here and true there");
    assert_says("--dtype is fp32 here and bf16 there");
    assert_says("--clip-grad is 2 here and 1 there");
    cJSON_Delete(saved);
}

Test(options, other_differences_are_logged_and_missing_ones_pass)
{
    struct support_catch caught;

    log_init(LOG_LEVEL_INFO, "");
    assert_ok(PARSE("--save=x"));
    cJSON *saved = save_options();
    cJSON_DeleteItemFromObject(saved, "dtype");
    assert_ok(json_add_bool(saved, "option-of-another-version", true));
    assert_ok(PARSE("--mbs=8", "--tp=2", "--save=y", "--dtype=fp32"));
    support_catch(&caught, STDERR_FILENO);
    enum status st = options_check_resume(&table, &values, saved, "step_7");
    char *text = support_release(&caught);
    assert_ok(st);
    cr_assert(strstr(text, "--micro-batch-size is now 8, was 4 in 'step_7'") != NULL, "%s", text);
    cr_assert(strstr(text, "--tensor-parallel is now 2, was 1") != NULL);
    cr_assert(strstr(text, "save") == NULL && strstr(text, "dtype") == NULL);
    free(text);
    cJSON_Delete(saved);
}

Test(options, one_option_is_compared_with_and_taken_from_a_saved_object_to_the_last_digit)
{
    cJSON *saved = NULL;
    char now[32], then[32];

    assert_ok(PARSE("--clip-grad", "0.1", "--ramp", "1", "2", "--fast"));
    values.clip = 1.0 / 3.0;
    assert_ok(options_to_json(&table, &values, &saved));
    assert_ok(PARSE("--clip-grad", "0.1", "--no-shuffle", "--no-fast"));
    cr_assert(options_differs(&table, saved, "clip-grad", &values, now, then, sizeof now));
    cr_assert_str_eq(now, "0.1");
    cr_assert_str_eq(then, "0.3333333333");
    cr_assert(!options_differs(&table, saved, "lr", &values, now, then, sizeof now));
    cr_assert(!options_differs(&table, saved, "fast", &values, now, then, sizeof now)); /* LOCAL */
    assert_ok(options_take_saved(&table, saved, "clip-grad", &values));
    assert_ok(options_take_saved(&table, saved, "ramp", &values));
    assert_ok(options_take_saved(&table, saved, "shuffle", &values));
    assert_ok(options_take_saved(&table, saved, "fast", &values));
    cr_assert(values.clip == 1.0 / 3.0 && values.shuffle && !values.fast);
    cr_assert_str_eq(values.ramp, "1 2");
    cJSON_Delete(saved);
}

static enum status read_words(const char *name, bool is_list, size_t *out_index,
                              const char *const *words, size_t count)
{
    const struct option_item item = {.name = name,
                                     .where = "run.yaml:7",
                                     .words = words,
                                     .word_count = count,
                                     .is_list = is_list};

    return options_read_item(&table, &item, &values, out_index);
}
#define READ(name, ...) read_words(name, false, &read_index, WORDS(__VA_ARGS__))
#define READ_LIST(name, ...) read_words(name, true, &read_index, WORDS(__VA_ARGS__))

static size_t read_index;

Test(options, a_file_sets_what_is_not_given)
{
    assert_ok(PARSE("--clip-grad", "2"));
    assert_ok(READ("clip_grad", "3"));
    cr_assert_eq(read_index, CLIP);
    assert_ok(READ("mbs", "9"));
    cr_assert_eq(read_index, BATCH);
    assert_ok(READ("dtype", "fp16"));
    assert_ok(READ("fast", "true"));
    assert_ok(READ("no-shuffle", "true"));
    assert_ok(READ_LIST("ramp", "1", "two words", "2.5"));
    cr_assert(values.clip == 2 && values.batch == 9 && values.fast && !values.shuffle);
    cr_assert_str_eq(values.dtype, "fp16");
    cr_assert_str_eq(values.ramp, "1 two\\ words 2.5");
    cr_assert(options_given(&table, "dtype", &values));
}

Test(options, nothing_in_a_file_leaves_the_default)
{
    assert_ok(PARSE("--fast"));
    assert_ok(read_words("micro-batch-size", false, &read_index, NULL, 0));
    cr_assert(values.batch == 4 && !options_given(&table, "mbs", &values));
    cr_assert_eq(read_index, BATCH);
    assert_ok(READ("no-fast", "false"));
    assert_ok(READ("no-shuffle", "false"));
    cr_assert(values.fast && values.shuffle);
}

Test(options, flags_of_others_in_a_file_count_when_they_are_on)
{
    assert_ok(PARSE("--fast"));
    assert_ok(READ("cloud-project", "mine"));
    cr_assert_eq(read_index, OPTION_COUNT);
    assert_ok(READ("swiglu", "false"));
    assert_ok(read_words("swiglu", false, &read_index, NULL, 0));
    assert_status(READ("swiglu", "true"), STATUS_USAGE);
    assert_says("run.yaml:7: '--swiglu' is not possible here: the MLP is GELU");
}

Test(options, a_file_is_checked_as_the_command_line_is_and_its_line_named)
{
    assert_ok(PARSE("--fast"));
    assert_status(READ("clip-grat", "3"), STATUS_USAGE);
    assert_says("run.yaml:7: unknown option '--clip-grat'; did you mean '--clip-grad'?");
    assert_status(READ("micro-batch-size", "2.5"), STATUS_USAGE);
    assert_says("run.yaml:7: '--micro-batch-size' is '2.5', wanted an integer from -8 to 64");
    assert_status(READ("micro-batch-size", "65"), STATUS_USAGE);
    assert_status(READ("dtype", "fp8"), STATUS_USAGE);
    assert_says("run.yaml:7: '--dtype' is 'fp8', wanted one of fp32|bf16|fp16");
    assert_status(READ_LIST("dtype", "fp16"), STATUS_USAGE);
    assert_says("run.yaml:7: '--dtype' takes one value, no list");
    assert_status(READ("no-shuffle", "maybe"), STATUS_USAGE);
    assert_says("run.yaml:7: '--shuffle' is 'maybe', wanted true or false");
}
