/* What the command line leaves open. Before it: the command line; after it: train_options. */
#include "train/train_settings.h"

#include "ckpt/base/fs.h"
#include "ckpt/base/log.h"
#include "ckpt/ckpt.h"
#include "train/config_file.h"
#include "train/train_options.h"

static enum status take_fixed(struct train_options *options, const struct ckpt_choice *choice)
{
    enum status st = STATUS_OK;
    int taken = 0;

    for (int i = 0; i < TRAIN_OPTION_COUNT; i++) {
        const struct option *option = &train_options_table.options[i];
        if (option->resume == OPTION_FIXED && !options->given[i]) {
            TRY(st,
                options_take_saved(&train_options_table, choice->manifest.options, option->name,
                                   options),
                done);
            taken += options->given[i] ? 1 : 0;
        }
    }
    log_info("--use-checkpoint-args: %d options are those of '%s'", taken, choice->path);
done:
    return st;
}

/* Every rank looks for itself: nothing that is FIXED differs between two steps of a run. */
static enum status use_checkpoint(struct train_options *options)
{
    enum status st = STATUS_OK;
    const struct ckpt_group alone = {.rank = 0, .size = 1};
    struct ckpt_choice choice = {0};
    bool exact = options->ckpt_step >= 0;

    if (options->load[0] == 0) {
        return FAIL(STATUS_USAGE, "--use-checkpoint-args needs a directory: --load");
    }
    TRY(st,
        ckpt_choose(fs_posix(), options->load, exact ? (uint64_t)options->ckpt_step : UINT64_MAX,
                    exact, &alone, &choice),
        done);
    if (!choice.found) {
        st = FAIL(STATUS_NO_CHECKPOINT, "no checkpoint in '%s' for --use-checkpoint-args",
                  options->load);
        goto done;
    }
    TRY(st, take_fixed(options, &choice), done);
done:
    ckpt_choice_deinit(&choice);
    return st;
}

enum status train_settings_complete(void *values)
{
    enum status st = STATUS_OK;
    struct train_options *options = values;

    if (options->config[0] != 0) {
        TRY(st, config_file_read(options->config, &train_options_table, options), done);
    }
    if (options->use_checkpoint_args) {
        TRY(st, use_checkpoint(options), done);
    }
done:
    return st;
}
