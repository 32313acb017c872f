/* Programs made of commands: "holdfast backup push SAVE STORE --jobs 8".
 *
 * A program lists its commands once; parsing, the list in the help, errors and the exit code are
 * the same for all. Used by the *_main.c files only: command_main prints what failed.
 */
#ifndef CKPT_BASE_COMMAND_H
#define CKPT_BASE_COMMAND_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/base/options.h"
#include "ckpt/base/status.h"

struct command_words {
    const char **arguments; /* positionals, as many as the table asks for */
    int argument_count;
    char **rest; /* what stands behind "--" */
    int rest_count;
};

struct command {
    const char *name;
    struct option_table table;
    bool takes_rest; /* words behind "--" are another program's, not positionals */
    enum status (*run)(const void *values, const struct command_words *words);
};

/* `values` is the options struct of all the commands' tables. Returns the exit code. */
int command_main(const char *program, const struct command *commands, size_t count, void *values,
                 int argc, char **argv);

#endif
