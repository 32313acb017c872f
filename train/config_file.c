/* Settings from YAML. Before it: the command line; after it: train_settings.
 *
 * The parser of libyaml hands over events, not a tree:
 *   mapping begins -> (name -> word | list of words | section of the same)* -> mapping ends
 */
#include "train/config_file.h"

#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/mem.h"

#define WHERE_MAX 512

struct config_file {
    const char *path;
    const struct option_table *table;
    void *values;
    yaml_parser_t parser;
    yaml_event_t event; /* the last one */
    bool has_event;
    int lines[CONFIG_FILE_OPTIONS_MAX]; /* where each option stands; 0: nowhere yet */
    char *words[CONFIG_FILE_WORDS_MAX]; /* of the value that is read */
    size_t word_count;
};

static int line_of(const struct config_file *file)
{
    return (int)file->event.start_mark.line + 1;
}

static enum status next(struct config_file *file)
{
    if (file->has_event) {
        yaml_event_delete(&file->event);
    }
    file->has_event = yaml_parser_parse(&file->parser, &file->event) == 1;
    if (!file->has_event) {
        const yaml_parser_t *parser = &file->parser;
        return FAIL(STATUS_USAGE, "%s:%d: %s", file->path, (int)parser->problem_mark.line + 1,
                    parser->problem != NULL ? parser->problem : "is no YAML");
    }
    if (file->event.type == YAML_ALIAS_EVENT) {
        return FAIL(STATUS_USAGE, "%s:%d: aliases are not understood: repeat the value", file->path,
                    line_of(file));
    }
    return STATUS_OK;
}

static bool is_one_of(const char *word, const char *const *words)
{
    for (; *words != NULL; words++) {
        if (strcmp(word, *words) == 0) {
            return true;
        }
    }
    return false;
}

/* What an unquoted word means in YAML; NULL: null. */
static const char *plain_meaning(const char *word)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL", "None", NULL};
    static const char *const trues[] = {"True", "TRUE", "yes", "Yes", "YES",
                                        "on",   "On",   "ON",  NULL};
    static const char *const falses[] = {"False", "FALSE", "no",  "No", "NO",
                                         "off",   "Off",   "OFF", NULL};

    return is_one_of(word, nulls)    ? NULL
           : is_one_of(word, trues)  ? "true"
           : is_one_of(word, falses) ? "false"
                                     : word;
}

/* The word of the last event; a null adds none. */
static enum status add_word(struct config_file *file)
{
    enum status st = STATUS_OK;
    const char *word = (const char *)file->event.data.scalar.value;
    size_t length = file->event.data.scalar.length;

    if (strlen(word) != length) {
        return FAIL(STATUS_USAGE, "%s:%d: a value with a 0 byte", file->path, line_of(file));
    }
    if (file->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE) {
        word = plain_meaning(word);
    }
    if (word == NULL) {
        return STATUS_OK;
    }
    if (file->word_count == CONFIG_FILE_WORDS_MAX) {
        return FAIL(STATUS_USAGE, "%s:%d: a list of more than %d words", file->path, line_of(file),
                    CONFIG_FILE_WORDS_MAX);
    }
    length = strlen(word);
    TRY(st, mem_alloc(&file->words[file->word_count], length + 1, 1), done);
    memcpy(file->words[file->word_count++], word, length + 1);
done:
    return st;
}

static void drop_words(struct config_file *file)
{
    while (file->word_count > 0) {
        mem_free(&file->words[--file->word_count]);
    }
}

/* The words of the value that begins with the last event. */
static enum status read_words(struct config_file *file, bool *out_is_list)
{
    enum status st = STATUS_OK;

    *out_is_list = file->event.type == YAML_SEQUENCE_START_EVENT;
    if (!*out_is_list) {
        return add_word(file);
    }
    for (;;) {
        TRY(st, next(file), done);
        if (file->event.type == YAML_SEQUENCE_END_EVENT) {
            break;
        }
        if (file->event.type != YAML_SCALAR_EVENT) {
            return FAIL(STATUS_USAGE, "%s:%d: a list of words holds something else", file->path,
                        line_of(file));
        }
        TRY(st, add_word(file), done);
    }
done:
    return st;
}

/* One flag; the last event begins its value. */
static enum status read_flag(struct config_file *file, const char *name, int line)
{
    enum status st = STATUS_OK;
    char where[WHERE_MAX];
    bool is_list = false;
    size_t index = 0;

    TRY(st, read_words(file, &is_list), done);
    (void)snprintf(where, sizeof(where), "%s:%d", file->path, line);
    struct option_item item = {.name = name,
                               .where = where,
                               .words = (const char *const *)file->words,
                               .word_count = file->word_count,
                               .is_list = is_list};
    TRY(st, options_read_item(file->table, &item, file->values, &index), done);
    if (index == file->table->option_count) {
        goto done;
    }
    if (file->lines[index] != 0) {
        st = FAIL(STATUS_USAGE, "%s: '%s' again: line %d gives --%s already", where, name,
                  file->lines[index], file->table->options[index].name);
        goto done;
    }
    file->lines[index] = line;
done:
    drop_words(file);
    return st;
}

static enum status read_mapping(struct config_file *file, int depth);

/* One name of a mapping, which is the last event, and its value. */
static enum status read_entry(struct config_file *file, int depth)
{
    enum status st = STATUS_OK;
    char name[OPTIONS_TEXT_MAX];
    int line = line_of(file);

    if (file->event.type != YAML_SCALAR_EVENT ||
        strlen((const char *)file->event.data.scalar.value) >= sizeof(name)) {
        return FAIL(STATUS_USAGE, "%s:%d: wanted the name of a flag", file->path, line);
    }
    (void)snprintf(name, sizeof(name), "%s", (const char *)file->event.data.scalar.value);
    TRY(st, next(file), done);
    if (file->event.type != YAML_MAPPING_START_EVENT) {
        TRY(st, read_flag(file, name, line), done);
    } else if (depth > 0) {
        st =
            FAIL(STATUS_USAGE, "%s:%d: '%s' is a section within a section", file->path, line, name);
    } else {
        TRY(st, read_mapping(file, depth + 1), done);
    }
done:
    return st;
}

/* The last event begins it. */
static enum status read_mapping(struct config_file *file, int depth)
{
    enum status st = STATUS_OK;

    for (;;) {
        TRY(st, next(file), done);
        if (file->event.type == YAML_MAPPING_END_EVENT) {
            break;
        }
        TRY(st, read_entry(file, depth), done);
    }
done:
    return st;
}

static enum status read_stream(struct config_file *file)
{
    enum status st = STATUS_OK;

    TRY(st, next(file), done); /* the stream begins */
    TRY(st, next(file), done);
    if (file->event.type == YAML_STREAM_END_EVENT) {
        goto done; /* nothing but comments */
    }
    TRY(st, next(file), done);
    if (file->event.type != YAML_MAPPING_START_EVENT) {
        return FAIL(STATUS_USAGE, "%s:%d: wanted 'flag: value' or {\"flag\": value, ...}",
                    file->path, line_of(file));
    }
    TRY(st, read_mapping(file, 0), done);
    TRY(st, next(file), done); /* the document ends */
    TRY(st, next(file), done);
    if (file->event.type != YAML_STREAM_END_EVENT) {
        return FAIL(STATUS_USAGE, "%s:%d: a second document", file->path, line_of(file));
    }
done:
    return st;
}

enum status config_file_read(const char *path, const struct option_table *table, void *values)
{
    enum status st = STATUS_OK;
    struct config_file *file = NULL;
    char *text = NULL;
    size_t bytes = 0;
    bool has_parser = false;

    CHECK(table->option_count <= CONFIG_FILE_OPTIONS_MAX);
    TRY(st, mem_alloc(&file, 1, sizeof(*file)), done);
    file->path = path;
    file->table = table;
    file->values = values;
    TRY(st, fs_read_file(fs_posix(), path, CONFIG_FILE_BYTES_MAX, &text, &bytes), done);
    has_parser = yaml_parser_initialize(&file->parser) == 1;
    if (!has_parser) {
        st = FAIL(STATUS_NO_MEMORY, "no memory to read '%s'", path);
        goto done;
    }
    yaml_parser_set_input_string(&file->parser, (const unsigned char *)text, bytes);
    TRY(st, read_stream(file), done);
done:
    if (file != NULL && file->has_event) {
        yaml_event_delete(&file->event);
    }
    if (has_parser) {
        yaml_parser_delete(&file->parser);
    }
    mem_free(&text);
    mem_free(&file);
    return st;
}
