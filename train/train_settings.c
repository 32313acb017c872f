/* What the command line leaves open. Before it: the command line; after it: train_options. */
#include "train/train_settings.h"

#include <stdio.h>
#include <string.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/log.h"
#include "ckpt/ckpt.h"
#include "train/config_file.h"
#include "train/train_options.h"

/* Of a training that begins anew only the model must be the checkpoint's. */
static bool must_agree(const struct train_options *options, const struct option *option)
{
    return option->resume == OPTION_FIXED &&
           (!options->finetune || strcmp(option->group, "model") == 0);
}

/* What is given must agree where it has to: all differences in one message. */
static enum status check_given(const struct train_options *options,
                               const struct ckpt_choice *choice)
{
    char differences[STATUS_MESSAGE_MAX / 2] = "";
    size_t used = 0;

    for (int i = 0; i < TRAIN_OPTION_COUNT && used < sizeof(differences); i++) {
        const struct option *option = &train_options_table.options[i];
        char now[OPTIONS_TEXT_MAX], then[OPTIONS_TEXT_MAX];
        if (options->given[i] && must_agree(options, option) &&
            options_differs(&train_options_table, choice->manifest.options, option->name, options,
                            now, then, sizeof(now))) {
            used += (size_t)snprintf(differences + used, sizeof(differences) - used,
                                     "%s--%s is %.80s here and %.80s there", used > 0 ? ", " : "",
                                     option->name, now, then);
        }
    }
    if (used > 0) {
        return FAIL(STATUS_OPTIONS_DIFFER,
                    "--use-checkpoint-args: what is given differs from '%s': %s; leave it out to "
                    "take the checkpoint's",
                    choice->path, differences);
    }
    return STATUS_OK;
}

static enum status take_options(struct train_options *options, const struct ckpt_choice *choice)
{
    enum status st = STATUS_OK;
    int taken = 0;

    for (int i = 0; i < TRAIN_OPTION_COUNT; i++) {
        const struct option *option = &train_options_table.options[i];
        bool is_wanted = must_agree(options, option) || (option->resume == OPTION_RESHARD &&
                                                         options->use_mp_args_from_checkpoint_args);
        if (is_wanted && !options->given[i]) {
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
    if (!choice.found) { /* as in Megatron: the same line starts a run and starts it again */
        log_info("--use-checkpoint-args: no checkpoint in '%s', what is given counts",
                 options->load);
        goto done;
    }
    TRY(st, check_given(options, &choice), done);
    TRY(st, take_options(options, &choice), done);
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
    if (options->use_mp_args_from_checkpoint_args && !options->use_checkpoint_args) {
        return FAIL(STATUS_USAGE, "--use-mp-args-from-checkpoint-args needs --use-checkpoint-args");
    }
    if (options->use_checkpoint_args) {
        TRY(st, use_checkpoint(options), done);
    }
done:
    return st;
}
