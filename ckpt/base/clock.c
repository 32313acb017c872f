/* Clocks and deadlines; see clock.h. */
#include "ckpt/base/clock.h"

#include <errno.h>
#include <limits.h>
#include <time.h>

#include "ckpt/base/status.h"

#define NS_PER_MS 1000000
#define NS_PER_S 1000000000

static int64_t read_clock(clockid_t id)
{
    struct timespec now;

    CHECK(clock_gettime(id, &now) == 0);
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

int64_t clock_monotonic_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t clock_wall_ns(void)
{
    return read_clock(CLOCK_REALTIME);
}

void clock_sleep_ms(int64_t duration_ms)
{
    struct timespec left = {.tv_sec = duration_ms / 1000,
                            .tv_nsec = duration_ms % 1000 * NS_PER_MS};

    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

void clock_format_utc(int64_t wall_ns, char out_text[CLOCK_TEXT_MAX])
{
    time_t seconds = (time_t)(wall_ns / NS_PER_S);
    struct tm day;

    CHECK(gmtime_r(&seconds, &day) != NULL);
    CHECK(strftime(out_text, CLOCK_TEXT_MAX, "%Y-%m-%dT%H:%M:%SZ", &day) > 0);
}

struct deadline deadline_in_ms(int64_t duration_ms)
{
    return (struct deadline){clock_monotonic_ns() + duration_ms * NS_PER_MS};
}

int deadline_left_ms(struct deadline deadline)
{
    int64_t left_ns = deadline.at_ns - clock_monotonic_ns();

    if (left_ns <= 0) {
        return 0;
    }
    int64_t left_ms = (left_ns + NS_PER_MS - 1) / NS_PER_MS;
    return left_ms > INT_MAX ? INT_MAX : (int)left_ms;
}

bool deadline_passed(struct deadline deadline)
{
    return clock_monotonic_ns() >= deadline.at_ns;
}
