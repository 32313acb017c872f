/* Claims about SentencePiece models: the ids of Python's sentencepiece under Megatron's rules, new
 * and old, and refused files. The references are from tests/refs/sentencepiece/make.py. */
#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/mem.h"
#include "tests/unit/data/data_support.h"
#include "train/data/preprocess.h"
#include "train/data/tokenizer.h"

#define TEXTS 64

static const struct variant {
    const char *name, *model, *type; /* its name in the references */
    bool legacy;
} variants[] = {
    {"unigram", "unigram", "SentencePieceTokenizer", false},
    {"unigram", "unigram", "GPTSentencePieceTokenizer", false},
    {"unigram", "unigram", "GPTSentencePieceTokenizer", true},
    {"unigram", "unigram", "Llama2Tokenizer", false},
    {"unigram_legacy", "unigram", "SentencePieceTokenizer", true},
    {"unigram_llama2", "unigram", "Llama2Tokenizer", true},
    {"bpe", "bpe", "SentencePieceTokenizer", false},
    {"bpe_legacy", "bpe", "SentencePieceTokenizer", true},
    {"bpe_llama2", "bpe", "Llama2Tokenizer", true},
};
#define VARIANTS (sizeof variants / sizeof variants[0])

static enum status create(const char *type, const char *path, bool legacy,
                          struct tokenizer **out_tokenizer)
{
    return tokenizer_create(
        &(struct tokenizer_config){.type = type, .model_path = path, .legacy = legacy},
        out_tokenizer);
}

static struct tokenizer *make_variant(const struct variant *variant)
{
    struct tokenizer *tokenizer = NULL;

    cr_assert_eq(create(variant->type,
                        support_ref(support_path("sentencepiece/%s.model", variant->model)),
                        variant->legacy, &tokenizer),
                 STATUS_OK, "%s", status_last()->message);
    return tokenizer;
}

static void encode(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                   struct token_buffer *out_tokens)
{
    struct tokenizer_scratch *scratch = NULL;

    cr_assert_eq(tokenizer_create_scratch(tokenizer, &scratch), STATUS_OK);
    cr_assert_eq(tokenizer_encode(tokenizer, scratch, text, bytes, out_tokens), STATUS_OK, "%s",
                 status_last()->message);
    tokenizer_destroy_scratch(tokenizer, scratch);
}

/* The value of a JSON string, NUL included, which cJSON does not give. Only the reference
 * "nul" has one. */
static size_t text_bytes(const cJSON *line, const char **out_text)
{
    static const char nul[] = "a\0b";

    *out_text = cJSON_GetObjectItem(line, "text")->valuestring;
    if (strcmp(cJSON_GetObjectItem(line, "name")->valuestring, "nul") == 0) {
        *out_text = nul;
        return sizeof nul;
    }
    return strlen(*out_text);
}

static void check_line(const struct tokenizer *tokenizer, const char *variant, const cJSON *line)
{
    const char *name = cJSON_GetObjectItem(line, "name")->valuestring, *text = NULL;
    size_t bytes = text_bytes(line, &text), i = 0;
    const cJSON *id = NULL;
    struct token_buffer tokens = {0};

    encode(tokenizer, text, bytes, &tokens);
    cJSON_ArrayForEach(id, cJSON_GetObjectItem(line, variant))
    {
        cr_assert_lt(i, tokens.count, "%s %s: too few ids", variant, name);
        cr_assert_eq(tokens.ids[i], id->valueint, "%s %s: id %zu is %d, wanted %d", variant, name,
                     i, tokens.ids[i], id->valueint);
        i++;
    }
    cr_assert_eq(tokens.count, i, "%s %s: too many ids", variant, name);
    token_buffer_deinit(&tokens);
}

Test(tokenizer_sentencepiece, ids_are_those_of_python)
{
    size_t count = 0;
    char *text = support_read(support_ref("sentencepiece/tricky.jsonl"), &count), *rest = NULL;
    struct tokenizer *tokenizers[VARIANTS];
    int lines = 0;

    for (size_t i = 0; i < VARIANTS; i++) {
        tokenizers[i] = make_variant(&variants[i]);
    }
    for (char *at = strtok_r(text, "\n", &rest); at != NULL; at = strtok_r(NULL, "\n", &rest)) {
        cJSON *line = cJSON_Parse(at);

        for (size_t i = 0; i < VARIANTS; i++) {
            check_line(tokenizers[i], variants[i].name, line);
        }
        cJSON_Delete(line);
        lines++;
    }
    cr_assert_eq(lines, TEXTS);
    free(text);
    for (size_t i = 0; i < VARIANTS; i++) {
        tokenizer_destroy(tokenizers[i]);
    }
    cr_assert_eq(mem_used_bytes(), 0);
}

Test(tokenizer_sentencepiece, sizes_and_ends_are_megatrons)
{
    size_t count = 0;
    char *text = support_read(support_ref("sentencepiece/info.json"), &count);
    cJSON *info = cJSON_Parse(text);

    for (size_t i = 0; i < VARIANTS; i++) {
        struct tokenizer *tokenizer = make_variant(&variants[i]);
        const cJSON *wanted = cJSON_GetObjectItem(info, variants[i].name);

        cr_assert_eq(tokenizer->vocab_size, cJSON_GetObjectItem(wanted, "vocab_size")->valueint);
        cr_assert_eq(tokenizer->end_of_document,
                     cJSON_GetObjectItem(wanted, "end_of_document")->valueint);
        tokenizer_destroy(tokenizer);
    }
    cJSON_Delete(info);
    free(text);
}

Test(tokenizer_sentencepiece, token_files_have_megatrons_bytes_with_any_number_of_workers)
{
    static const char *const keys[] = {"text"};
    char folder[SUPPORT_PATH_MAX];

    support_make_folder(folder);
    for (size_t i = 0; i < VARIANTS; i++) {
        struct tokenizer *tokenizer = make_variant(&variants[i]);
        const char *ref = support_ref(support_path("sentencepiece/%s", variants[i].name));
        struct preprocess_config config = {
            .fs = fs_posix(),
            .input = support_ref("sentencepiece/tricky.jsonl"),
            .keys = keys,
            .key_count = 1,
            .output_prefix = support_path("%s/out", folder),
            .tokenizer = tokenizer,
            .append_end_of_document = true,
            .workers = 1 + (int)i % 4,
        };

        cr_assert_eq(preprocess_run(&config), STATUS_OK, "%s", status_last()->message);
        support_check_same(support_path("%s/out_text_document.idx", folder),
                           support_path("%s.idx", ref));
        support_check_same(support_path("%s/out_text_document.bin", folder),
                           support_path("%s.bin", ref));
        tokenizer_destroy(tokenizer);
    }
    support_remove_folder(folder);
}

/* Many documents of one model at once: all threads share it. */
Test(tokenizer_sentencepiece, threads_share_a_model)
{
    static const char *const keys[] = {"text"};
    char folder[SUPPORT_PATH_MAX];
    size_t count = 0;
    char *text = support_read(support_ref("megatron_data/text.jsonl"), &count);
    struct tokenizer *tokenizer = make_variant(&variants[0]);

    support_make_folder(folder);
    FILE *file = fopen(support_path("%s/in", folder), "wb");
    for (int i = 0; i < 20; i++) {
        cr_assert_eq(fwrite(text, 1, count, file), count);
    }
    cr_assert_eq(fclose(file), 0);
    for (int workers = 1; workers <= 4; workers += 3) {
        struct preprocess_config config = {
            .fs = fs_posix(),
            .input = support_path("%s/in", folder),
            .keys = keys,
            .key_count = 1,
            .output_prefix = support_path("%s/%d", folder, workers),
            .tokenizer = tokenizer,
            .workers = workers,
        };

        cr_assert_eq(preprocess_run(&config), STATUS_OK, "%s", status_last()->message);
    }
    support_check_same(support_path("%s/4_text_document.idx", folder),
                       support_path("%s/1_text_document.idx", folder));
    support_check_same(support_path("%s/4_text_document.bin", folder),
                       support_path("%s/1_text_document.bin", folder));
    free(text);
    tokenizer_destroy(tokenizer);
    support_remove_folder(folder);
}

/* The BPE model keeps every byte, so that its pieces spell the text. */
Test(tokenizer_sentencepiece, pieces_spell_the_text)
{
    static const char text[] = "In the  beginning\t\n \xe6\xbc\xa2\xf0\x9f\x9a\x80 12!";
    struct tokenizer *tokenizer = make_variant(&variants[6]);
    struct token_buffer tokens = {0};
    size_t at = 0, count = 0;

    encode(tokenizer, text, sizeof text - 1, &tokens);
    for (size_t i = 0; i < tokens.count; i++) {
        const char *piece = tokenizer_piece(tokenizer, tokens.ids[i], &count);

        cr_assert(at + count < sizeof text && memcmp(piece, text + at, count) == 0, "at %zu", at);
        at += count;
    }
    cr_assert_eq(at, sizeof text - 1);
    cr_assert_not_null(tokenizer_piece(tokenizer, tokenizer->end_of_document, &count));
    cr_assert_eq(count, 0);
    cr_assert_null(tokenizer_piece(tokenizer, (int32_t)tokenizer->vocab_size, &count));
    token_buffer_deinit(&tokens);
    tokenizer_destroy(tokenizer);
}

static void check_refused(const char *path, const char *part)
{
    struct tokenizer *tokenizer = NULL;

    cr_assert_eq(create("SentencePieceTokenizer", path, false, &tokenizer), STATUS_BAD_DATA, "%s",
                 status_last()->message);
    cr_assert_null(tokenizer);
    cr_assert(support_message_has(part), "%s", status_last()->message);
    cr_assert(support_message_has(path));
    cr_assert_eq(mem_used_bytes(), 0);
}

/* Wherever it is cut: between two pieces, the library would take what is left. The last 2 bytes
 * are an empty field that says nothing about encoding. */
Test(tokenizer_sentencepiece, a_part_of_a_model_is_refused)
{
    char folder[SUPPORT_PATH_MAX];
    size_t count = 0;
    char *model = support_read(support_ref("sentencepiece/bpe.model"), &count);

    support_make_folder(folder);
    const char *path = support_path("%s/part", folder);
    for (size_t left = 0; left < count - 2; left += 1 + left % 5) {
        support_write(path, model, left);
        check_refused(path, "only a part of one");
    }
    support_remove_folder(folder);
    free(model);
}

/* The library would walk the tables of a damaged normaliser out of its memory: each flipped bit is
 * refused, or does no more harm than other ids. */
Test(tokenizer_sentencepiece, a_damaged_normaliser_is_refused_or_harmless)
{
    static const char text[] =
        "\xef\xbc\xa1 e\xcc\x81 \xef\xac\x81 caf\xc3\xa9\t\xe2\x85\xa7 \xc5\xbf";
    char folder[SUPPORT_PATH_MAX];
    size_t count = 0;
    char *model = support_read(support_ref("sentencepiece/unigram.model"), &count);
    char *table = memmem(model, count, "user_defined", 12); /* its name, before its tables */
    int refused = 0, taken = 0;

    cr_assert_not_null(table);
    support_make_folder(folder);
    const char *path = support_path("%s/model", folder);
    for (size_t at = (size_t)(table - model) + 20; at + 40 < count; at += 13) {
        struct tokenizer *tokenizer = NULL;
        char bit = (char)(1 << at % 8);

        model[at] ^= bit;
        support_write(path, model, count);
        model[at] ^= bit;
        if (create("SentencePieceTokenizer", path, false, &tokenizer) == STATUS_OK) {
            struct token_buffer tokens = {0};

            encode(tokenizer, text, sizeof text - 1, &tokens);
            token_buffer_deinit(&tokens);
            tokenizer_destroy(tokenizer);
            taken++;
        } else {
            refused++;
        }
    }
    cr_assert(refused > 20 && taken > 20, "%d refused, %d taken", refused, taken);
    support_remove_folder(folder);
    free(model);
}

/* Writes a model with the first `from` replaced by `to`, of the same length. */
static void write_changed(const char *path, const char *name, const char *from, const char *to)
{
    size_t count = 0;
    char *model = support_read(support_ref(name), &count);
    char *at = memmem(model, count, from, strlen(from));

    cr_assert_not_null(at);
    memcpy(at, to, strlen(to));
    support_write(path, model, count);
    free(model);
}

Test(tokenizer_sentencepiece, wrong_files_are_refused_by_name)
{
    char folder[SUPPORT_PATH_MAX];
    struct tokenizer *tokenizer = NULL;

    support_make_folder(folder);
    const char *bad = support_path("%s/bad", folder);
    cr_assert_eq(create("Llama2Tokenizer", "", false, &tokenizer), STATUS_USAGE);
    cr_assert(support_message_has("Llama2Tokenizer needs --tokenizer-model"));
    cr_assert_eq(create("Llama2Tokenizer", bad, false, &tokenizer), STATUS_NOT_FOUND);
    cr_assert(support_message_has(bad));
    support_write_text(bad, "{\"model\": 1}\n");
    check_refused(bad, "is no SentencePiece model");
    /* The piece "a" twice, and no "e". */
    write_changed(bad, "sentencepiece/unigram.model", "\n\001e\025", "\n\001a\025");
    check_refused(bad, "unusable SentencePiece model");
    support_write_text(bad, "");
    cr_assert_eq(truncate(bad, (off_t)2 << 30), 0);
    cr_assert_eq(create("Llama2Tokenizer", bad, false, &tokenizer), STATUS_CORRUPT);
    cr_assert(support_message_has("2147483648 bytes"));
    cr_assert_eq(mem_used_bytes(), 0);
    support_remove_folder(folder);
}

Test(tokenizer_sentencepiece, models_without_marks)
{
    char folder[SUPPORT_PATH_MAX];
    struct tokenizer *tokenizer = NULL;

    support_make_folder(folder);
    const char *path = support_path("%s/model", folder);
    write_changed(path, "sentencepiece/unigram.model", "</s>", "</x>");
    cr_assert_eq(create("SentencePieceTokenizer", path, false, &tokenizer), STATUS_OK);
    cr_assert_eq(tokenizer->end_of_document, -1);
    tokenizer_destroy(tokenizer);
    cr_assert_eq(create("SentencePieceTokenizer", path, true, &tokenizer), STATUS_OK);
    cr_assert_eq(tokenizer->end_of_document, 501);
    cr_assert_eq(tokenizer->vocab_size, 505); /* <EOS> too */
    tokenizer_destroy(tokenizer);
    write_changed(path, "sentencepiece/unigram.model", "<s>", "<x>");
    cr_assert_eq(create("Llama2Tokenizer", path, true, &tokenizer), STATUS_BAD_DATA);
    cr_assert(support_message_has("begins each text"));
    support_remove_folder(folder);
}

Test(tokenizer_sentencepiece, a_text_beyond_the_librarys_memory_is_refused)
{
    const size_t bytes = ((size_t)64 << 20) + 1;
    char *text = calloc(bytes, 1);
    struct tokenizer *tokenizer = make_variant(&variants[0]);
    struct tokenizer_scratch *scratch = NULL;
    struct token_buffer tokens = {0};

    cr_assert_eq(tokenizer_create_scratch(tokenizer, &scratch), STATUS_OK);
    cr_assert_eq(tokenizer_encode(tokenizer, scratch, text, bytes, &tokens), STATUS_BAD_DATA);
    cr_assert(support_message_has("67108865 bytes"));
    cr_assert_eq(tokens.count, 0);
    tokenizer_destroy_scratch(tokenizer, scratch);
    tokenizer_destroy(tokenizer);
    free(text);
}
