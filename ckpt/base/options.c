/* Command lines from tables; see options.h. Help and printing are in options_print.c. */
#include "ckpt/base/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/json.h"
#include "ckpt/base/log.h"
#include "ckpt/base/options_private.h"

#define NAME_MAX_LENGTH 128

static void *field(const struct option *option, void *values)
{
    return (char *)values + option->offset;
}

static bool *given_flag(const struct option_table *table, size_t index, void *values)
{
    return (bool *)((char *)values + table->given_offset) + index;
}

/* "a_b" and "a-b" are the same name. */
static char fold(char letter)
{
    return letter == '_' ? '-' : letter;
}

static bool same_name(const char *a, const char *b, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (b[i] == '\0' || fold(a[i]) != fold(b[i])) {
            return false;
        }
    }
    return b[length] == '\0';
}

static const struct option *find_exact(const struct option_table *table, const char *name,
                                       size_t length)
{
    for (size_t i = 0; i < table->alias_count; i++) {
        if (same_name(name, table->aliases[i].name, length)) {
            return find_exact(table, table->aliases[i].target, strlen(table->aliases[i].target));
        }
    }
    for (size_t i = 0; i < table->option_count; i++) {
        if (same_name(name, table->options[i].name, length)) {
            return &table->options[i];
        }
    }
    return NULL;
}

/* `name` without "--". Sets *out_negated for "no-x" of a BOOL x. */
static const struct option *find(const struct option_table *table, const char *name, size_t length,
                                 bool *out_negated)
{
    const struct option *option = find_exact(table, name, length);

    *out_negated = false;
    if (option == NULL && length > 3 && same_name(name, "no-", 3)) {
        option = find_exact(table, name + 3, length - 3);
        *out_negated = true;
        if (option != NULL && option->type != OPTION_BOOL) {
            option = NULL;
        }
    }
    return option;
}

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t least = a < b ? a : b;

    return least < c ? least : c;
}

/* Levenshtein's distance of two names shorter than NAME_MAX_LENGTH. */
static size_t distance(const char *a, size_t a_length, const char *b)
{
    size_t row[NAME_MAX_LENGTH + 1];
    size_t b_length = strlen(b);

    CHECK(b_length < NAME_MAX_LENGTH);
    for (size_t j = 0; j <= b_length; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t above = row[j];
            size_t change = fold(a[i - 1]) == fold(b[j - 1]) ? 0 : 1;
            row[j] = min3(row[j] + 1, row[j - 1] + 1, diagonal + change);
            diagonal = above;
        }
    }
    return row[b_length];
}

/* The nearer of `known` and *nearest, whose distance is *best. */
static void consider(const char *name, size_t length, const char *known, const char **nearest,
                     size_t *best)
{
    size_t far = strchr(known, '*') != NULL ? *best : distance(name, length, known);

    if (far < *best) {
        *best = far;
        *nearest = known;
    }
}

static enum status fail_unknown(const struct option_table *table, const char *name, size_t length)
{
    const char *nearest = NULL;
    size_t best = length / 2 + 1; /* farther than half the name is no help */

    if (length < NAME_MAX_LENGTH) {
        for (size_t i = 0; i < table->option_count; i++) {
            consider(name, length, table->options[i].name, &nearest, &best);
        }
        for (size_t i = 0; i < table->alias_count; i++) {
            consider(name, length, table->aliases[i].name, &nearest, &best);
        }
        for (size_t i = 0; i < table->foreign_count; i++) {
            consider(name, length, table->foreign[i].name, &nearest, &best);
        }
    }
    if (nearest == NULL) {
        return FAIL(STATUS_USAGE, "unknown option '--%.*s'; '%s --help' lists all", (int)length,
                    name, table->program);
    }
    return FAIL(STATUS_USAGE, "unknown option '--%.*s'; did you mean '--%s'?", (int)length, name,
                nearest);
}

static enum status fail_bounds(const struct option *option, const char *text)
{
    if (option->min == option->max) {
        return FAIL(STATUS_USAGE, "'--%s' is '%s', only %g is possible: %s", option->name, text,
                    option->min, option->help);
    }
    if (option->type == OPTION_INT) {
        return FAIL(STATUS_USAGE, "'--%s' is '%s', wanted an integer from %.0f to %.0f",
                    option->name, text, option->min, option->max);
    }
    return FAIL(STATUS_USAGE, "'--%s' is '%s', wanted a number from %g to %g", option->name, text,
                option->min, option->max);
}

static enum status set_int(const struct option *option, const char *text, void *values)
{
    char *end = NULL;

    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (isspace((unsigned char)text[0]) || end == text || *end != '\0' || errno != 0 ||
        (double)value < option->min || (double)value > option->max) {
        return fail_bounds(option, text);
    }
    *(int64_t *)field(option, values) = value;
    return STATUS_OK;
}

static enum status set_float(const struct option *option, const char *text, void *values)
{
    char *end = NULL;
    double value = strtod(text, &end);

    if (isspace((unsigned char)text[0]) || end == text || *end != '\0' || !isfinite(value) ||
        value < option->min || value > option->max) {
        return fail_bounds(option, text);
    }
    *(double *)field(option, values) = value;
    return STATUS_OK;
}

static enum status set_bool(const struct option *option, const char *text, void *values)
{
    bool is_true = strcmp(text, "true") == 0 || strcmp(text, "1") == 0;

    if (!is_true && strcmp(text, "false") != 0 && strcmp(text, "0") != 0) {
        return FAIL(STATUS_USAGE, "'--%s' is '%s', wanted true or false", option->name, text);
    }
    *(bool *)field(option, values) = is_true;
    return STATUS_OK;
}

static bool is_choice(const char *choices, const char *text)
{
    size_t length = strlen(text);

    for (const char *at = choices; at != NULL; at = strchr(at, '|')) {
        at += *at == '|';
        if (strcspn(at, "|") == length && strncmp(at, text, length) == 0) {
            return true;
        }
    }
    return false;
}

static enum status set_text(const struct option *option, const char *text, void *values)
{
    size_t length = strlen(text);

    if (length >= OPTIONS_TEXT_MAX) {
        return FAIL(STATUS_USAGE, "'--%s' has %zu characters, at most %d are possible",
                    option->name, length, OPTIONS_TEXT_MAX - 1);
    }
    if (option->type == OPTION_CHOICE && !is_choice(option->choices, text)) {
        return FAIL(STATUS_USAGE, "'--%s' is '%s', wanted one of %s", option->name, text,
                    option->choices);
    }
    memcpy(field(option, values), text, length + 1);
    return STATUS_OK;
}

static enum status set_value(const struct option *option, const char *text, void *values)
{
    switch (option->type) {
    case OPTION_INT:
        return set_int(option, text, values);
    case OPTION_FLOAT:
        return set_float(option, text, values);
    case OPTION_BOOL:
        return set_bool(option, text, values);
    case OPTION_TEXT:
    case OPTION_CHOICE:
    case OPTION_WORDS:
        return set_text(option, text, values);
    }
    CHECK(false);
}

enum status options_set(const struct option_table *table, const char *name, const char *text,
                        void *values)
{
    enum status st = STATUS_OK;
    bool negated = false;
    const struct option *option = find(table, name, strlen(name), &negated);

    if (option == NULL || negated) {
        return fail_unknown(table, name, strlen(name));
    }
    TRY(st, set_value(option, text, values), done);
    *given_flag(table, (size_t)(option - table->options), values) = true;
done:
    return st;
}

bool options_given(const struct option_table *table, const char *name, const void *values)
{
    const struct option *option = find_exact(table, name, strlen(name));

    CHECK(option != NULL);
    return *((const bool *)((const char *)values + table->given_offset) +
             (option - table->options));
}

static enum status set_defaults(const struct option_table *table, void *values)
{
    enum status st = STATUS_OK;

    for (size_t i = 0; i < table->option_count; i++) {
        const struct option *option = &table->options[i];
        *given_flag(table, i, values) = false;
        if (option_is_unset_number(option)) {
            memset(field(option, values), 0,
                   option->type == OPTION_INT ? sizeof(int64_t) : sizeof(double));
        } else if (option->default_text != NULL) {
            TRY(st, set_value(option, option->default_text, values), done);
        }
    }
done:
    return st;
}

/* Moves *index to the last word of the option at argv[*index]. */
static void skip_words(int argc, char **argv, int *index)
{
    while (*index + 1 < argc && strncmp(argv[*index + 1], "--", 2) != 0) {
        (*index)++;
    }
}

/* Appends a word; its blanks are kept apart from those between words when `escape` is set. False
 * when there is no room. */
static bool append_word(char out_text[OPTIONS_TEXT_MAX], size_t *used, const char *word,
                        bool escape)
{
    for (; *word != '\0'; word++) {
        bool is_kept = escape && strchr(" \t\n\\", *word) != NULL;
        if (*used + (is_kept ? 2 : 1) >= OPTIONS_TEXT_MAX) {
            return false;
        }
        if (is_kept) {
            out_text[(*used)++] = '\\';
        }
        out_text[(*used)++] = *word;
    }
    out_text[*used] = '\0';
    return true;
}

/* One word is taken as it is: it may be several in one. */
static enum status join_words(const struct option *option, const char *const *words, size_t count,
                              char out_text[OPTIONS_TEXT_MAX])
{
    size_t used = 0;

    out_text[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        if ((i > 0 && !append_word(out_text, &used, " ", false)) ||
            !append_word(out_text, &used, words[i], count > 1)) {
            return FAIL(STATUS_USAGE, "'--%s' has more than %d characters", option->name,
                        OPTIONS_TEXT_MAX - 1);
        }
    }
    return STATUS_OK;
}

static enum status take_words(const struct option *option, int argc, char **argv, int *index,
                              char out_text[OPTIONS_TEXT_MAX])
{
    int first = *index + 1;

    skip_words(argc, argv, index);
    if (*index < first) {
        return FAIL(STATUS_USAGE, "'--%s' wants a value", option->name);
    }
    return join_words(option, (const char *const *)argv + first, (size_t)(*index - first + 1),
                      out_text);
}

static const struct option_foreign *find_foreign(const struct option_table *table, const char *name,
                                                 size_t length)
{
    for (size_t i = 0; i < table->foreign_count; i++) {
        const char *known = table->foreign[i].name;
        size_t stem = strcspn(known, "*");
        bool is_stem = known[stem] == '*';
        bool is_begun = length >= stem;
        for (size_t at = 0; is_begun && at < stem; at++) {
            is_begun = fold(name[at]) == fold(known[at]);
        }
        if (is_begun && (is_stem || length == stem)) {
            return &table->foreign[i];
        }
    }
    return NULL;
}

/* The name is none of the table's options: it may be one that is known from elsewhere. */
static enum status pass_over(const struct option_table *table, const char *name, size_t length)
{
    const struct option_foreign *foreign = find_foreign(table, name, length);

    if (foreign == NULL) {
        return fail_unknown(table, name, length);
    }
    if (foreign->is_refused) {
        return FAIL(STATUS_USAGE, "'--%.*s' is not possible here: %s", (int)length, name,
                    foreign->why);
    }
    log_info("--%.*s is accepted and changes nothing: %s", (int)length, name, foreign->why);
    return STATUS_OK;
}

/* Parses the option at argv[*index]; moves *index to its last word. */
static enum status parse_option(const struct option_table *table, int argc, char **argv, int *index,
                                void *values)
{
    enum status st = STATUS_OK;
    const char *name = argv[*index] + 2;
    const char *equals = strchr(name, '=');
    size_t length = equals != NULL ? (size_t)(equals - name) : strlen(name);
    const char *text = equals != NULL ? equals + 1 : NULL;
    char words[OPTIONS_TEXT_MAX];
    bool negated = false;
    const struct option *option = find(table, name, length, &negated);

    if (option == NULL) {
        TRY(st, pass_over(table, name, length), done);
        skip_words(argc, argv, index);
        goto done;
    }
    if (option->type == OPTION_WORDS && text == NULL) {
        TRY(st, take_words(option, argc, argv, index, words), done);
        text = words;
    } else if (option->type == OPTION_BOOL) {
        if (negated && text != NULL) {
            return FAIL(STATUS_USAGE, "'--%.*s' takes no value", (int)length, name);
        }
        text = negated ? "false" : text != NULL ? text : "true";
    } else if (text == NULL) {
        if (*index + 1 >= argc) {
            return FAIL(STATUS_USAGE, "'--%s' wants a value", option->name);
        }
        text = argv[++*index];
        if (strncmp(text, "--", 2) == 0) { /* a forgotten value, not a folder named --load */
            return FAIL(STATUS_USAGE, "'--%s' wants a value, found '%s'; write --%s=%s to mean it",
                        option->name, text, option->name, text);
        }
    }
    TRY(st, set_value(option, text, values), done);
    *given_flag(table, (size_t)(option - table->options), values) = true;
done:
    return st;
}

static enum status check_required(const struct option_table *table, void *values)
{
    char names[STATUS_MESSAGE_MAX / 2] = "";
    size_t used = 0;

    for (size_t i = 0; i < table->option_count; i++) {
        const struct option *option = &table->options[i];
        if (option->default_text == NULL && !*given_flag(table, i, values) && used < sizeof names) {
            used += (size_t)snprintf(names + used, sizeof names - used, "%s--%s",
                                     used > 0 ? ", " : "", option->name);
        }
    }
    if (used > 0) {
        return FAIL(STATUS_USAGE, "missing %s; '%s -h' explains them", names, table->program);
    }
    return STATUS_OK;
}

/* The word that asks for help, or NULL. */
static const char *find_help(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0 ||
            strcmp(argv[i], "--help=all") == 0) {
            return argv[i];
        }
    }
    return NULL;
}

enum status options_parse(const struct option_table *table, int argc, char **argv, void *values,
                          struct option_positionals *positionals, bool *out_help)
{
    enum status st = STATUS_OK;
    bool only_positionals = false;
    const char *help = find_help(argc, argv);

    *out_help = help != NULL;
    positionals->count = 0;
    if (help != NULL) {
        options_print_help(table, help[1] == '-');
        return STATUS_OK;
    }
    TRY(st, set_defaults(table, values), done);
    for (int i = 1; i < argc; i++) {
        if (only_positionals || argv[i][0] != '-' || argv[i][1] == '\0') {
            positionals->texts[positionals->count++] = argv[i];
        } else if (strcmp(argv[i], "--") == 0) {
            only_positionals = true;
        } else if (argv[i][1] != '-') {
            return FAIL(STATUS_USAGE, "unknown option '%s'; options begin with '--'", argv[i]);
        } else {
            TRY(st, parse_option(table, argc, argv, &i, values), done);
        }
    }
    if (table->complete != NULL) {
        TRY(st, table->complete(values), done);
    }
    TRY(st, check_required(table, values), done);
    if (positionals->count < table->positional_min) {
        return FAIL(STATUS_USAGE, "too few arguments; usage: %s %s", table->program, table->usage);
    }
    if (positionals->count > table->positional_max) {
        return FAIL(STATUS_USAGE, "unexpected argument '%s'; usage: %s %s",
                    positionals->texts[table->positional_max], table->program, table->usage);
    }
done:
    return st;
}

/* One value of a JSON object as a word; false for null, objects and what is too long. */
static bool json_to_text(const cJSON *value, char *out_text, size_t bytes)
{
    int length = -1;

    if (cJSON_IsNumber(value)) {
        length = snprintf(out_text, bytes, "%.17g", value->valuedouble);
    } else if (cJSON_IsBool(value)) {
        length = snprintf(out_text, bytes, "%s", cJSON_IsTrue(value) ? "true" : "false");
    } else if (cJSON_IsString(value)) {
        length = snprintf(out_text, bytes, "%s", value->valuestring);
    }
    return length >= 0 && (size_t)length < bytes;
}

static enum status read_item(const struct option_table *table, const struct option_item *item,
                             void *values, size_t *out_index)
{
    enum status st = STATUS_OK;
    size_t length = strlen(item->name);
    char text[OPTIONS_TEXT_MAX];
    bool negated = false;
    const struct option *option = find(table, item->name, length, &negated);
    bool is_false = item->word_count == 0 || strcmp(item->words[0], "false") == 0;

    *out_index = option == NULL ? table->option_count : (size_t)(option - table->options);
    if (option == NULL) {
        bool is_off = is_false && find_foreign(table, item->name, length) != NULL;
        return is_off ? STATUS_OK : pass_over(table, item->name, length);
    }
    if (item->is_list && option->type != OPTION_WORDS) {
        return FAIL(STATUS_USAGE, "'--%s' takes one value, no list", option->name);
    }
    if (item->word_count == 0 || *given_flag(table, *out_index, values)) {
        return STATUS_OK;
    }
    TRY(st, join_words(option, item->words, item->word_count, text), done);
    if (negated && strcmp(text, "true") == 0) {
        (void)snprintf(text, sizeof text, "false");
    } else if (negated && is_false) {
        (void)snprintf(text, sizeof text, "true");
    }
    TRY(st, options_set(table, option->name, text, values), done);
done:
    return st;
}

enum status options_read_item(const struct option_table *table, const struct option_item *item,
                              void *values, size_t *out_index)
{
    struct status_record fault;
    enum status st = read_item(table, item, values, out_index);

    if (st == STATUS_OK) {
        return STATUS_OK;
    }
    status_take(&fault);
    return FAIL(fault.code, "%s: %.*s", item->where, STATUS_MESSAGE_MAX / 2, fault.message);
}

static enum status value_to_json(const struct option *option, const void *values, cJSON *row)
{
    const void *at = (const char *)values + option->offset;

    switch (option->type) {
    case OPTION_INT:
        return json_add_i64(row, "value", *(const int64_t *)at);
    case OPTION_FLOAT:
        return json_add_double(row, "value", *(const double *)at);
    case OPTION_BOOL:
        return json_add_bool(row, "value", *(const bool *)at);
    case OPTION_TEXT:
    case OPTION_CHOICE:
    case OPTION_WORDS:
        return json_add_string(row, "value", at);
    }
    CHECK(false);
}

static const char *class_name(enum option_class resume)
{
    static const char *const names[] = {"FIXED", "RESHARD", "TUNE", "LOCAL"};

    return names[resume];
}

enum status options_to_json(const struct option_table *table, const void *values,
                            cJSON **out_object)
{
    enum status st = STATUS_OK;
    cJSON *object = NULL, *row = NULL;

    TRY(st, json_new_object(&object), done);
    for (size_t i = 0; i < table->option_count; i++) {
        const struct option *option = &table->options[i];
        if (option->resume == OPTION_LOCAL) {
            continue;
        }
        TRY(st, json_new_object(&row), done);
        TRY(st, value_to_json(option, values, row), done);
        TRY(st, json_add_string(row, "class", class_name(option->resume)), done);
        cJSON *given = row;
        row = NULL; /* json_add_item takes it over */
        TRY(st, json_add_item(object, option->name, given), done);
    }
done:
    cJSON_Delete(row);
    if (st != STATUS_OK) {
        cJSON_Delete(object);
        object = NULL;
    }
    *out_object = object;
    return st;
}

static bool equals_saved(const struct option *option, const void *values, const cJSON *saved)
{
    const void *at = (const char *)values + option->offset;

    switch (option->type) {
    case OPTION_INT:
        return cJSON_IsNumber(saved) && saved->valuedouble == (double)*(const int64_t *)at;
    case OPTION_FLOAT:
        return cJSON_IsNumber(saved) && saved->valuedouble == *(const double *)at;
    case OPTION_BOOL:
        return cJSON_IsBool(saved) && (cJSON_IsTrue(saved) != 0) == *(const bool *)at;
    case OPTION_TEXT:
    case OPTION_CHOICE:
    case OPTION_WORDS:
        return cJSON_IsString(saved) && strcmp(saved->valuestring, at) == 0;
    }
    CHECK(false);
}

static void saved_text(const cJSON *saved, char *out_text, size_t bytes)
{
    if (cJSON_IsNumber(saved)) {
        (void)snprintf(out_text, bytes, "%.10g", saved->valuedouble);
    } else if (cJSON_IsBool(saved)) {
        (void)snprintf(out_text, bytes, "%s", cJSON_IsTrue(saved) ? "true" : "false");
    } else {
        (void)snprintf(out_text, bytes, "%s",
                       cJSON_IsString(saved) ? saved->valuestring : "(no value)");
    }
}

static const cJSON *saved_value(const cJSON *saved, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(saved, name), "value");
}

enum status options_take_saved(const struct option_table *table, const cJSON *saved,
                               const char *name, void *values)
{
    char text[OPTIONS_TEXT_MAX];
    const cJSON *value = saved_value(saved, name);

    if (value == NULL) {
        return STATUS_OK;
    }
    if (!json_to_text(value, text, sizeof text)) {
        return FAIL(STATUS_CORRUPT, "the saved value of '--%s' is none", name);
    }
    return options_set(table, name, text, values);
}

bool options_differs(const struct option_table *table, const cJSON *saved, const char *name,
                     const void *values, char *out_now, char *out_saved, size_t bytes)
{
    const struct option *option = find_exact(table, name, strlen(name));
    const cJSON *value = saved_value(saved, name);

    CHECK(option != NULL);
    if (value == NULL || equals_saved(option, values, value)) {
        return false;
    }
    options_format_value(option, values, out_now, bytes);
    saved_text(value, out_saved, bytes);
    return true;
}

enum status options_check_resume(const struct option_table *table, const void *values,
                                 const cJSON *saved, const char *where)
{
    char differences[STATUS_MESSAGE_MAX * 3 / 4] = "";
    size_t used = 0;

    for (size_t i = 0; i < table->option_count; i++) {
        const struct option *option = &table->options[i];
        char now[OPTIONS_TEXT_MAX], then[OPTIONS_TEXT_MAX];

        if (option->resume == OPTION_LOCAL ||
            !options_differs(table, saved, option->name, values, now, then, sizeof now)) {
            continue;
        }
        if (option->resume != OPTION_FIXED) {
            log_info("--%s is now %s, was %s in '%s'", option->name, now, then, where);
        } else if (used < sizeof differences) {
            used += (size_t)snprintf(differences + used, sizeof differences - used,
                                     "%s--%s is %.80s here and %.80s there", used > 0 ? ", " : "",
                                     option->name, now, then);
        }
    }
    if (used > 0) {
        return FAIL(STATUS_OPTIONS_DIFFER, "options differ from the checkpoint '%s': %s", where,
                    differences);
    }
    return STATUS_OK;
}
