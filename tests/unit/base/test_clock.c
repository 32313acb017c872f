/* Claims of clock.h. */
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>

#include "ckpt/base/clock.h"
#include "tests/unit/base/base_support.h"

Test(clock, times_are_printed_in_utc)
{
    char text[CLOCK_TEXT_MAX];

    clock_format_utc(0, text);
    cr_assert_str_eq(text, "1970-01-01T00:00:00Z");
    clock_format_utc(INT64_C(1796096659) * 1000000000 + 999999999, text);
    cr_assert_str_eq(text, "2026-12-01T03:44:19Z");
}

Test(clock, a_deadline_leaves_at_least_one_millisecond_until_it_passes)
{
    struct deadline soon = deadline_in_ms(20), gone = deadline_in_ms(0);
    struct deadline far = deadline_in_ms(INT64_C(90) * 24 * 3600 * 1000);

    cr_assert(deadline_passed(gone) && deadline_left_ms(gone) == 0);
    cr_assert(deadline_left_ms(far) == INT_MAX);
    while (!deadline_passed(soon)) {
        cr_assert(deadline_left_ms(soon) <= 20);
    }
    cr_assert(deadline_left_ms(soon) == 0);
}

static void on_alarm(int number)
{
    (void)number;
}

Test(clock, a_sleep_goes_on_after_signals)
{
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval every = {{0, 5000}, {0, 5000}};

    cr_assert(sigaction(SIGALRM, &action, NULL) == 0);
    cr_assert(setitimer(ITIMER_REAL, &every, NULL) == 0);
    int64_t begin = clock_monotonic_ns();
    clock_sleep_ms(60);
    cr_assert(clock_monotonic_ns() - begin >= 60 * 1000000);
}
