/* The schedule's options against a checkpoint's. Before it: train_ckpt; after it: trainer. */
#include "train/train_schedule.h"

#include <stdio.h>
#include <string.h>

/* When an option has a part in the schedule. */
enum part {
    PART_ALWAYS,
    PART_DECAYS,
    PART_WSD,
    PART_CONSTANT_WEIGHT_DECAY,
    PART_GROWING_WEIGHT_DECAY
};

static const struct {
    enum train_option option;
    enum part part;
} rows[] = {
    {TRAIN_OPTION_lr, PART_ALWAYS},
    {TRAIN_OPTION_lr_decay_style, PART_ALWAYS},
    {TRAIN_OPTION_lr_warmup_iters, PART_ALWAYS},
    {TRAIN_OPTION_lr_warmup_samples, PART_ALWAYS},
    {TRAIN_OPTION_lr_warmup_fraction, PART_ALWAYS},
    {TRAIN_OPTION_lr_warmup_init, PART_ALWAYS},
    {TRAIN_OPTION_min_lr, PART_DECAYS},
    {TRAIN_OPTION_lr_decay_iters, PART_DECAYS},
    {TRAIN_OPTION_lr_decay_samples, PART_DECAYS},
    {TRAIN_OPTION_lr_wsd_decay_style, PART_WSD},
    {TRAIN_OPTION_lr_wsd_decay_iters, PART_WSD},
    {TRAIN_OPTION_lr_wsd_decay_samples, PART_WSD},
    {TRAIN_OPTION_weight_decay_incr_style, PART_ALWAYS},
    {TRAIN_OPTION_weight_decay, PART_CONSTANT_WEIGHT_DECAY},
    {TRAIN_OPTION_start_weight_decay, PART_GROWING_WEIGHT_DECAY},
    {TRAIN_OPTION_end_weight_decay, PART_GROWING_WEIGHT_DECAY},
};

static const char *name_of(size_t row)
{
    return train_options_table.options[rows[row].option].name;
}

static bool has_part(const struct train_options *options, enum part part)
{
    bool decays = strcmp(options->lr_decay_style, "constant") != 0;
    bool is_constant = strcmp(options->weight_decay_incr_style, "constant") == 0;

    switch (part) {
    case PART_ALWAYS:
        return true;
    case PART_DECAYS:
        return decays;
    case PART_WSD:
        return strcmp(options->lr_decay_style, "WSD") == 0;
    case PART_CONSTANT_WEIGHT_DECAY:
        return is_constant;
    case PART_GROWING_WEIGHT_DECAY:
        return !is_constant;
    }
    return true;
}

static enum status check_same(const struct train_options *options, const cJSON *saved,
                              const char *where)
{
    char differences[STATUS_MESSAGE_MAX / 2] = "";
    size_t used = 0;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char now[64], then[64];
        if (used < sizeof(differences) && has_part(options, rows[i].part) &&
            options_differs(&train_options_table, saved, name_of(i), options, now, then,
                            sizeof(now))) {
            used += (size_t)snprintf(differences + used, sizeof(differences) - used,
                                     "%s--%s is %s here and %s there", used > 0 ? ", " : "",
                                     name_of(i), now, then);
        }
    }
    if (used > 0) {
        return FAIL(STATUS_OPTIONS_DIFFER,
                    "the schedule differs from that of '%.200s': %s; give "
                    "--override-opt-param-scheduler to go on with this one, or "
                    "--use-checkpoint-opt-param-scheduler to go on with that one",
                    where, differences);
    }
    return STATUS_OK;
}

enum status train_schedule_resume(struct train_options *options, int world_size, const cJSON *saved,
                                  const char *where, struct lr_schedule *out_schedule)
{
    enum status st = STATUS_OK;
    struct train_plan plan;

    if (options->use_checkpoint_opt_param_scheduler) {
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
            TRY(st, options_take_saved(&train_options_table, saved, name_of(i), options), done);
        }
    } else if (!options->override_opt_param_scheduler) {
        TRY(st, check_same(options, saved, where), done);
    }
    TRY(st, train_options_resolve(options, world_size, &plan), done);
    *out_schedule = plan.schedule;
done:
    return st;
}
