/* holdfast preprocess: text to token files. The command line only; the work is preprocess.c. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "ckpt/base/log.h"
#include "ckpt/base/options.h"
#include "ckpt/base/thread.h"
#include "train/data/preprocess.h"

#define PROGRAM "holdfast preprocess"

#define FIELD_BOOL(name) bool name;
#define FIELD_INT(name) int64_t name;
#define FIELD_TEXT(name) char name[OPTIONS_TEXT_MAX];
#define FIELD_CHOICE(name) FIELD_TEXT(name)

#define OPTION(field, ...) OPTION_INDEX_##field,
enum option_index {
#include "train/data/preprocess_options.def"
    OPTION_COUNT
};
#undef OPTION

struct preprocess_options {
#define OPTION(field, type, ...) FIELD_##type(field)
#include "train/data/preprocess_options.def"
#undef OPTION
    bool given[OPTION_COUNT];
};

static const struct option option_rows[] = {
#define OPTION(field, type, name, default_text, min, max, choices, common, help)                   \
    {name,         OPTION_##type, offsetof(struct preprocess_options, field),                      \
     default_text, min,           max,                                                             \
     choices,      OPTION_LOCAL,  "preprocess",                                                    \
     common,       help},
#include "train/data/preprocess_options.def"
#undef OPTION
};

static const struct option_table table = {
    .program = PROGRAM,
    .usage = "--input FILE --output-prefix PREFIX [options]",
    .about = "Turns text into Megatron's token files, which --data-path of holdfast train takes. "
             "Either both files of a pair appear, whole and on disk, or none.",
    .options = option_rows,
    .option_count = OPTION_COUNT,
    .given_offset = offsetof(struct preprocess_options, given),
    .positional_max = PREPROCESS_KEYS_MAX,
};

struct key_list {
    const char *names[PREPROCESS_KEYS_MAX];
    size_t count;
};

static enum status add_key(struct key_list *keys, const char *name)
{
    if (*name == 0 || strchr(name, '/') != NULL) {
        return FAIL(STATUS_USAGE, "unusable JSON key '%s': it names a file", name);
    }
    for (size_t i = 0; i < keys->count; i++) {
        if (strcmp(keys->names[i], name) == 0) {
            return FAIL(STATUS_USAGE, "JSON key '%s' given twice", name);
        }
    }
    if (keys->count == PREPROCESS_KEYS_MAX) {
        return FAIL(STATUS_USAGE, "too many JSON keys, at most %d", PREPROCESS_KEYS_MAX);
    }
    keys->names[keys->count++] = name;
    return STATUS_OK;
}

/* "--json-keys a,b" cuts the option's own text at its commas; "--json-keys a b", Megatron's
 * spelling, leaves b among the positional arguments. */
static enum status collect_keys(struct preprocess_options *options,
                                const struct option_positionals *positionals,
                                struct key_list *out_keys)
{
    enum status st = STATUS_OK;
    char *rest = NULL;

    for (char *name = strtok_r(options->json_keys, ",", &rest); name != NULL;
         name = strtok_r(NULL, ",", &rest)) {
        TRY(st, add_key(out_keys, name), done);
    }
    if (positionals->count > 0 && !options_given(&table, "json-keys", options)) {
        return FAIL(STATUS_USAGE, "unexpected argument '%s'; the text is given by --input FILE",
                    positionals->texts[0]);
    }
    for (int i = 0; i < positionals->count; i++) {
        TRY(st, add_key(out_keys, positionals->texts[i]), done);
    }
    if (out_keys->count == 0) {
        return FAIL(STATUS_USAGE, "no JSON key in --json-keys '%s'", options->json_keys);
    }
done:
    return st;
}

static enum status choose_format(const struct preprocess_options *options,
                                 const struct key_list *keys, enum preprocess_format *out_format)
{
    size_t length = strlen(options->input);
    bool text = strcmp(options->input_format, "text") == 0;

    if (strcmp(options->input_format, "auto") == 0) {
        text = length >= 4 && strcmp(options->input + length - 4, ".txt") == 0;
    }
    if (!text) {
        *out_format = PREPROCESS_JSON_LINES;
        return options_given(&table, "text-document", options)
                   ? FAIL(STATUS_USAGE,
                          "--text-document is for plain text, and '%s' is read as "
                          "JSON lines; add --input-format text",
                          options->input)
                   : STATUS_OK;
    }
    if (keys->count > 1) {
        return FAIL(STATUS_USAGE,
                    "several JSON keys are given, but '%s' is plain text; add "
                    "--input-format jsonl if it is not",
                    options->input);
    }
    *out_format = strcmp(options->text_document, "line") == 0        ? PREPROCESS_TEXT_LINES
                  : strcmp(options->text_document, "paragraph") == 0 ? PREPROCESS_TEXT_PARAGRAPHS
                                                                     : PREPROCESS_TEXT_FILE;
    return STATUS_OK;
}

/* SIGINT and SIGTERM stay blocked in every thread and are looked for between rounds, so that a
 * stopped run takes its temporary files away. */
static sigset_t stop_signals(void)
{
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGTERM);
    return set;
}

static bool stop_asked(void)
{
    const struct timespec now = {0};
    sigset_t set = stop_signals();

    return sigtimedwait(&set, NULL, &now) > 0;
}

static enum status run(struct preprocess_options *options,
                       const struct option_positionals *positionals)
{
    enum status st = STATUS_OK;
    struct tokenizer *tokenizer = NULL;
    struct key_list keys = {0};
    struct preprocess_config config = {
        .fs = fs_posix(),
        .input = options->input,
        .output_prefix = options->output_prefix,
        .append_end_of_document = options->append_eod,
        .workers = options->workers > 0 ? (int)options->workers : thread_cpu_count(),
        .log_interval = options->log_interval,
        .should_stop = stop_asked,
    };
    sigset_t set = stop_signals();

    TRY(st, collect_keys(options, positionals, &keys), done);
    TRY(st, choose_format(options, &keys, &config.format), done);
    TRY(st,
        tokenizer_create(&(struct tokenizer_config){.type = options->tokenizer_type,
                                                    .vocab_path = options->vocab_file,
                                                    .merges_path = options->merge_file,
                                                    .model_path = options->tokenizer_model,
                                                    .legacy = options->legacy_tokenizer},
                         &tokenizer),
        done);
    if (options->append_eod && tokenizer->end_of_document < 0) {
        st = FAIL(STATUS_USAGE,
                  "--append-eod: SentencePiece model '%s' has no piece that ends a sentence; with "
                  "SentencePieceTokenizer, --legacy-tokenizer adds <EOD>",
                  options->tokenizer_model);
        goto done;
    }
    config.tokenizer = tokenizer;
    config.keys = keys.names;
    config.key_count = keys.count;
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    TRY(st, preprocess_run(&config), done);
done:
    tokenizer_destroy(tokenizer);
    return st;
}

int main(int argc, char **argv)
{
    enum status st = STATUS_OK;
    struct preprocess_options options;
    const char *texts[PREPROCESS_KEYS_MAX + 1];
    struct option_positionals positionals = {texts, 0};
    bool help = false;

    log_init(LOG_LEVEL_INFO, "");
    if (argc > PREPROCESS_KEYS_MAX) {
        st = FAIL(STATUS_USAGE, "too many arguments");
        goto done;
    }
    TRY(st, options_parse(&table, argc, argv, &options, &positionals, &help), done);
    if (!help) {
        TRY(st, run(&options, &positionals), done);
    }
done:
    if (st != STATUS_OK) {
        status_print(PROGRAM, false);
    }
    return status_exit_code(st);
}
