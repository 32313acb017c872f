/* Claims about the tokenizers: the ids of transformers and tiktoken, and refused vocabularies. */
#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/mem.h"
#include "tests/unit/data/data_support.h"
#include "train/data/tokenizer.h"

static struct tokenizer *make_gpt2(void)
{
    struct tokenizer *tokenizer = NULL;
    const struct tokenizer_config config = {
        .type = "GPT2BPETokenizer",
        .vocab_path = support_ref("gpt2_tokenizer/encoder.json"),
        .merges_path = support_ref("gpt2_tokenizer/vocab.bpe"),
    };

    cr_assert_eq(tokenizer_create(&config, &tokenizer), STATUS_OK, "%s", status_last()->message);
    return tokenizer;
}

static void check_sha256(const char *name, const char *wanted)
{
    size_t count = 0;
    char *bytes = support_read(support_ref(name), &count), text[65];
    unsigned char digest[32];

    cr_assert_eq(EVP_Digest(bytes, count, digest, NULL, EVP_sha256(), NULL), 1);
    for (int i = 0; i < 32; i++) {
        (void)snprintf(text + 2 * i, 3, "%02x", digest[i]);
    }
    cr_assert_str_eq(text, wanted);
    free(bytes);
}

Test(tokenizer, reference_vocabulary_is_gpt2s)
{
    check_sha256("gpt2_tokenizer/encoder.json",
                 "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783");
    check_sha256("gpt2_tokenizer/vocab.bpe",
                 "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5");
}

/* Encodes and holds the ids and the way back against one line of tricky.jsonl. */
static void check_line(const struct tokenizer *tokenizer, struct tokenizer_scratch *scratch,
                       const cJSON *line)
{
    const char *name = cJSON_GetObjectItem(line, "name")->valuestring;
    const char *text = cJSON_GetObjectItem(line, "text")->valuestring;
    size_t bytes = (size_t)cJSON_GetObjectItem(line, "utf8_bytes")->valueint, at = 0;
    const cJSON *id = NULL;
    struct token_buffer tokens = {0};
    size_t i = 0;

    cr_assert_eq(strlen(text), bytes, "%s", name);
    cr_assert_eq(tokenizer_find_invalid_utf8(text, bytes), bytes, "%s", name);
    cr_assert_eq(tokenizer_encode(tokenizer, scratch, text, bytes, &tokens), STATUS_OK);
    cJSON_ArrayForEach(id, cJSON_GetObjectItem(line, "ids"))
    {
        cr_assert_lt(i, tokens.count, "%s: too few ids", name);
        cr_assert_eq(tokens.ids[i], id->valueint, "%s: id %zu is %d, wanted %d", name, i,
                     tokens.ids[i], id->valueint);
        i++;
    }
    cr_assert_eq(tokens.count, i, "%s: too many ids", name);
    for (i = 0; i < tokens.count; i++) {
        size_t count = 0;
        const char *piece = tokenizer_piece(tokenizer, tokens.ids[i], &count);

        cr_assert(at + count <= bytes && memcmp(piece, text + at, count) == 0, "%s", name);
        at += count;
    }
    cr_assert_eq(at, bytes);
    token_buffer_deinit(&tokens);
}

Test(tokenizer, gpt2_gives_the_ids_of_transformers_and_tiktoken)
{
    struct tokenizer *tokenizer = make_gpt2();
    struct tokenizer_scratch *scratch = NULL;
    size_t count = 0;
    int lines = 0;
    char *text = support_read(support_ref("bpe/tricky.jsonl"), &count), *rest = NULL;

    cr_assert_eq(tokenizer->vocab_size, 50257);
    cr_assert_eq(tokenizer->end_of_document, 50256);
    cr_assert_eq(tokenizer_create_scratch(tokenizer, &scratch), STATUS_OK);
    for (char *at = strtok_r(text, "\n", &rest); at != NULL; at = strtok_r(NULL, "\n", &rest)) {
        cJSON *line = cJSON_Parse(at);

        /* Twice: computed, then from the cache. */
        check_line(tokenizer, scratch, line);
        check_line(tokenizer, scratch, line);
        cJSON_Delete(line);
        lines++;
    }
    cr_assert_eq(lines, 51);
    free(text);
    tokenizer_destroy_scratch(tokenizer, scratch);
    tokenizer_destroy(tokenizer);
    cr_assert_eq(mem_used_bytes(), 0);
}

/* U+180E is White_Space for PCRE2's \s, and not for the peers' patterns, which take " \u180e!" as
 * one word; the ids are tiktoken's. */
Test(tokenizer, mongolian_vowel_separator_is_no_space)
{
    struct tokenizer *tokenizer = make_gpt2();
    struct tokenizer_scratch *scratch = NULL;
    struct token_buffer tokens = {0};

    cr_assert_eq(tokenizer_create_scratch(tokenizer, &scratch), STATUS_OK);
    cr_assert_eq(tokenizer_encode(tokenizer, scratch, " \xe1\xa0\x8e!", 5, &tokens), STATUS_OK);
    cr_assert_eq(tokens.count, 4);
    cr_assert_arr_eq(tokens.ids, ((int32_t[]){28053, 254, 236, 0}), 16);
    token_buffer_deinit(&tokens);
    tokenizer_destroy_scratch(tokenizer, scratch);
    tokenizer_destroy(tokenizer);
}

Test(tokenizer, a_megabyte_without_a_break_takes_no_quadratic_time)
{
    struct tokenizer *tokenizer = make_gpt2();
    struct tokenizer_scratch *scratch = NULL;
    struct token_buffer tokens = {0};
    const size_t bytes = (size_t)1 << 20;
    char *text = malloc(bytes);

    for (size_t i = 0; i < bytes; i++) {
        text[i] = (char)('a' + (i * i / 7) % 26);
    }
    cr_assert_eq(tokenizer_create_scratch(tokenizer, &scratch), STATUS_OK);
    int64_t start = clock_monotonic_ns();
    cr_assert_eq(tokenizer_encode(tokenizer, scratch, text, bytes, &tokens), STATUS_OK);
    cr_assert_lt(clock_monotonic_ns() - start, (int64_t)20 * 1000 * 1000 * 1000);
    cr_assert_gt(tokens.count, bytes / 10);
    token_buffer_deinit(&tokens);
    free(text);
    tokenizer_destroy_scratch(tokenizer, scratch);
    tokenizer_destroy(tokenizer);
}

Test(tokenizer, bytes_are_their_own_ids)
{
    struct tokenizer *tokenizer = NULL;
    struct tokenizer_scratch *scratch = NULL;
    struct token_buffer tokens = {0};
    size_t count = 0;

    cr_assert_eq(tokenizer_create(&(struct tokenizer_config){.type = "ByteTokenizer"}, &tokenizer),
                 STATUS_OK);
    cr_assert_eq(tokenizer->vocab_size, 257);
    cr_assert_eq(tokenizer->end_of_document, 256);
    cr_assert_eq(tokenizer_create_scratch(tokenizer, &scratch), STATUS_OK);
    cr_assert_eq(tokenizer_encode(tokenizer, scratch, "a\0\xff", 3, &tokens), STATUS_OK);
    cr_assert_eq(tokens.count, 3);
    cr_assert_arr_eq(tokens.ids, ((int32_t[]){97, 0, 255}), 12);
    cr_assert_eq(*tokenizer_piece(tokenizer, 97, &count), 'a');
    cr_assert_eq(count, 1);
    cr_assert_not_null(tokenizer_piece(tokenizer, 256, &count));
    cr_assert_eq(count, 0);
    cr_assert_null(tokenizer_piece(tokenizer, 257, &count));
    cr_assert_null(tokenizer_piece(tokenizer, -1, &count));
    token_buffer_deinit(&tokens);
    tokenizer_destroy_scratch(tokenizer, scratch);
    tokenizer_destroy(tokenizer);
    cr_assert_eq(mem_used_bytes(), 0);
}

Test(tokenizer, invalid_utf8_is_found_where_it_begins)
{
    static const struct {
        const char *text;
        size_t bytes, valid;
    } cases[] = {
        {"", 0, 0},
        {"plain", 5, 5},
        {"\xc3\xa9\xe6\xbc\xa2\xf0\x9f\x9a\x80", 9, 9},
        {"\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf", 10, 10},
        {"sixteen plain by\xff", 17, 16},
        {"ab\x80", 3, 2},             /* continuation alone */
        {"ab\xc3", 3, 2},             /* cut */
        {"ab\xe6\xbc", 4, 2},         /* cut */
        {"ab\xc0\xaf", 4, 2},         /* overlong */
        {"ab\xe0\x80\xaf", 5, 2},     /* overlong */
        {"ab\xf0\x80\x80\xaf", 6, 2}, /* overlong */
        {"ab\xed\xa0\x80", 5, 2},     /* surrogate */
        {"ab\xf4\x90\x80\x80", 6, 2}, /* above U+10FFFF */
        {"ab\xf5\x80\x80\x80", 6, 2},
        {"ab\xe6\x41\x42", 5, 2},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert_eq(tokenizer_find_invalid_utf8(cases[i].text, cases[i].bytes), cases[i].valid,
                     "case %zu", i);
    }
}

static void check_refused(const char *vocab, const char *merges, enum status wanted,
                          const char *part)
{
    struct tokenizer *tokenizer = NULL;
    const struct tokenizer_config config = {
        .type = "GPT2BPETokenizer", .vocab_path = vocab, .merges_path = merges};

    cr_assert_eq(tokenizer_create(&config, &tokenizer), wanted, "%s", status_last()->message);
    cr_assert_null(tokenizer);
    cr_assert(support_message_has(part));
    cr_assert_eq(mem_used_bytes(), 0);
}

Test(tokenizer, wrong_files_are_refused_by_name)
{
    char folder[SUPPORT_PATH_MAX];
    const char *vocab = support_ref("gpt2_tokenizer/encoder.json");
    const char *merges = support_ref("gpt2_tokenizer/vocab.bpe");

    support_make_folder(folder);
    const char *bad = support_path("%s/bad", folder);
    check_refused(NULL, merges, STATUS_USAGE, "--vocab-file");
    check_refused(vocab, "", STATUS_USAGE, "--merge-file");
    check_refused(bad, merges, STATUS_NOT_FOUND, bad);
    check_refused(merges, merges, STATUS_BAD_DATA, "no vocabulary in");
    support_write_text(bad, "{}");
    check_refused(bad, merges, STATUS_BAD_DATA, "no vocabulary in");
    support_write_text(bad, "{\"a\": 0, \"b\": 2}");
    check_refused(bad, merges, STATUS_BAD_DATA, "token 'b'");
    support_write_text(bad, "{\"a\": 0, \"b\": 0}");
    check_refused(bad, merges, STATUS_BAD_DATA, "each once");
    support_write_text(bad, "{\"a\": 0, \"b\": 1}");
    check_refused(bad, merges, STATUS_BAD_DATA, "no token for byte 0x00");
    support_write_text(bad, "{\"a b\": 0}");
    check_refused(bad, merges, STATUS_BAD_DATA, "does not spell bytes");
    check_refused(vocab, vocab, STATUS_BAD_DATA, "line 1");
    support_write_text(bad, "#version: 0.2\nh e\nqqq zzz\n");
    check_refused(vocab, bad, STATUS_BAD_DATA, "line 3");
    support_remove_folder(folder);
}

Test(tokenizer, unknown_type_is_refused)
{
    struct tokenizer *tokenizer = NULL;

    cr_assert_eq(tokenizer_create(&(struct tokenizer_config){.type = "SentencePiece"}, &tokenizer),
                 STATUS_USAGE);
    cr_assert(support_message_has("'SentencePiece'"));
}
