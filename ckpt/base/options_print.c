/* Help and values of an option table, for people; see options.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/mem.h"
#include "ckpt/base/options.h"
#include "ckpt/base/options_private.h"

#define VALUES_WIDTH 48 /* Megatron's */
#define HELP_COLUMN 36
#define HELP_WIDTH 96

void options_format_value(const struct option *option, const void *values, char *out_text,
                          size_t bytes)
{
    const void *at = (const char *)values + option->offset;

    switch (option->type) {
    case OPTION_INT:
        (void)snprintf(out_text, bytes, "%lld", (long long)*(const int64_t *)at);
        break;
    case OPTION_FLOAT:
        (void)snprintf(out_text, bytes, "%.10g", *(const double *)at);
        break;
    case OPTION_BOOL:
        (void)snprintf(out_text, bytes, "%s", *(const bool *)at ? "true" : "false");
        break;
    case OPTION_TEXT:
    case OPTION_CHOICE:
    case OPTION_WORDS:
        (void)snprintf(out_text, bytes, "%s", (const char *)at);
        break;
    }
}

static void print_wrapped(const char *text, int column)
{
    int at = column;

    while (*text != '\0') {
        int word = (int)strcspn(text, " ");
        if (at > column && at + 1 + word > HELP_WIDTH) {
            printf("\n%*s", column, "");
            at = column;
        } else if (at > column) {
            printf(" ");
            at++;
        }
        printf("%.*s", word, text);
        at += word;
        text += word;
        text += strspn(text, " ");
    }
    printf("\n");
}

static void print_option(const struct option *option)
{
    static const char *const kinds[] = {"", " N", " X", " TEXT", "", " WORDS"};
    char head[256], text[1024];
    const char *given = option->default_text;

    int used = snprintf(head, sizeof head, "  --%s%s", option->name, kinds[option->type]);
    if (option->type == OPTION_CHOICE) {
        (void)snprintf(head + used, sizeof head - (size_t)used, " %s", option->choices);
    }
    printf("%-*s", HELP_COLUMN - 1, head);
    if (strlen(head) >= HELP_COLUMN - 1) {
        printf("\n%*s", HELP_COLUMN, "");
    } else {
        printf(" ");
    }
    if (given == NULL) {
        (void)snprintf(text, sizeof text, "%s (required)", option->help);
    } else if (given[0] == '\0' || (option->type == OPTION_BOOL && strcmp(given, "false") == 0)) {
        (void)snprintf(text, sizeof text, "%s", option->help);
    } else {
        (void)snprintf(text, sizeof text, "%s [%s]", option->help, given);
    }
    print_wrapped(text, HELP_COLUMN);
}

/* Options of one group stand together in the table. */
void options_print_help(const struct option_table *table, bool all)
{
    const char *group = "";

    printf("usage: %s %s\n\n", table->program, table->usage);
    print_wrapped(table->about, 0);
    for (size_t i = 0; i < table->option_count; i++) {
        const struct option *option = &table->options[i];
        if (!all && !option->common) {
            continue;
        }
        if (strcmp(group, option->group) != 0) {
            group = option->group;
            printf("\n%s:\n", group);
        }
        print_option(option);
    }
    printf("\n  %-33s %s\n", all ? "-h" : "--help",
           all ? "shows the common options only" : "shows every option");
}

/* A line of the block of arguments. */
struct line {
    const char *name;
    const struct option *option; /* NULL: a fact */
    const char *text;            /* of a fact */
};

static int compare_lines(const void *a, const void *b)
{
    return strcmp(((const struct line *)a)->name, ((const struct line *)b)->name);
}

/* The fewest digits that read back alike, at least one after the point, an exponent below 1e-4 and
 * from 1e16 on. */
static void format_python_float(double value, char *out_text, size_t bytes)
{
    char digits[48];
    int places = 0;

    do {
        (void)snprintf(digits, sizeof digits, "%.*e", places, value);
    } while (strtod(digits, NULL) != value && ++places < 17);
    long exponent = strtol(strchr(digits, 'e') + 1, NULL, 10);
    if (value != 0 && (exponent < -4 || exponent >= 16)) {
        (void)snprintf(out_text, bytes, "%s", digits);
        return;
    }
    (void)snprintf(out_text, bytes, "%.*f", places - exponent > 1 ? (int)(places - exponent) : 1,
                   value);
}

/* The words of a WORDS option as a list of texts; at most four times as long. */
static void format_python_list(const char *text, char out_text[OPTIONS_PYTHON_MAX])
{
    char *at = out_text;

    *at++ = '[';
    *at++ = '\'';
    for (; *text != '\0'; text++) {
        if (*text == ' ') {
            memcpy(at, "', '", 4);
            at += 4;
        } else {
            text += *text == '\\' && text[1] != '\0';
            *at++ = *text;
        }
    }
    memcpy(at, "']", 3);
}

void options_format_python(const struct option *option, const void *values,
                           char out_text[OPTIONS_PYTHON_MAX])
{
    char text[OPTIONS_TEXT_MAX];
    const void *at = (const char *)values + option->offset;

    options_format_value(option, values, text, sizeof text);
    if (text[0] == '\0' || (option_is_unset_number(option) && strcmp(text, "0") == 0) ||
        (option->type == OPTION_CHOICE && strcmp(text, "none") == 0)) {
        (void)snprintf(out_text, OPTIONS_PYTHON_MAX, "None");
    } else if (option->type == OPTION_BOOL) {
        (void)snprintf(out_text, OPTIONS_PYTHON_MAX, "%s", *(const bool *)at ? "True" : "False");
    } else if (option->type == OPTION_FLOAT) {
        format_python_float(*(const double *)at, out_text, OPTIONS_PYTHON_MAX);
    } else if (option->type == OPTION_WORDS) {
        format_python_list(text, out_text);
    } else {
        (void)snprintf(out_text, OPTIONS_PYTHON_MAX, "%s", text);
    }
}

/* Python's names have underscores. */
static void print_name(const char *name)
{
    for (; *name != '\0'; name++) {
        (void)putchar(*name == '-' ? '_' : *name);
    }
}

static void print_line(const struct line *line, const void *values)
{
    char text[OPTIONS_PYTHON_MAX];
    int dots = VALUES_WIDTH - (int)strlen(line->name);

    printf("  ");
    print_name(line->name);
    printf(" ");
    while (dots-- > 0) {
        (void)putchar('.');
    }
    if (line->option != NULL) {
        options_format_python(line->option, values, text);
    }
    printf(" %s\n", line->option != NULL ? text : line->text);
}

void options_print_values(const struct option_table *table, const char *heading, const void *values,
                          const struct option_fact *facts, size_t fact_count)
{
    struct line *lines = NULL;
    size_t count = 0;

    if (mem_alloc(&lines, table->option_count + fact_count, sizeof *lines) != STATUS_OK) {
        return; /* only information */
    }
    for (size_t i = 0; i < table->option_count; i++) {
        lines[count++] =
            (struct line){.name = table->options[i].name, .option = &table->options[i]};
    }
    for (size_t i = 0; i < fact_count; i++) {
        lines[count++] = (struct line){.name = facts[i].name, .text = facts[i].text};
    }
    qsort(lines, count, sizeof *lines, compare_lines);
    printf("------------------------ %s ------------------------\n", heading);
    for (size_t i = 0; i < count; i++) {
        print_line(&lines[i], values);
    }
    printf("-------------------- end of %s ---------------------\n", heading);
    (void)fflush(stdout);
    mem_free(&lines);
}
