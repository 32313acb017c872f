/* Whose learning rate and weight decay a resumed run follows: its own flags' or its checkpoint's.
 *
 * Before it: train_ckpt (a manifest's options). After it: trainer, through train_ckpt's schedule.
 * As in Megatron, flags that differ are refused unless one of --override-opt-param-scheduler and
 * --use-checkpoint-opt-param-scheduler says whose count; either way from the first step on.
 */
#ifndef TRAIN_TRAIN_SCHEDULE_H
#define TRAIN_TRAIN_SCHEDULE_H

#include <cjson/cJSON.h>

#include "ckpt/base/status.h"
#include "train/train_options.h"

/* `saved` are the options of the checkpoint `where`. The schedule's options become the
 * checkpoint's if the flags say so; *out_schedule follows from them. STATUS_OPTIONS_DIFFER names
 * both values of each that differs. */
enum status train_schedule_resume(struct train_options *options, int world_size, const cJSON *saved,
                                  const char *where, struct lr_schedule *out_schedule)
    STATUS_MUST_CHECK;

#endif
