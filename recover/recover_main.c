/* holdfast-recover: `run` starts and watches ranks (agent.h), `report` tells what happened
 * (report.h). The only file here that prints an error and exits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/base/options.h"
#include "recover/agent.h"
#include "recover/launcher.h"
#include "recover/report.h"

#define TIMEOUT_MS_MAX 86400000.0
#define RUN_OPTION_COUNT 6

struct run_options {
    int64_t rank_count, max_restarts;
    char run_dir[OPTIONS_TEXT_MAX];
    int64_t hang_timeout_ms, start_timeout_ms, save_timeout_ms;
    bool given[RUN_OPTION_COUNT];
};

static const struct option run_options[RUN_OPTION_COUNT] = {
    {"nproc-per-node", OPTION_INT, offsetof(struct run_options, rank_count), "1", 1,
     LAUNCHER_RANKS_MAX, NULL, OPTION_LOCAL, "run", true, "ranks to start on this machine"},
    {"max-restarts", OPTION_INT, offsetof(struct run_options, max_restarts), "3", 0, 1e6, NULL,
     OPTION_LOCAL, "run", true,
     "restarts without a newly committed step; a new commit clears the count"},
    {"run-dir", OPTION_TEXT, offsetof(struct run_options, run_dir), "", 0, 0, NULL, OPTION_LOCAL,
     "run", true,
     "folder of this run's logs, incidents and state; the same one goes on with the same run; "
     "default: a fresh one under $TMPDIR"},
    {"hang-timeout-ms", OPTION_INT, offsetof(struct run_options, hang_timeout_ms), "300000", 100,
     TIMEOUT_MS_MAX, NULL, OPTION_LOCAL, "run", true,
     "silence of a rank in a step that counts as a hang, at most; less once steps were timed"},
    {"start-timeout-ms", OPTION_INT, offsetof(struct run_options, start_timeout_ms), "900000", 100,
     TIMEOUT_MS_MAX, NULL, OPTION_LOCAL, "run", true, "the same while starting and loading"},
    {"save-timeout-ms", OPTION_INT, offsetof(struct run_options, save_timeout_ms), "1800000", 100,
     TIMEOUT_MS_MAX, NULL, OPTION_LOCAL, "run", true, "the same while saving and evaluating"},
};

static const struct option_table run_table = {
    .program = "holdfast run",
    .usage = "[options] -- COMMAND ARGUMENTS...",
    .about = "Starts the ranks of a command (\"train\", or any program whose path has a '/'), "
             "names the first cause when one dies, stops or falls silent, and starts all of them "
             "again from the newest checkpoint.",
    .options = run_options,
    .option_count = RUN_OPTION_COUNT,
    .given_offset = offsetof(struct run_options, given),
};

struct report_options {
    bool given[1];
};

static const struct option_table report_table = {
    .program = "holdfast report",
    .usage = "RUN_DIR",
    .about = "Prints the incidents of a run: when, which rank, why, and what was done.",
    .given_offset = offsetof(struct report_options, given),
    .positional_min = 1,
    .positional_max = 1,
};

/* The index of "--"; argc when there is none. */
static int find_command(int argc, char **argv)
{
    int at = 1;

    while (at < argc && strcmp(argv[at], "--") != 0) {
        at++;
    }
    return at;
}

static enum status run(int argc, char **argv)
{
    enum status st = STATUS_OK;
    struct run_options options;
    struct option_positionals positionals = {0};
    bool help;
    int split = find_command(argc, argv);

    TRY(st, mem_alloc(&positionals.texts, (size_t)argc, sizeof *positionals.texts), done);
    TRY(st, options_parse(&run_table, split, argv, &options, &positionals, &help), done);
    if (help) {
        goto done;
    }
    if (split + 1 >= argc) {
        st = FAIL(STATUS_USAGE, "no command; write it behind \"--\", as in: holdfast run "
                                "--nproc-per-node 4 -- train ...");
        goto done;
    }
    struct agent_config config = {.rank_count = (int)options.rank_count,
                                  .max_restarts = (int)options.max_restarts,
                                  .run_dir = options.run_dir,
                                  .words = argv + split + 1,
                                  .word_count = argc - split - 1,
                                  .start_timeout_ms = options.start_timeout_ms,
                                  .hang_timeout_ms = options.hang_timeout_ms,
                                  .save_timeout_ms = options.save_timeout_ms};

    TRY(st, agent_run(&config), done);
done:
    mem_free(&positionals.texts);
    return st;
}

static enum status report(int argc, char **argv)
{
    enum status st = STATUS_OK;
    struct report_options options;
    struct option_positionals positionals = {0};
    bool help;

    TRY(st, mem_alloc(&positionals.texts, (size_t)argc, sizeof *positionals.texts), done);
    TRY(st, options_parse(&report_table, argc, argv, &options, &positionals, &help), done);
    if (!help) {
        TRY(st, report_print(positionals.texts[0]), done);
    }
done:
    mem_free(&positionals.texts);
    return st;
}

int main(int argc, char **argv)
{
    static const char usage[] =
        "usage: holdfast-recover run|report ...; -h after either says more\n";
    enum status st;

    log_init(LOG_LEVEL_INFO, "agent");
    if (argc >= 2 && strcmp(argv[1], "run") == 0) {
        st = run(argc - 1, argv + 1);
    } else if (argc >= 2 && strcmp(argv[1], "report") == 0) {
        st = report(argc - 1, argv + 1);
    } else if (argc >= 2 && (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0)) {
        (void)fputs(usage, stdout);
        st = STATUS_OK;
    } else {
        (void)fputs(usage, stderr);
        return status_exit_code(STATUS_USAGE);
    }
    if (st != STATUS_OK) {
        status_print("holdfast-recover", false);
    }
    return status_exit_code(st);
}
