/* Command lines from tables: one row per option, and everything else walks the rows.
 *
 * A program lists its options once, in a .def file of OPTION rows, and includes it twice: to make
 * the fields of its options struct and to make the table (see train/train_options.h). The parser,
 * -h (common options), --help=all (every one), bounds, the copy saved in the manifest and the
 * check at resume all come from the table.
 *
 * Spelling: "--name value", "--name=value"; BOOL options are "--name" (true) and, where the row's
 * default is true, "--no-name" (false; both spellings are accepted for every BOOL). '_' and '-' in
 * names are the same. An unknown name is STATUS_USAGE and names the nearest known one. A WORDS
 * option takes all words up to the next one that begins with "--".
 */
#ifndef CKPT_BASE_OPTIONS_H
#define CKPT_BASE_OPTIONS_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"

#define OPTIONS_TEXT_MAX 1024
#define OPTIONS_PYTHON_MAX (4 * OPTIONS_TEXT_MAX + 8)

enum option_type {
    OPTION_BOOL,   /* bool */
    OPTION_INT,    /* int64_t */
    OPTION_FLOAT,  /* double */
    OPTION_TEXT,   /* char[OPTIONS_TEXT_MAX] */
    OPTION_CHOICE, /* char[OPTIONS_TEXT_MAX]; one of `choices`, "a|b|c" */
    OPTION_WORDS   /* char[OPTIONS_TEXT_MAX]; the words, joined by single spaces; in one of
                    * several, blanks and backslashes have a backslash before them */
};

/* What a change of the value between a checkpoint and its resume means. */
enum option_class {
    OPTION_FIXED,   /* must equal the checkpoint's (STATUS_OPTIONS_DIFFER) */
    OPTION_RESHARD, /* may change; the checkpoint is resharded */
    OPTION_TUNE,    /* may change; the change is logged */
    OPTION_LOCAL    /* never saved */
};

struct option {
    const char *name; /* without "--", words joined by '-' */
    enum option_type type;
    size_t offset;            /* of the field in the options struct */
    const char *default_text; /* NULL: the option is required; "" of a number: 0, "not given" */
    double min, max;          /* of INT and FLOAT, inclusive */
    const char *choices;      /* of CHOICE */
    enum option_class resume;
    const char *group; /* heading in the help */
    bool common;       /* shown by -h */
    const char *help;
};

struct option_alias { /* an old or second spelling */
    const char *name;
    const char *target;
};

/* A flag of the program whose command lines are taken over, which has no field here. */
struct option_foreign {
    const char *name; /* a '*' at its end stands for any ending */
    bool is_refused;  /* STATUS_USAGE; otherwise the flag and the words after it are passed over */
    const char *why;  /* told to the user */
};

struct option_table {
    const char *program; /* "holdfast train" */
    const char *usage;   /* what follows it: "[options]" or "SAVE [STEP] [options]" */
    const char *about;   /* a paragraph */
    const struct option *options;
    size_t option_count;
    const struct option_alias *aliases;
    size_t alias_count;
    const struct option_foreign *foreign; /* looked at after the options */
    size_t foreign_count;
    /* Called once the words are read and before required options are missed: may set what was not
     * given, from a file. May be NULL. */
    enum status (*complete)(void *values);
    size_t given_offset; /* of a bool given[option_count] in the struct: set on the line */
    int positional_min, positional_max;
};

struct option_positionals {
    const char **texts; /* point into argv */
    int count;
};

/* What is no option and yet told with them: "world-size", "8". */
struct option_fact {
    const char *name, *text;
};

/* What a settings file says of one name. */
struct option_item {
    const char *name;  /* as the file spells it */
    const char *where; /* "run.yaml:12", for errors */
    const char *const *words;
    size_t word_count;
    bool is_list; /* only WORDS options take one */
};

/* Sets defaults, then parses argv[1..]; "--" ends options. -h and --help print the help to stdout
 * and set *out_help, and nothing else is checked then. Missing required options are STATUS_USAGE,
 * all named in one message. positionals->texts has room for argc entries. */
enum status options_parse(const struct option_table *table, int argc, char **argv, void *values,
                          struct option_positionals *positionals, bool *out_help) STATUS_MUST_CHECK;
/* Sets one option as the command line would; `given` becomes true. */
enum status options_set(const struct option_table *table, const char *name, const char *text,
                        void *values) STATUS_MUST_CHECK;
/* Sets one option from a settings file, unless it is given already. No words (null) leave it as it
 * is. *out_index is its place in the table, option_count for a flag of others (which counts only
 * when it is neither false nor null). All errors are STATUS_USAGE and begin with `where`. */
enum status options_read_item(const struct option_table *table, const struct option_item *item,
                              void *values, size_t *out_index) STATUS_MUST_CHECK;
bool options_given(const struct option_table *table, const char *name, const void *values);
void options_print_help(const struct option_table *table, bool all);
/* A value as Python prints it: True, 6e-05, ['a', 'b'], None for what is not given. */
void options_format_python(const struct option *option, const void *values,
                           char out_text[OPTIONS_PYTHON_MAX]);
/* Megatron's block between two rules: sorted "  name_of_it ...... value" lines dotted to width 48,
 * values as Python prints them, `facts` among them. Source: _print_args of Megatron-LM's
 * arguments.py. */
void options_print_values(const struct option_table *table, const char *heading, const void *values,
                          const struct option_fact *facts, size_t fact_count);
/* Every option but the LOCAL ones: {"name": {"value": ..., "class": "FIXED"}, ...}. */
enum status options_to_json(const struct option_table *table, const void *values,
                            cJSON **out_object) STATUS_MUST_CHECK;
/* Sets one option to its value in a saved object; one that is not there stays as it is. */
enum status options_take_saved(const struct option_table *table, const cJSON *saved,
                               const char *name, void *values) STATUS_MUST_CHECK;
/* Whether one option has another value in a saved object, and both as text of at most `bytes`. One
 * that is not there does not differ. */
bool options_differs(const struct option_table *table, const cJSON *saved, const char *name,
                     const void *values, char *out_now, char *out_saved, size_t bytes);
/* Compares with a saved object. FIXED differences: STATUS_OPTIONS_DIFFER with every name and both
 * values in one message. TUNE and RESHARD ones are logged. Options missing on one side are taken
 * as unchanged. */
enum status options_check_resume(const struct option_table *table, const void *values,
                                 const cJSON *saved, const char *where) STATUS_MUST_CHECK;

#endif
