/* Megatron's training and validation lines. Before it: trainer; after it: stdout. Only float32 is
 * trained here, without loss scaling, so the scale is 1 and no iteration is skipped: a number that
 * is not finite stops the run.
 */
#include "train/metrics/log_line.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define LOSS_MAX_FOR_PPL 20.0

/* An optional field, or nothing. */
static const char *field(bool is_there, char *text, size_t bytes, const char *name, double value,
                         int decimals)
{
    text[0] = 0;
    if (is_there) {
        snprintf(text, bytes, " %s: %.*f |", name, decimals, value);
    }
    return text;
}

void log_line_format(const struct log_line *line, char out_text[LOG_LINE_TEXT_MAX])
{
    time_t seconds = (time_t)(line->wall_ns / 1000000000);
    struct tm parts = {0};
    char clock_text[32], throughput[96], zeros[96], norm[96];

    localtime_r(&seconds, &parts);
    strftime(clock_text, sizeof(clock_text), "%Y-%m-%d %H:%M:%S", &parts);
    snprintf(
        out_text, LOG_LINE_TEXT_MAX,
        " [%s.%06lld] iteration %8llu/%8llu | consumed samples: %12llu |"
        " elapsed time per iteration (ms): %.1f |%s learning rate: %.6E |"
        " global batch size: %5llu | lm loss: %.6E | loss scale: %.1f | grad norm: %.3f |%s%s"
        " number of skipped iterations: %3d | number of nan iterations: %3d |",
        clock_text, (long long)(line->wall_ns / 1000 % 1000000), (unsigned long long)line->step,
        (unsigned long long)line->train_steps, (unsigned long long)line->consumed_samples,
        line->step_ms,
        field(line->has_throughput, throughput, sizeof(throughput),
              "throughput per GPU (TFLOP/s/GPU)", line->tflops, 1),
        line->learning_rate, (unsigned long long)line->global_batch, line->loss, 1.0,
        line->grad_norm,
        field(line->has_zero_count, zeros, sizeof(zeros), "num zeros", (double)line->zero_count, 0),
        field(line->has_params_norm, norm, sizeof(norm), "params norm", line->params_norm, 3), 0,
        0);
}

void log_line_format_validation(uint64_t step, const char *set, double loss,
                                char out_text[LOG_LINE_TEXT_MAX])
{
    char text[256];
    char rule[257] = {0};

    int length = snprintf(text, sizeof(text),
                          " validation loss at iteration %llu%s%s%s | lm loss value: %.6E |"
                          " lm loss PPL: %.6E | ",
                          (unsigned long long)step, set[0] != 0 ? " on " : "", set,
                          set[0] != 0 ? " set" : "", loss, exp(fmin(LOSS_MAX_FOR_PPL, loss)));
    memset(rule, '-', (size_t)length + 1);
    snprintf(out_text, LOG_LINE_TEXT_MAX, "%s\n%s\n%s", rule, text, rule);
}
