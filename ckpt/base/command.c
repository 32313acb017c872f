/* Programs made of commands; see command.h. */
#include "ckpt/base/command.h"

#include <stdio.h>
#include <string.h>

#include "ckpt/base/mem.h"

static void print_list(FILE *out, const char *program, const struct command *commands, size_t count)
{
    (void)fprintf(out, "usage: %s COMMAND ...\n\n", program);
    for (size_t i = 0; i < count; i++) {
        (void)fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].table.about);
    }
    (void)fprintf(out, "\n'%s COMMAND -h' shows the options of one.\n", program);
}

/* The index of "--"; argc when there is none. */
static int find_rest(int argc, char **argv)
{
    int at = 1;

    while (at < argc && strcmp(argv[at], "--") != 0) {
        at++;
    }
    return at;
}

static enum status run(const struct command *command, void *values, int argc, char **argv)
{
    enum status st = STATUS_OK;
    struct option_positionals positionals = {0};
    bool helped = false;
    int own = command->takes_rest ? find_rest(argc, argv) : argc;

    TRY(st, mem_alloc(&positionals.texts, (size_t)argc, sizeof *positionals.texts), done);
    TRY(st, options_parse(&command->table, own, argv, values, &positionals, &helped), done);
    if (!helped) {
        struct command_words words = {
            .arguments = positionals.texts,
            .argument_count = positionals.count,
            .rest = argv + (own < argc ? own + 1 : argc),
            .rest_count = own < argc ? argc - own - 1 : 0,
        };
        TRY(st, command->run(values, &words), done);
    }
done:
    mem_free(&positionals.texts);
    return st;
}

int command_main(const char *program, const struct command *commands, size_t count, void *values,
                 int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0) {
        print_list(argc < 2 ? stderr : stdout, program, commands, count);
        return argc < 2 ? status_exit_code(STATUS_USAGE) : 0;
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            enum status st = run(&commands[i], values, argc - 1, argv + 1);
            if (st != STATUS_OK) {
                status_print(commands[i].table.program, false);
            }
            return status_exit_code(st);
        }
    }
    (void)fprintf(stderr, "%s: unknown command '%s'\n", program, argv[1]);
    print_list(stderr, program, commands, count);
    return status_exit_code(STATUS_USAGE);
}
