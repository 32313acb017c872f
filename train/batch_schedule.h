/* The global batch as a pure function of the samples that the steps before have consumed.
 *
 * Before it: train_options (--global-batch-size, --rampup-batch-size, --step-batch-size-schedule).
 * After it: trainer (micro-batches of a step), train_options (steps of a training, samples to ask
 * the data for). Since the position in the data and of the learning rate are counts of samples too,
 * a run resumes in the middle of a ramp as if it had never stopped.
 */
#ifndef TRAIN_BATCH_SCHEDULE_H
#define TRAIN_BATCH_SCHEDULE_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"

#define BATCH_STAGES_MAX 1024

struct batch_stage {
    uint64_t begin; /* in consumed samples; the first's is 0; of equal ones the last counts */
    int64_t batch;  /* samples of each step that begins in this stage */
};

struct batch_schedule {
    struct batch_stage stages[BATCH_STAGES_MAX];
    size_t count;
};

void batch_schedule_constant(int64_t batch, struct batch_schedule *out_schedule);
/* "START INCREMENT SAMPLES": from START to `batch` in equal parts of the first SAMPLES samples.
 * STATUS_USAGE names `text` and the numbers. */
enum status batch_schedule_ramp(const char *text, int64_t batch,
                                struct batch_schedule *out_schedule) STATUS_MUST_CHECK;
/* "0:4 32K:8 1M:16": from each threshold on its batch. Thresholds count tokens (K, M, B and T are
 * powers of 1000) and are rounded down to whole samples of `sample_tokens`. */
enum status batch_schedule_steps(const char *text, int64_t sample_tokens,
                                 struct batch_schedule *out_schedule) STATUS_MUST_CHECK;

int64_t batch_schedule_at(const struct batch_schedule *schedule, uint64_t consumed_samples);
int64_t batch_schedule_largest(const struct batch_schedule *schedule);
/* How many whole steps `samples` are enough for, from 0 on, and how many samples that is. */
uint64_t batch_schedule_step_count(const struct batch_schedule *schedule, uint64_t samples);
/* The samples that the first `steps` steps consume. */
uint64_t batch_schedule_sample_count(const struct batch_schedule *schedule, uint64_t steps);

#endif
