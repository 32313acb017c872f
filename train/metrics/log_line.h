/* The two lines that people's scripts read, in Megatron's format to the letter.
 *
 * Before it: trainer (numbers of a step). After it: stdout of the last rank.
 */
#ifndef TRAIN_METRICS_LOG_LINE_H
#define TRAIN_METRICS_LOG_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LOG_LINE_TEXT_MAX 1024

struct log_line {
    int64_t wall_ns; /* when the line is printed */
    uint64_t step, train_steps;
    uint64_t consumed_samples;
    double step_ms;       /* mean since the last line */
    double learning_rate; /* of the next step, as Megatron prints it */
    uint64_t global_batch;
    double loss;      /* mean since the last line */
    double grad_norm; /* before clipping */
    bool has_throughput, has_zero_count, has_params_norm;
    double tflops;       /* a second, of one rank */
    uint64_t zero_count; /* of the gradient's elements */
    double params_norm;
};

/* " [2026-12-01 03:44:19.123456] iteration       10/     200 | ... |", local time, no newline. */
void log_line_format(const struct log_line *line, char out_text[LOG_LINE_TEXT_MAX]);
/* Three lines: the validation loss and its exponential between two rules. `set` is "" during the
 * training, "validation" and "test" for the two after it. */
void log_line_format_validation(uint64_t step, const char *set, double loss,
                                char out_text[LOG_LINE_TEXT_MAX]);

#endif
