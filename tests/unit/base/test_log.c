/* Claims of log.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/log.h"
#include "ckpt/base/thread.h"
#include "tests/unit/base/base_support.h"

Test(log, a_line_has_time_prefix_and_message)
{
    struct support_catch caught;
    int year, month, day, hour, minute, second, micro, end = 0;

    log_init(LOG_LEVEL_INFO, "rank 3");
    support_catch(&caught, STDERR_FILENO);
    log_info("step %d", 7);
    char *text = support_release(&caught);
    cr_assert(sscanf(text, "[%4d-%2d-%2d %2d:%2d:%2d.%6d] %n", &year, &month, &day, &hour, &minute,
                     &second, &micro, &end) == 7);
    cr_assert_str_eq(text + end, "rank 3: step 7\n");
    free(text);
}

Test(log, lines_below_the_level_are_left_out)
{
    struct support_catch caught;

    log_init(LOG_LEVEL_WARN, "");
    support_catch(&caught, STDERR_FILENO);
    log_debug("a");
    log_info("b");
    log_warn("c");
    log_error("d");
    char *text = support_release(&caught);
    cr_assert(strstr(text, "] warning: c\n[") != NULL, "%s", text);
    cr_assert(strstr(text, "] error: d\n") != NULL && strstr(text, "b\n") == NULL);
    free(text);
}

Test(log, a_long_message_is_cut_to_one_whole_line)
{
    struct support_catch caught;
    char message[3 * LOG_LINE_MAX];

    memset(message, 'x', sizeof message - 1);
    message[sizeof message - 1] = '\0';
    log_init(LOG_LEVEL_INFO, "");
    support_catch(&caught, STDERR_FILENO);
    log_info("%s", message);
    char *text = support_release(&caught);
    size_t length = strlen(text);
    cr_assert(length > LOG_LINE_MAX - 16 && length < LOG_LINE_MAX, "%zu", length);
    cr_assert(strchr(text, '\n') == text + length - 1);
    free(text);
}

static enum status log_piece(void *context, size_t index)
{
    (void)context;
    log_info("piece %03zu of many whose lines never mix", index);
    return STATUS_OK;
}

Test(log, lines_of_threads_never_mix)
{
    struct support_catch caught;
    struct thread_pool *pool = NULL;
    size_t lines = 0;

    log_init(LOG_LEVEL_INFO, "");
    assert_ok(thread_pool_create(4, &pool));
    support_catch(&caught, STDERR_FILENO);
    assert_ok(thread_pool_run(pool, log_piece, NULL, 200));
    char *text = support_release(&caught);
    thread_pool_destroy(pool);
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        size_t index;
        int end = 0;
        cr_assert(sscanf(line, "[%*[^]]] piece %3zu of many whose lines never mix%n", &index,
                         &end) == 1 &&
                      line[end] == '\0',
                  "%s", line);
        lines++;
    }
    cr_assert(lines == 200);
    free(text);
}
