/* holdfast-backup: copies committed checkpoints to a store and back.
 *
 * Parses, runs one command of commands.h, maps its status to the exit code. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "backup/commands.h"
#include "backup/transfer.h"
#include "ckpt/base/log.h"
#include "ckpt/base/options.h"

#define PROGRAM "holdfast backup"
#define ARGUMENTS_MAX 64
#define AT(field) offsetof(struct backup_options, field)

#define STEP_OPTION                                                                                \
    {                                                                                              \
        "step", OPTION_INT, AT(step), "-1", -1, 9007199254740992.0, NULL, OPTION_LOCAL, "Options", \
            true, "the step to use; -1 is the newest (verify: all)"                                \
    }
#define JOBS_OPTION                                                                                \
    {                                                                                              \
        "jobs", OPTION_INT, AT(jobs), "4", 1, TRANSFER_JOBS_MAX, NULL, OPTION_LOCAL, "Options",    \
            true, "files copied at once"                                                           \
    }
#define JSON_OPTION                                                                                \
    {                                                                                              \
        "json", OPTION_BOOL, AT(json), "false", 0, 0, NULL, OPTION_LOCAL, "Options", true,         \
            "print JSON lines"                                                                     \
    }

static const struct option push_options[] = {
    STEP_OPTION,
    {"all", OPTION_BOOL, AT(all), "false", 0, 0, NULL, OPTION_LOCAL, "Options", true,
     "push every usable checkpoint that is not there"},
    {"keep-last", OPTION_INT, AT(keep_last), "0", 0, 1e9, NULL, OPTION_LOCAL, "Options", true,
     "then prune the store to so many checkpoints; 0 prunes nothing"},
    JOBS_OPTION,
    JSON_OPTION,
};
static const struct option pull_options[] = {STEP_OPTION, JOBS_OPTION, JSON_OPTION};
static const struct option list_options[] = {JSON_OPTION};
static const struct option verify_options[] = {
    STEP_OPTION,
    {"quick", OPTION_BOOL, AT(quick), "false", 0, 0, NULL, OPTION_LOCAL, "Options", true,
     "only manifests and sizes"},
    JOBS_OPTION,
    JSON_OPTION,
};
static const struct option prune_options[] = {
    {"keep-last", OPTION_INT, AT(keep_last), NULL, 1, 1e9, NULL, OPTION_LOCAL, "Options", true,
     "how many checkpoints stay"},
    {"dry-run", OPTION_BOOL, AT(dry_run), "false", 0, 0, NULL, OPTION_LOCAL, "Options", true,
     "only say what would go"},
    JSON_OPTION,
};

struct command {
    const char *name;
    enum status (*run)(const struct backup_options *options, const char *first, const char *second);
    struct option_table table;
};

#define TABLE(verb, arguments, count, text)                                                        \
    {                                                                                              \
        .program = PROGRAM " " #verb, .usage = arguments " [options]", .about = text,              \
        .options = verb##_options, .option_count = sizeof verb##_options / sizeof(struct option),  \
        .given_offset = AT(given), .positional_min = count, .positional_max = count                \
    }

static const struct command commands[] = {
    {"push", backup_push,
     TABLE(push, "SAVE STORE", 2,
           "Copies the newest committed checkpoint of SAVE to STORE (a folder), verified, its "
           "manifest last.")},
    {"pull", backup_pull,
     TABLE(pull, "STORE SAVE", 2,
           "Restores a checkpoint from STORE into SAVE, verified, by one rename.")},
    {"list", backup_list, TABLE(list, "STORE", 1, "Lists the checkpoints in STORE.")},
    {"verify", backup_verify,
     TABLE(verify, "STORE", 1, "Reads every byte in STORE and compares hashes.")},
    {"prune", backup_prune,
     TABLE(prune, "STORE", 1, "Removes old checkpoints from STORE, never the last whole one.")},
};

static void print_commands(FILE *out)
{
    (void)fprintf(out, "usage: %s COMMAND ...\n\n", PROGRAM);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        (void)fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].table.about);
    }
    (void)fprintf(out, "\n'%s COMMAND -h' shows the options of one.\n", PROGRAM);
}

static enum status run(const struct command *command, int argc, char **argv)
{
    enum status st = STATUS_OK;
    struct backup_options options = {.step = -1, .jobs = 1};
    const char *texts[ARGUMENTS_MAX];
    struct option_positionals positionals = {texts, 0};
    bool helped = false;

    if (argc > ARGUMENTS_MAX) {
        return FAIL(STATUS_USAGE, "%d arguments are too many", argc);
    }
    TRY(st, options_parse(&command->table, argc, argv, &options, &positionals, &helped), done);
    if (!helped) {
        const char *second = positionals.count > 1 ? positionals.texts[1] : NULL;
        TRY(st, command->run(&options, positionals.texts[0], second), done);
    }
done:
    return st;
}

int main(int argc, char **argv)
{
    log_init(LOG_LEVEL_INFO, "backup");
    if (argc < 2 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0) {
        print_commands(argc < 2 ? stderr : stdout);
        return argc < 2 ? status_exit_code(STATUS_USAGE) : 0;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            enum status st = run(&commands[i], argc - 1, argv + 1);
            if (st != STATUS_OK) {
                status_print(commands[i].table.program, false);
            }
            return status_exit_code(st);
        }
    }
    (void)fprintf(stderr, "%s: unknown command '%s'\n", PROGRAM, argv[1]);
    print_commands(stderr);
    return status_exit_code(STATUS_USAGE);
}
