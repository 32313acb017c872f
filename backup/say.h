/* What the commands print of a step: a line for people, or one JSON object with a "type". */
#ifndef BACKUP_SAY_H
#define BACKUP_SAY_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/meta/manifest.h"

/* `type` is "pushed", "present", "pulled", "complete", "incomplete", "verified", "damaged",
 * "removed"; `manifest` may be NULL; `remark` may be "". Pushed and pulled steps have had their
 * progress line, so people get no second one. */
void say_step(bool json, const char *type, uint64_t step, const struct manifest *manifest,
              const char *remark);

#endif
