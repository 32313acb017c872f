/* holdfast-recover: `run` starts and watches ranks (agent.h), `report` tells what happened
 * (report.h). */
#include <stddef.h>

#include "ckpt/base/command.h"
#include "ckpt/base/log.h"
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

static enum status run(const void *values, const struct command_words *words)
{
    enum status st = STATUS_OK;
    const struct run_options *options = values;

    if (words->rest_count == 0) {
        return FAIL(STATUS_USAGE, "no command; write it behind \"--\", as in: holdfast run "
                                  "--nproc-per-node 4 -- train ...");
    }
    struct agent_config config = {.rank_count = (int)options->rank_count,
                                  .max_restarts = (int)options->max_restarts,
                                  .run_dir = options->run_dir,
                                  .words = words->rest,
                                  .word_count = words->rest_count,
                                  .start_timeout_ms = options->start_timeout_ms,
                                  .hang_timeout_ms = options->hang_timeout_ms,
                                  .save_timeout_ms = options->save_timeout_ms};

    TRY(st, agent_run(&config), done);
done:
    return st;
}

static enum status report(const void *values, const struct command_words *words)
{
    (void)values;
    return report_print(words->arguments[0]);
}

static const struct command commands[] = {
    {.name = "run",
     .table = {.program = "holdfast run",
               .usage = "[options] -- COMMAND ARGUMENTS...",
               .about = "Starts the ranks of a command (\"train\", or any program whose path has a "
                        "'/'), names the first cause when one dies, stops or falls silent, and "
                        "starts all of them again from the newest checkpoint.",
               .options = run_options,
               .option_count = RUN_OPTION_COUNT,
               .given_offset = offsetof(struct run_options, given)},
     .takes_rest = true,
     .run = run},
    {.name = "report",
     .table = {.program = "holdfast report",
               .usage = "RUN_DIR",
               .about = "Prints the incidents of a run: when, which rank, why, and what was done.",
               .given_offset = offsetof(struct run_options, given),
               .positional_min = 1,
               .positional_max = 1},
     .run = report},
};

int main(int argc, char **argv)
{
    struct run_options options;

    log_init(LOG_LEVEL_INFO, "agent");
    return command_main("holdfast recover", commands, sizeof commands / sizeof *commands, &options,
                        argc, argv);
}
