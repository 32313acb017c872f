/* The log lines against Megatron's, letter by letter. */
#define PCRE2_CODE_UNIT_WIDTH 8

#include <criterion/criterion.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "train/metrics/log_line.h"
#include "train/metrics/throughput.h"

Test(log_line, training_line_is_megatrons_to_the_letter)
{
    char text[LOG_LINE_TEXT_MAX];
    struct log_line line = {.wall_ns = 1796096659123456789,
                            .step = 10,
                            .train_steps = 200,
                            .consumed_samples = 160,
                            .step_ms = 31.25,
                            .learning_rate = 1e-3 / 3,
                            .global_batch = 16,
                            .loss = 5.5312345,
                            .grad_norm = 1.2345};

    setenv("TZ", "UTC", 1);
    tzset();
    log_line_format(&line, text);
    cr_assert_str_eq(
        text, " [2026-12-01 03:44:19.123456] iteration       10/     200 | consumed samples:"
              "          160 | elapsed time per iteration (ms): 31.2 | learning rate: 3.333333E-04"
              " | global batch size:    16 | lm loss: 5.531235E+00 | loss scale: 1.0 |"
              " grad norm: 1.234 | number of skipped iterations:   0 |"
              " number of nan iterations:   0 |");
}

Test(log_line, validation_stands_between_two_rules)
{
    char text[LOG_LINE_TEXT_MAX];
    const char *line = " validation loss at iteration 100 | lm loss value: 2.000000E+00 |"
                       " lm loss PPL: 7.389056E+00 | ";
    char rule[128] = {0}, expected[512];

    memset(rule, '-', strlen(line) + 1);
    snprintf(expected, sizeof(expected), "%s\n%s\n%s", rule, line, rule);
    log_line_format_validation(100, "", 2.0, text);
    cr_assert_str_eq(text, expected);
}

Test(log_line, perplexity_is_cut_at_the_exponential_of_20)
{
    char text[LOG_LINE_TEXT_MAX];

    log_line_format_validation(1, "", 1000.0, text);
    cr_assert(strstr(text, "lm loss PPL: 4.851652E+08") != NULL, "%s", text);
}

Test(log_line, the_validations_after_the_training_name_their_set)
{
    char text[LOG_LINE_TEXT_MAX];

    log_line_format_validation(100, "test", 2.0, text);
    const char *line = strchr(text, '\n') + 1;
    const char *wanted = " validation loss at iteration 100 on test set | lm loss value: "
                         "2.000000E+00 | lm loss PPL: 7.389056E+00 | \n";
    cr_assert(strncmp(line, wanted, strlen(wanted)) == 0, "%s", line);
    cr_assert_eq((size_t)(line - text), strlen(wanted) + 1);
}

Test(log_line, asked_fields_stand_where_megatron_has_them)
{
    char text[LOG_LINE_TEXT_MAX];
    struct log_line line = {.has_throughput = true,
                            .tflops = 123.456,
                            .has_zero_count = true,
                            .zero_count = 12345,
                            .has_params_norm = true,
                            .params_norm = 7.5};

    log_line_format(&line, text);
    cr_assert_not_null(
        strstr(text, " (ms): 0.0 | throughput per GPU (TFLOP/s/GPU): 123.5 | learn"));
    cr_assert_not_null(
        strstr(text, " grad norm: 0.000 | num zeros: 12345 | params norm: 7.500 | number of sk"));
}

/* The number that a script finds in a line by a regular expression with one group. */
static double found_number(const char *pattern, const char *text)
{
    int error = 0;
    PCRE2_SIZE at = 0, bytes = 0;
    PCRE2_UCHAR *word = NULL;
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, 0, &error, &at, NULL);
    cr_assert_not_null(code, "%s", pattern);
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(code, NULL);

    int groups = pcre2_match(code, (PCRE2_SPTR)text, strlen(text), 0, 0, match, NULL);
    cr_assert_eq(groups, 2, "'%s' is not in '%s'", pattern, text);
    cr_assert_eq(pcre2_substring_get_bynumber(match, 1, &word, &bytes), 0);
    double number = strtod((const char *)word, NULL);
    pcre2_substring_free(word);
    pcre2_match_data_free(match);
    pcre2_code_free(code);
    return number;
}

/* The form in which scripts around Megatron look for a field: its name, one or more blanks, digits
 * with a point or an exponent; several fields of a line in their order with anything between. */
Test(log_line, scripts_find_the_fields_by_their_regular_expressions)
{
    char text[LOG_LINE_TEXT_MAX];
    struct log_line line = {.step = 10,
                            .train_steps = 200,
                            .consumed_samples = 160,
                            .step_ms = 31.5,
                            .learning_rate = 2.5e-4,
                            .global_batch = 16,
                            .loss = 5.5,
                            .grad_norm = 1.25,
                            .has_throughput = true,
                            .tflops = 123.5};

    log_line_format(&line, text);
    cr_expect_eq(found_number("iteration\\s+(\\d+)/\\s*\\d+ \\|", text), 10);
    cr_expect_eq(found_number("iteration\\s+\\d+/\\s*(\\d+) \\|", text), 200);
    cr_expect_eq(found_number("\\| consumed samples:\\s+(\\d+) \\|", text), 160);
    cr_expect_eq(found_number("elapsed time per iteration \\(ms\\): ([\\d.]+) \\|", text), 31.5);
    cr_expect_eq(found_number("throughput per GPU \\(TFLOP/s/GPU\\): ([\\d.]+) \\|", text), 123.5);
    cr_expect_eq(found_number("learning rate: ([\\d.E+-]+) \\|", text), 2.5e-4);
    cr_expect_eq(found_number("global batch size:\\s+(\\d+) \\|", text), 16);
    cr_expect_eq(found_number("elapsed time.*lm loss: ([\\d.E+-]+) .*grad norm", text), 5.5);
    cr_expect_eq(found_number("lm loss: .*grad norm: ([\\d.]+) \\|", text), 1.25);
    cr_expect_eq(found_number("skipped iterations:\\s+(\\d+) \\|", text), 0);
    cr_expect_eq(found_number("nan iterations:\\s+(\\d+) \\|$", text), 0);

    log_line_format_validation(100, "", 2.0, text);
    cr_expect_eq(found_number("validation loss at iteration (\\d+) \\|", text), 100);
    cr_expect_eq(found_number("lm loss value: ([\\d.E+-]+) \\|", text), 2);
}

/* The llm.c GPT-2 124M: 6N + 12LCT of N = 124 million with the head's padded vocabulary. */
Test(log_line, both_conventions_of_throughput_follow_from_the_sizes)
{
    struct gpt_config model = {.layers = 12,
                               .hidden = 768,
                               .ffn_hidden = 3072,
                               .vocab = 50257,
                               .vocab_divisor = 128,
                               .sequence = 1024};
    double weights = 12 * 12.0 * 768 * 768 + 50304.0 * 768;
    struct throughput sample = throughput_of_sample(&model, 1);

    cr_assert_eq(sample.full_flops, 1024 * (6 * weights + 12.0 * 12 * 768 * 1024));
    cr_assert_eq(sample.causal_flops, 1024 * (6 * weights + 6.0 * 12 * 768 * 1024));
}
