/* Clocks and deadlines. Monotonic time decides; wall time is only printed. */
#ifndef CKPT_BASE_CLOCK_H
#define CKPT_BASE_CLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CLOCK_TEXT_MAX 32

int64_t clock_monotonic_ns(void);
int64_t clock_wall_ns(void);              /* since 1970-01-01 UTC */
void clock_sleep_ms(int64_t duration_ms); /* goes on after signals */
/* "2026-12-01T03:44:19Z" */
void clock_format_utc(int64_t wall_ns, char out_text[CLOCK_TEXT_MAX]);

/* A point in monotonic time by which a wait must end. */
struct deadline {
    int64_t at_ns;
};

struct deadline deadline_in_ms(int64_t duration_ms);
/* What is left, for poll(2): 0 when it has passed, else at least 1, at most INT_MAX. */
int deadline_left_ms(struct deadline deadline);
bool deadline_passed(struct deadline deadline);

#endif
