/* Claims about preprocessing: Megatron's bytes with any number of workers, every bad input named,
 * nothing left behind. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/mem.h"
#include "tests/unit/data/data_support.h"
#include "train/data/preprocess.h"

static char folder[SUPPORT_PATH_MAX];
static const char *const text_key[] = {"text"};

static void set_up(void)
{
    support_make_folder(folder);
}

static void tear_down(void)
{
    support_remove_folder(folder);
}

TestSuite(preprocess, .init = set_up, .fini = tear_down);

static struct tokenizer *make_tokenizer(const char *type)
{
    struct tokenizer *tokenizer = NULL;
    const struct tokenizer_config config = {
        .type = type,
        .vocab_path = support_ref("gpt2_tokenizer/encoder.json"),
        .merges_path = support_ref("gpt2_tokenizer/vocab.bpe"),
    };

    cr_assert_eq(tokenizer_create(&config, &tokenizer), STATUS_OK);
    return tokenizer;
}

static struct preprocess_config make_config(const struct tokenizer *tokenizer)
{
    return (struct preprocess_config){
        .fs = fs_posix(),
        .input = support_path("%s/input", folder),
        .format = PREPROCESS_JSON_LINES,
        .keys = text_key,
        .key_count = 1,
        .output_prefix = support_path("%s/out", folder),
        .tokenizer = tokenizer,
        .append_end_of_document = true,
        .workers = 2,
    };
}

Test(preprocess, output_has_megatrons_bytes_with_any_number_of_workers)
{
    struct tokenizer *tokenizer = make_tokenizer("GPT2BPETokenizer");
    struct preprocess_config config = make_config(tokenizer);
    const char *names[] = {"text_plain", "text_eod"};

    config.input = support_ref("megatron_data/text.jsonl");
    for (config.workers = 1; config.workers <= 4; config.workers++) {
        for (int eod = 0; eod < 2; eod++) {
            const char *ref = support_ref(support_path("megatron_data/%s", names[eod]));

            config.append_end_of_document = eod == 1;
            cr_assert_eq(preprocess_run(&config), STATUS_OK, "%s", status_last()->message);
            support_check_same(support_path("%s/out_text_document.idx", folder),
                               support_path("%s.idx", ref));
            support_check_same(support_path("%s/out_text_document.bin", folder),
                               support_path("%s.bin", ref));
        }
    }
    cr_assert_eq(support_count_files(folder), 2);
    tokenizer_destroy(tokenizer);
    cr_assert_eq(mem_used_bytes(), 0);
}

/* Some megabytes of JSON lines, of every length. */
static void write_large_input(const char *path, size_t lines)
{
    FILE *file = fopen(path, "wb");
    uint32_t draw = 1;

    cr_assert_not_null(file);
    for (size_t i = 0; i < lines; i++) {
        (void)fprintf(file, "{\"text\": \"");
        for (size_t words = i % 97; words > 0; words--) {
            draw = draw * 1664525 + 1013904223;
            (void)fprintf(file, "%s%x", words % 2 == 0 ? "word" : " ", draw >> 20);
        }
        (void)fprintf(file, "\", \"n\": %zu}\n", i);
    }
    cr_assert_eq(fclose(file), 0);
}

Test(preprocess, many_rounds_give_the_same_bytes_with_any_number_of_workers)
{
    struct tokenizer *tokenizer = make_tokenizer("GPT2BPETokenizer");
    struct preprocess_config config = make_config(tokenizer);

    write_large_input(config.input, 20000);
    config.output_prefix = support_path("%s/one", folder);
    config.workers = 1;
    cr_assert_eq(preprocess_run(&config), STATUS_OK);
    config.output_prefix = support_path("%s/four", folder);
    config.workers = 4;
    cr_assert_eq(preprocess_run(&config), STATUS_OK);
    support_check_same(support_path("%s/four_text_document.idx", folder),
                       support_path("%s/one_text_document.idx", folder));
    support_check_same(support_path("%s/four_text_document.bin", folder),
                       support_path("%s/one_text_document.bin", folder));
    tokenizer_destroy(tokenizer);
}

Test(preprocess, every_key_gets_a_whole_pair)
{
    struct tokenizer *tokenizer = make_tokenizer("ByteTokenizer");
    struct preprocess_config config = make_config(tokenizer);
    const char *keys[] = {"text", "title", "body"};

    support_write_text(config.input, "{\"text\": \"abc\", \"title\": \"d\", \"body\": \"\"}\n"
                                     "{\"body\": \"fg\", \"title\": \"\", \"text\": \"e\"}");
    config.keys = keys;
    config.key_count = 3;
    cr_assert_eq(preprocess_run(&config), STATUS_OK, "%s", status_last()->message);
    const uint64_t tokens[] = {6, 2, 3}, sequences[] = {2, 1, 1};
    for (int i = 0; i < 3; i++) {
        struct token_file file;

        cr_assert_eq(token_file_open(support_path("%s/out_%s_document", folder, keys[i]), &file),
                     STATUS_OK);
        cr_assert_eq(file.document_count, 2);
        cr_assert_eq(file.sequence_count, sequences[i]);
        cr_assert_eq(file.token_count, tokens[i]);
        token_file_close(&file);
    }
    cr_assert_eq(support_count_files(folder), 7);
    tokenizer_destroy(tokenizer);
}

/* Runs over `text` and compares with documents, given as their bytes joined by '|'. */
static void check_documents(struct preprocess_config *config, const char *text, size_t bytes,
                            const char *wanted)
{
    struct token_file file;
    char got[256] = "";
    size_t used = 0;

    support_write(config->input, text, bytes);
    cr_assert_eq(preprocess_run(config), STATUS_OK, "%s", status_last()->message);
    cr_assert_eq(token_file_open(support_path("%s/out_text_document", folder), &file), STATUS_OK);
    for (uint64_t i = 0; i < file.sequence_count; i++) {
        if (i > 0) {
            got[used++] = '|';
        }
        for (int32_t at = 0; at < token_file_length(&file, i); at++) {
            int32_t id = 0;

            token_file_copy(&file, token_file_start(&file, i) + (uint64_t)at, 1, &id);
            got[used++] = id == 0 ? '0' : (char)id;
        }
    }
    token_file_close(&file);
    cr_assert_str_eq(got, wanted);
}

Test(preprocess, plain_text_is_cut_as_asked)
{
    struct tokenizer *tokenizer = make_tokenizer("ByteTokenizer");
    struct preprocess_config config = make_config(tokenizer);
    const char *text = "\n \none\ntwo\r\n\r\n\nthree\n\t\nfour";

    config.append_end_of_document = false;
    config.format = PREPROCESS_TEXT_LINES;
    check_documents(&config, text, strlen(text), "one|two|three|four");
    config.format = PREPROCESS_TEXT_PARAGRAPHS;
    check_documents(&config, text, strlen(text), "one\ntwo|three|four");
    config.format = PREPROCESS_TEXT_FILE;
    check_documents(&config, text, strlen(text), text);
    tokenizer_destroy(tokenizer);
}

Test(preprocess, paragraphs_survive_the_cut_into_chunks)
{
    struct tokenizer *tokenizer = make_tokenizer("ByteTokenizer");
    struct preprocess_config config = make_config(tokenizer);
    FILE *file = fopen(config.input, "wb");
    struct token_file tokens;
    const size_t paragraphs = 300;

    for (size_t i = 0; i < paragraphs; i++) {
        for (size_t line = 0; line <= i; line++) {
            (void)fprintf(file, "line %zu of a paragraph that has %zu lines\n", line, i + 1);
        }
        (void)fprintf(file, "\n");
    }
    cr_assert_eq(fclose(file), 0);
    config.format = PREPROCESS_TEXT_PARAGRAPHS;
    cr_assert_eq(preprocess_run(&config), STATUS_OK);
    cr_assert_eq(token_file_open(support_path("%s/out_text_document", folder), &tokens), STATUS_OK);
    cr_assert_eq(tokens.document_count, paragraphs);
    token_file_close(&tokens);
    tokenizer_destroy(tokenizer);
}

Test(preprocess, json_strings_keep_nul_and_the_last_of_equal_keys_counts)
{
    struct tokenizer *tokenizer = make_tokenizer("ByteTokenizer");
    struct preprocess_config config = make_config(tokenizer);
    const char *text = "{\"text\": \"no\", \"text\": \"a\\u0000b\\\\u0000\"}\r\n"
                       "  {\"text\": \"\\u0041\\n\"}  \n";

    config.append_end_of_document = false;
    check_documents(&config, text, strlen(text), "a0b\\u0000|A\n");
    tokenizer_destroy(tokenizer);
}

Test(preprocess, bad_input_is_named_by_file_and_line_and_leaves_nothing)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"{\"text\": \"a\"}\n\n{\"text\": \"b\"}\n", "blank line in "},
        {"{\"text\": \"a\"}\n  \t\r\n", "blank line in "},
        {"{\"text\": \"a\"}\n{\"text\": \"b\"\n", "invalid JSON in "},
        {"{\"text\": \"a\"}\n{\"text\": \"b\"} x\n", "behind the first value"},
        {"{\"text\": \"a\"}\n[\"text\"]\n", "no JSON object in "},
        {"{\"text\": \"a\"}\n{\"body\": \"b\"}\n", "no key 'text' in "},
        {"{\"text\": \"a\"}\n{\"text\": null}\n", "list of strings under key 'text' in "},
        {"{\"text\": \"a\"}\n{\"text\": [\"b\", 7]}\n", "list of strings under key 'text' in "},
        {"{\"text\": \"a\"}\n{\"text\": 7}\n", "list of strings under key 'text' in "},
        {"{\"text\": \"a\"}\n{\"text\": \"\\ud800\"}\n", "invalid JSON in "},
        {"{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n", "invalid UTF-8 (byte 0xff) in "},
        {"{\"text\": \"a\"}\n{\"text\": \"\\u0000\\ufdd0\"}\n", "both U+0000 and U+FDD0"},
    };
    struct tokenizer *tokenizer = make_tokenizer("ByteTokenizer");
    struct preprocess_config config = make_config(tokenizer);

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        support_write_text(config.input, cases[i].text);
        cr_assert_eq(preprocess_run(&config), STATUS_BAD_DATA, "case %zu", i);
        cr_assert(support_message_has(cases[i].part), "case %zu", i);
        cr_assert(support_message_has("/input' line 2"), "case %zu", i);
        cr_assert_eq(support_count_files(folder), 1, "case %zu", i);
    }
    support_write_text(config.input, "\xef\xbb\xbf{\"text\": \"a\"}\n");
    cr_assert_eq(preprocess_run(&config), STATUS_BAD_DATA);
    cr_assert(support_message_has("byte order mark in "));
    tokenizer_destroy(tokenizer);
    cr_assert_eq(mem_used_bytes(), 0);
}

Test(preprocess, first_bad_line_is_named_whatever_worker_meets_one)
{
    struct tokenizer *tokenizer = make_tokenizer("ByteTokenizer");
    struct preprocess_config config = make_config(tokenizer);
    FILE *file = fopen(config.input, "wb");

    for (int line = 1; line <= 20000; line++) {
        bool bad = line == 6500 || line == 12000 || line == 19999;

        (void)fprintf(file, "{\"text\": \"%0100d\"%s\n", line, bad ? "" : "}");
    }
    cr_assert_eq(fclose(file), 0);
    for (config.workers = 1; config.workers <= 4; config.workers++) {
        cr_assert_eq(preprocess_run(&config), STATUS_BAD_DATA);
        cr_assert(support_message_has("line 6500;"));
    }
    tokenizer_destroy(tokenizer);
}

Test(preprocess, input_without_tokens_is_refused)
{
    struct tokenizer *tokenizer = make_tokenizer("ByteTokenizer");
    struct preprocess_config config = make_config(tokenizer);

    support_write_text(config.input, "");
    cr_assert_eq(preprocess_run(&config), STATUS_BAD_DATA);
    cr_assert(support_message_has("empty input"));
    support_write_text(config.input, "{\"text\": \"\"}\n{\"text\": \"\"}\n");
    cr_assert_eq(preprocess_run(&config), STATUS_BAD_DATA);
    cr_assert(support_message_has("no tokens for 'text'"));
    config.format = PREPROCESS_TEXT_LINES;
    support_write_text(config.input, "\n\n");
    cr_assert_eq(preprocess_run(&config), STATUS_BAD_DATA);
    cr_assert_eq(support_count_files(folder), 1);
    tokenizer_destroy(tokenizer);
}

Test(preprocess, missing_input_and_output_folder_are_named)
{
    struct tokenizer *tokenizer = make_tokenizer("ByteTokenizer");
    struct preprocess_config config = make_config(tokenizer);

    cr_assert_eq(preprocess_run(&config), STATUS_NOT_FOUND);
    cr_assert(support_message_has("/input'"));
    support_write_text(config.input, "{\"text\": \"a\"}\n");
    config.output_prefix = support_path("%s/no/out", folder);
    cr_assert_eq(preprocess_run(&config), STATUS_NOT_FOUND);
    cr_assert(support_message_has("/no/out_text_document"));
    config.input = folder;
    cr_assert_eq(preprocess_run(&config), STATUS_BAD_DATA);
    cr_assert(support_message_has("folder instead of a regular file"));
    tokenizer_destroy(tokenizer);
}

static bool stop_at_once(void)
{
    return true;
}

Test(preprocess, stopped_run_leaves_nothing)
{
    struct tokenizer *tokenizer = make_tokenizer("ByteTokenizer");
    struct preprocess_config config = make_config(tokenizer);

    support_write_text(config.input, "{\"text\": \"a\"}\n");
    config.should_stop = stop_at_once;
    cr_assert_eq(preprocess_run(&config), STATUS_INTERRUPTED);
    cr_assert_eq(support_count_files(folder), 1);
    tokenizer_destroy(tokenizer);
}

Test(preprocess, failed_allocations_are_reported_and_leave_nothing)
{
    struct tokenizer *tokenizer = make_tokenizer("ByteTokenizer");
    struct preprocess_config config = make_config(tokenizer);
    size_t before = mem_used_bytes();
    uint64_t n = 0;
    enum status st = STATUS_NO_MEMORY;

    support_write_text(config.input, "{\"text\": \"a\\u0000\"}\n{\"text\": \"\"}\n");
    config.workers = 1;
    while (st != STATUS_OK && ++n < 1000) {
        mem_fail_at(n);
        st = preprocess_run(&config);
        mem_fail_at(0);
        cr_assert(st == STATUS_OK || st == STATUS_NO_MEMORY);
        cr_assert_eq(mem_used_bytes(), before, "allocation %zu", (size_t)n);
        cr_assert_eq(support_count_files(folder), st == STATUS_OK ? 3 : 1);
    }
    cr_assert(n > 10 && n < 1000);
    tokenizer_destroy(tokenizer);
}
