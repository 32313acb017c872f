/* Options that the command line leaves to a file or to a checkpoint.
 *
 * Before it: the command line (train_options_table calls this when it is read). After it: the
 * checks of train_options. The command line goes before --config, and that before the checkpoint.
 */
#ifndef TRAIN_TRAIN_SETTINGS_H
#define TRAIN_TRAIN_SETTINGS_H

#include "ckpt/base/status.h"

/* `values` is a struct train_options. --config FILE, then --use-checkpoint-args: the options of
 * class FIXED of the checkpoint that --load (and --ckpt-step) would resume from, and of class
 * RESHARD with --use-mp-args-from-checkpoint-args. A given one that must be equal and is not is
 * STATUS_OPTIONS_DIFFER with both values. */
enum status train_settings_complete(void *values) STATUS_MUST_CHECK;

#endif
