/* Claims of status.h. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/base/base_support.h"

static enum status inner(void)
{
    return FAIL(STATUS_CORRUPT, "file '%s' is torn; restore it", "x");
}

static enum status outer(void)
{
    enum status st = STATUS_OK;

    TRY(st, inner(), done);
done:
    return st;
}

Test(status, an_error_keeps_its_code_message_and_trail)
{
    cr_assert(status_last()->code == STATUS_OK);
    assert_status(outer(), STATUS_CORRUPT);
    const struct status_record *record = status_last();
    cr_assert_str_eq(record->message, "file 'x' is torn; restore it");
    cr_assert(record->code == STATUS_CORRUPT && record->saved_errno == 0);
    cr_assert(record->trail_count == 2);
    cr_assert_str_eq(record->trail[0].function, "inner");
    cr_assert_str_eq(record->trail[1].function, "outer");
}

static enum status deep(int depth)
{
    enum status st = STATUS_OK;

    if (depth == 0) {
        return inner();
    }
    TRY(st, deep(depth - 1), done);
done:
    return st;
}

Test(status, a_trail_longer_than_its_place_keeps_the_birth)
{
    assert_status(deep(3 * STATUS_TRAIL_MAX), STATUS_CORRUPT);
    cr_assert(status_last()->trail_count == STATUS_TRAIL_MAX);
    cr_assert_str_eq(status_last()->trail[0].function, "inner");
}

static enum status fail_errno(int error)
{
    errno = error;
    return FAIL_ERRNO("cannot write 'x'");
}

Test(status, an_errno_becomes_the_code_that_the_header_names)
{
    static const struct {
        int error;
        enum status code;
    } rows[] = {
        {ENOSPC, STATUS_NO_SPACE},
        {EDQUOT, STATUS_NO_SPACE},
        {EFBIG, STATUS_NO_SPACE},
        {EACCES, STATUS_NO_PERMISSION},
        {EPERM, STATUS_NO_PERMISSION},
        {EROFS, STATUS_NO_PERMISSION},
        {ENOENT, STATUS_NOT_FOUND},
        {ENOTDIR, STATUS_NOT_FOUND},
        {EEXIST, STATUS_EXISTS},
        {ENOMEM, STATUS_NO_MEMORY},
        {EIO, STATUS_IO},
        {ELOOP, STATUS_IO},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_status(fail_errno(rows[i].error), rows[i].code);
        cr_assert(status_last()->saved_errno == rows[i].error);
        assert_says(strerror(rows[i].error));
    }
}

Test(status, a_message_may_quote_the_last_message_and_is_cut_when_too_long)
{
    char text[2 * STATUS_MESSAGE_MAX];

    assert_status(inner(), STATUS_CORRUPT);
    assert_status(FAIL(STATUS_IO, "again: %s", status_last()->message), STATUS_IO);
    cr_assert_str_eq(status_last()->message, "again: file 'x' is torn; restore it");
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_status(FAIL(STATUS_IO, "%s", text), STATUS_IO);
    cr_assert(strlen(status_last()->message) == STATUS_MESSAGE_MAX - 1);
}

Test(status, a_first_cause_goes_before_its_followers)
{
    cr_assert(status_first_cause(STATUS_PEER_LOST, STATUS_NO_SPACE) == STATUS_NO_SPACE);
    cr_assert(status_first_cause(STATUS_NO_SPACE, STATUS_ABORTED) == STATUS_NO_SPACE);
    cr_assert(status_first_cause(STATUS_IO, STATUS_NO_SPACE) == STATUS_IO);
    cr_assert(status_first_cause(STATUS_OK, STATUS_ABORTED) == STATUS_ABORTED);
    cr_assert(status_first_cause(STATUS_PEER_LOST, STATUS_OK) == STATUS_PEER_LOST);
    cr_assert(status_first_cause(STATUS_OK, STATUS_OK) == STATUS_OK);
}

static void *fail_and_take(void *record)
{
    (void)outer();
    status_take(record);
    return NULL;
}

Test(status, a_record_belongs_to_its_thread_until_given)
{
    struct status_record record;
    pthread_t thread;

    cr_assert(pthread_create(&thread, NULL, fail_and_take, &record) == 0);
    cr_assert(pthread_join(thread, NULL) == 0);
    cr_assert(status_last()->code == STATUS_OK);
    cr_assert(status_give(&record) == STATUS_CORRUPT);
    cr_assert(status_last()->trail_count == 2);
    cr_assert(status_give(status_last()) == STATUS_CORRUPT);
}

Test(status, printing_shows_the_message_and_on_demand_the_trail)
{
    struct support_catch caught;

    (void)outer();
    support_catch(&caught, STDERR_FILENO);
    status_print("holdfast", false);
    char *text = support_release(&caught);
    cr_assert_str_eq(text, "holdfast: file 'x' is torn; restore it\n");
    free(text);
    support_catch(&caught, STDERR_FILENO);
    status_print("holdfast", true);
    text = support_release(&caught);
    cr_assert(strstr(text, "in inner (") != NULL && strstr(text, "from outer (") != NULL);
    free(text);
}

Test(status, exit_codes_are_the_documented_ones)
{
    cr_assert(status_exit_code(STATUS_OK) == 0 && status_exit_code(STATUS_USAGE) == 2);
    cr_assert(status_exit_code(STATUS_NO_CHECKPOINT) == 10);
    cr_assert(status_exit_code(STATUS_CORRUPT) == 12);
    cr_assert(status_exit_code(STATUS_OPTIONS_DIFFER) == 14);
    cr_assert(status_retry_class(STATUS_PEER_LOST) == RETRY_RESTART);
    cr_assert_str_eq(status_name(STATUS_PEER_LOST), "PEER_LOST");
    cr_assert_str_eq(status_text(STATUS_PEER_LOST), "peer lost");
}

Test(status, a_broken_invariant_stops_the_process, .signal = SIGABRT)
{
    CHECK(1 + 1 == 3);
}
