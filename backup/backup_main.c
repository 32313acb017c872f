/* holdfast-backup: copies committed checkpoints to a store and back.
 *
 * Parses, runs one command of commands.h, maps its status to the exit code. */
#include <stddef.h>

#include "backup/commands.h"
#include "backup/transfer.h"
#include "ckpt/base/command.h"
#include "ckpt/base/log.h"

#define PROGRAM "holdfast backup"
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

#define REACH_OPTION(name, field, text)                                                            \
    {                                                                                              \
        name, OPTION_TEXT, AT(field), "", 0, 0, NULL, OPTION_LOCAL, "S3", false, text              \
    }
#define REACH_OPTIONS                                                                              \
    REACH_OPTION("endpoint-url", endpoint_url,                                                     \
                 "the S3 server, http[s]://HOST[:PORT]; default: "                                 \
                 "AWS_ENDPOINT_URL, the profile's, Amazon's"),                                     \
        REACH_OPTION("region", region, "default: AWS_REGION, the profile's, us-east-1"),           \
        REACH_OPTION("profile", profile,                                                           \
                     "of ~/.aws/credentials and ~/.aws/config; default: the "                      \
                     "keys in AWS_ACCESS_KEY_ID ..., AWS_PROFILE"),                                \
        REACH_OPTION("ca", ca,                                                                     \
                     "trusted authorities of the server, PEM; default: AWS_CA_BUNDLE, "            \
                     "the system's")

static const struct option push_options[] = {
    STEP_OPTION,
    {"all", OPTION_BOOL, AT(all), "false", 0, 0, NULL, OPTION_LOCAL, "Options", true,
     "push every usable checkpoint that is not there"},
    {"keep-last", OPTION_INT, AT(keep_last), "0", 0, 1e9, NULL, OPTION_LOCAL, "Options", true,
     "then prune the store to so many checkpoints; 0 prunes nothing"},
    JOBS_OPTION,
    JSON_OPTION,
    REACH_OPTIONS,
};
static const struct option pull_options[] = {STEP_OPTION, JOBS_OPTION, JSON_OPTION, REACH_OPTIONS};
static const struct option list_options[] = {JSON_OPTION, REACH_OPTIONS};
static const struct option verify_options[] = {
    STEP_OPTION,
    {"quick", OPTION_BOOL, AT(quick), "false", 0, 0, NULL, OPTION_LOCAL, "Options", true,
     "only manifests and sizes"},
    JOBS_OPTION,
    JSON_OPTION,
    REACH_OPTIONS,
};
static const struct option prune_options[] = {
    {"keep-last", OPTION_INT, AT(keep_last), NULL, 1, 1e9, NULL, OPTION_LOCAL, "Options", true,
     "how many checkpoints stay"},
    {"dry-run", OPTION_BOOL, AT(dry_run), "false", 0, 0, NULL, OPTION_LOCAL, "Options", true,
     "only say what would go"},
    JSON_OPTION,
    REACH_OPTIONS,
};

#define COMMAND(verb, arguments, count, text)                                                      \
    {                                                                                              \
        .name = #verb,                                                                             \
        .table = {.program = PROGRAM " " #verb,                                                    \
                  .usage = arguments " [options]",                                                 \
                  .about = text,                                                                   \
                  .options = verb##_options,                                                       \
                  .option_count = sizeof verb##_options / sizeof(struct option),                   \
                  .given_offset = AT(given),                                                       \
                  .positional_min = count,                                                         \
                  .positional_max = count},                                                        \
        .run = backup_##verb                                                                       \
    }

static const struct command commands[] = {
    COMMAND(push, "SAVE STORE", 2,
            "Copies the newest committed checkpoint of SAVE to STORE (a folder or "
            "s3://BUCKET/PREFIX), verified, its manifest last."),
    COMMAND(pull, "STORE SAVE", 2,
            "Restores a checkpoint from STORE into SAVE, verified, by one rename."),
    COMMAND(list, "STORE", 1, "Lists the checkpoints in STORE."),
    COMMAND(verify, "STORE", 1, "Reads every byte in STORE and compares hashes."),
    COMMAND(prune, "STORE", 1, "Removes old checkpoints from STORE, never the last whole one."),
};

int main(int argc, char **argv)
{
    struct backup_options options;

    log_init(LOG_LEVEL_INFO, "backup");
    return command_main(PROGRAM, commands, sizeof commands / sizeof *commands, &options, argc,
                        argv);
}
