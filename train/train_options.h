/* The options of a training, and everything that follows from them before ranks meet.
 *
 * Before it: the command line (train_main). After it: trainer, which only sees resolved values.
 * train_options.def is the one table; ckpt/base/options.h walks it for the parser, the help, the
 * copy in the manifest and the check at resume.
 */
#ifndef TRAIN_TRAIN_OPTIONS_H
#define TRAIN_TRAIN_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/base/options.h"
#include "ckpt/base/status.h"
#include "ckpt/meta/layout.h"
#include "train/batch_schedule.h"
#include "train/model/gpt.h"
#include "train/optim/lr_schedule.h"

#define TRAIN_FIELD_BOOL(field) bool field;
#define TRAIN_FIELD_INT(field) int64_t field;
#define TRAIN_FIELD_FLOAT(field) double field;
#define TRAIN_FIELD_TEXT(field) char field[OPTIONS_TEXT_MAX];
#define TRAIN_FIELD_CHOICE(field) char field[OPTIONS_TEXT_MAX];
#define TRAIN_FIELD_WORDS(field) char field[OPTIONS_TEXT_MAX];

enum train_option {
#define OPTION(field, ...) TRAIN_OPTION_##field,
#include "train/train_options.def"
#undef OPTION
    TRAIN_OPTION_COUNT
};

struct train_options {
#define OPTION(field, name, type, ...) TRAIN_FIELD_##type(field)
#include "train/train_options.def"
#undef OPTION
    bool given[TRAIN_OPTION_COUNT];
};

/* What follows from the options and the number of ranks. */
struct train_plan {
    struct layout layout;
    struct gpt_config model;
    struct lr_schedule schedule;
    struct batch_schedule batch;
    int first_stage_layers, last_stage_layers; /* 0: an even share; see train_layout.h */
    int chunks;                                /* of each stage; 1: not interleaved */
    int64_t micro_batches;                     /* of one DP rank in the largest step */
    uint64_t train_steps;
    uint64_t train_samples; /* that these steps consume */
};

extern const struct option_table train_options_table;

/* Checks the options against each other and `world_size` (STATUS_USAGE names flags and numbers),
 * writes derived values into the options, so that they are saved as they act, and makes the plan.
 * Talks to nobody: every rank comes to the same verdict by itself. */
enum status train_options_resolve(struct train_options *options, int world_size,
                                  struct train_plan *out_plan) STATUS_MUST_CHECK;

#endif
