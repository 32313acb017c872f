/* Every schedule is a list of stages; see batch_schedule.h. The ramp's stages begin where
 * Megatron's floating-point division steps up, found by asking the division itself.
 */
#include "train/batch_schedule.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES_MAX (1ULL << 53)

static enum status add_stage(struct batch_schedule *schedule, const char *text, uint64_t begin,
                             int64_t batch)
{
    if (schedule->count == BATCH_STAGES_MAX) {
        return FAIL(STATUS_USAGE, "'%s' makes more than %d different batches", text,
                    BATCH_STAGES_MAX);
    }
    schedule->stages[schedule->count++] = (struct batch_stage){begin, batch};
    return STATUS_OK;
}

void batch_schedule_constant(int64_t batch, struct batch_schedule *out_schedule)
{
    out_schedule->stages[0] = (struct batch_stage){0, batch};
    out_schedule->count = 1;
}

/* --- the ramp ----------------------------------------------------------------------------- */

/* Reads a whole number at *text and moves behind it and the spaces after it. */
static bool read_number(const char **text, uint64_t *out_number)
{
    char *end = NULL;

    errno = 0;
    *out_number = strtoull(*text, &end, 10);
    bool is_number = isdigit((unsigned char)**text) && errno == 0 && *out_number < SAMPLES_MAX;
    *text = end + strspn(end, " ");
    return is_number;
}

/* The first count of samples at which count / part is `steps` or more. */
static uint64_t step_begin(double part, uint64_t steps)
{
    uint64_t begin = (uint64_t)ceil(part * (double)steps);

    while (begin > 0 && (double)(begin - 1) / part >= (double)steps) {
        begin--;
    }
    while ((double)begin / part < (double)steps) {
        begin++;
    }
    return begin;
}

enum status batch_schedule_ramp(const char *text, int64_t batch,
                                struct batch_schedule *out_schedule)
{
    enum status st = STATUS_OK;
    const char *at = text;
    uint64_t first = 0, increment = 0, samples = 0;

    if (!read_number(&at, &first) || !read_number(&at, &increment) || !read_number(&at, &samples) ||
        *at != 0 || first == 0 || increment == 0) {
        return FAIL(STATUS_USAGE,
                    "--rampup-batch-size '%s' is not START INCREMENT SAMPLES, as in 16 8 300000",
                    text);
    }
    if (first > (uint64_t)batch || ((uint64_t)batch - first) % increment != 0) {
        return FAIL(STATUS_USAGE,
                    "--rampup-batch-size %" PRIu64 " %" PRIu64 " %" PRIu64 ": from %" PRIu64
                    " to --global-batch-size %" PRId64
                    " is no whole number of increments of %" PRIu64,
                    first, increment, samples, first, batch, increment);
    }
    uint64_t increments = ((uint64_t)batch - first) / increment;
    double part = (double)samples / (double)increments;
    out_schedule->count = 0;
    for (uint64_t i = 0; i < increments && samples > 0; i++) {
        TRY(st,
            add_stage(out_schedule, text, step_begin(part, i), (int64_t)(first + i * increment)),
            done);
    }
    uint64_t end = increments == 0 || samples == 0 ? 0 : step_begin(part, increments);
    TRY(st, add_stage(out_schedule, text, end, batch), done);
done:
    return st;
}

/* --- steps -------------------------------------------------------------------------------- */

/* "32K:8" at *text; moves behind it. */
static bool read_stage(const char **text, uint64_t *out_tokens, uint64_t *out_batch)
{
    static const char suffixes[] = "KMBT";
    char *end = NULL;
    double tokens = strtod(*text, &end);

    if (!isdigit((unsigned char)**text)) {
        return false;
    }
    const char *suffix = *end == 0 ? NULL : strchr(suffixes, toupper((unsigned char)*end));
    if (suffix != NULL) {
        tokens *= pow(1000, (double)(suffix - suffixes + 1));
        end++;
    }
    if (*end != ':' || tokens >= (double)SAMPLES_MAX) {
        return false;
    }
    *out_tokens = (uint64_t)tokens;
    *text = end + 1;
    return read_number(text, out_batch) && *out_batch > 0 && *out_batch <= INT32_MAX;
}

enum status batch_schedule_steps(const char *text, int64_t sample_tokens,
                                 struct batch_schedule *out_schedule)
{
    enum status st = STATUS_OK;
    const char *at = text;

    out_schedule->count = 0;
    do {
        uint64_t tokens = 0, batch = 0;
        size_t count = out_schedule->count;
        bool is_stage = read_stage(&at, &tokens, &batch);
        uint64_t begin = tokens / (uint64_t)sample_tokens;
        if (!is_stage ||
            (count == 0 ? begin != 0 : begin <= out_schedule->stages[count - 1].begin)) {
            return FAIL(STATUS_USAGE,
                        "--step-batch-size-schedule '%s' is not a list of growing TOKENS:BATCH "
                        "that begins with 0, as in '0:4 32K:8 1M:16'",
                        text);
        }
        TRY(st, add_stage(out_schedule, text, begin, (int64_t)batch), done);
    } while (*at != 0);
done:
    return st;
}

/* --- questions ---------------------------------------------------------------------------- */

int64_t batch_schedule_at(const struct batch_schedule *schedule, uint64_t consumed_samples)
{
    size_t stage = schedule->count - 1;

    while (schedule->stages[stage].begin > consumed_samples) {
        stage--;
    }
    return schedule->stages[stage].batch;
}

int64_t batch_schedule_largest(const struct batch_schedule *schedule)
{
    int64_t largest = 0;

    for (size_t i = 0; i < schedule->count; i++) {
        largest = schedule->stages[i].batch > largest ? schedule->stages[i].batch : largest;
    }
    return largest;
}

/* Goes from stage to stage until `steps` are done or the next step would pass `samples`. */
static void walk(const struct batch_schedule *schedule, uint64_t *steps, uint64_t *samples)
{
    uint64_t done_steps = 0, done_samples = 0;

    for (size_t i = 0; i < schedule->count; i++) {
        uint64_t batch = (uint64_t)schedule->stages[i].batch;
        uint64_t in_stage = UINT64_MAX;
        if (i + 1 < schedule->count) {
            uint64_t end = schedule->stages[i + 1].begin;
            in_stage = end > done_samples ? (end - done_samples + batch - 1) / batch : 0;
        }
        uint64_t possible = (*samples - done_samples) / batch;
        possible = *steps - done_steps < possible ? *steps - done_steps : possible;
        uint64_t count = in_stage < possible ? in_stage : possible;
        done_steps += count;
        done_samples += count * batch;
        if (count < in_stage) {
            break;
        }
    }
    *steps = done_steps;
    *samples = done_samples;
}

uint64_t batch_schedule_step_count(const struct batch_schedule *schedule, uint64_t samples)
{
    uint64_t steps = UINT64_MAX;

    walk(schedule, &steps, &samples);
    return steps;
}

uint64_t batch_schedule_sample_count(const struct batch_schedule *schedule, uint64_t steps)
{
    uint64_t samples = UINT64_MAX;

    walk(schedule, &steps, &samples);
    return samples;
}
