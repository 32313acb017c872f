/* holdfast: finds the program of a command beside itself and becomes it. It knows names only; what
 * a command does is its program's business (train/, ckpt/, recover/, backup/). */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/mem.h"
#include "ckpt/base/status.h"

struct command {
    const char *name;
    const char *program;    /* holdfast-PROGRAM */
    const char *subcommand; /* put before the arguments; NULL: none */
    const char *help;
};

static const struct command commands[] = {
    {"run", "recover", "run", "start ranks, watch them, resume after a failure"},
    {"train", "train", NULL, "train a model: one rank"},
    {"preprocess", "preprocess", NULL, "turn text into token files"},
    {"ckpt", "ckpt", NULL, "list, verify, compare, import and export checkpoints"},
    {"backup", "backup", NULL, "copy committed checkpoints to a store and back"},
    {"report", "recover", "report", "what failed in a run, and what was done"},
    {"recover", "recover", NULL, "the program behind run and report"},
};

static const size_t command_count = sizeof commands / sizeof commands[0];

static void print_help(FILE *file)
{
    (void)fputs("usage: holdfast COMMAND ARGUMENTS...\n\n", file);
    for (size_t i = 0; i < command_count; i++) {
        (void)fprintf(file, "  %-12s %s\n", commands[i].name, commands[i].help);
    }
    (void)fputs("\nholdfast COMMAND -h says more; holdfast --version is the version.\n", file);
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < command_count; i++) {
        if (strcmp(name, commands[i].name) == 0) {
            return &commands[i];
        }
    }
    return NULL;
}

/* Does not return when it succeeds. `arguments` end in NULL. */
static enum status become(const struct command *command, char **arguments, int count)
{
    enum status st = STATUS_OK;
    char self[FS_PATH_MAX], directory[FS_PATH_MAX], path[FS_PATH_MAX];
    char **argv = NULL;
    int used = 0;
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);

    if (length < 0) {
        st = FAIL_ERRNO("cannot read '/proc/self/exe'");
        goto done;
    }
    self[length] = '\0';
    fs_parent(directory, self);
    if (snprintf(path, sizeof path, "%s/holdfast-%s", directory, command->program) >=
        (int)sizeof path) {
        st = FAIL(STATUS_USAGE, "path of '%s' is too long", self);
        goto done;
    }
    TRY(st, mem_alloc(&argv, (size_t)count + 3, sizeof *argv), done);
    argv[used++] = path;
    if (command->subcommand != NULL) {
        TRY(st, mem_copy_string(&argv[used++], command->subcommand), done);
    }
    memcpy(argv + used, arguments, (size_t)count * sizeof *argv);
    (void)execv(path, argv);
    st = FAIL_ERRNO("cannot run '%s'", path);
done:
    if (argv != NULL && command->subcommand != NULL) {
        mem_free(&argv[1]);
    }
    mem_free(&argv);
    return st;
}

int main(int argc, char **argv)
{
    static char help[] = "--help";
    char *only_help[] = {help, NULL};
    const char *name = argc >= 2 ? argv[1] : "";
    const struct command *command = find_command(name);
    bool wants_help = strcmp(name, "help") == 0;

    if (strcmp(name, "--version") == 0) {
        (void)printf("holdfast %s\n", HOLDFAST_VERSION);
        return 0;
    }
    if (wants_help && argc >= 3) {
        name = argv[2];
        command = find_command(name);
    } else if (wants_help || strcmp(name, "-h") == 0 || strcmp(name, "--help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (command == NULL) {
        if (name[0] != '\0') {
            (void)fprintf(stderr, "holdfast: no command '%s'\n", name);
        }
        print_help(stderr);
        return status_exit_code(STATUS_USAGE);
    }
    enum status st =
        wants_help ? become(command, only_help, 1) : become(command, argv + 2, argc - 2);

    status_print("holdfast", false);
    return status_exit_code(st);
}
