/* Lines of many ranks: whole in the stream, whole in the files, and never a reason to wait. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/fs.h"
#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"
#include "recover/log_merge.h"

static char folder[FS_PATH_MAX];
static int fds[2];

static void set_up(void)
{
    char logs[FS_PATH_MAX];
    const char *parent = getenv("TMPDIR");

    (void)signal(SIGPIPE, SIG_IGN);
    (void)snprintf(folder, sizeof folder, "%s/log merge XXXXXX", parent != NULL ? parent : "/tmp");
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(fs_join(logs, folder, "logs"), STATUS_OK);
    cr_assert_eq(fs_mkdir(fs_posix(), logs), STATUS_OK);
    cr_assert_eq(pipe(fds), 0);
    cr_assert_eq(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
}

static void tear_down(void)
{
    (void)close(fds[0]);
    (void)close(fds[1]);
    cr_assert_eq(fs_remove_tree(fs_posix(), folder), STATUS_OK);
}

TestSuite(log_merge, .init = set_up, .fini = tear_down);

static struct log_merge *start(int ranks)
{
    struct log_merge *merge;

    cr_assert_eq(log_merge_create(fds[1], folder, ranks, &merge), STATUS_OK);
    log_merge_begin(merge, 2);
    return merge;
}

static void feed(struct log_merge *merge, int rank, const char *text)
{
    log_merge_feed(merge, rank, LOG_STREAM_OUT, text, strlen(text));
}

static const char *stream_text(void)
{
    static char text[1 << 16];
    ssize_t got = read(fds[0], text, sizeof text - 1);

    text[got > 0 ? got : 0] = '\0';
    return text;
}

Test(log_merge, keeps_lines_whole_that_come_in_pieces)
{
    struct log_merge *merge = start(2);

    feed(merge, 0, "one ");
    feed(merge, 1, "two\nthr");
    feed(merge, 0, "line\n\n");
    feed(merge, 1, "ee\n");
    cr_assert_str_eq(stream_text(), "[gen 2 rank 1] two\n[gen 2 rank 0] one line\n"
                                    "[gen 2 rank 0] \n[gen 2 rank 1] three\n");
    log_merge_destroy(&merge);
}

Test(log_merge, does_not_join_stdout_and_stderr)
{
    struct log_merge *merge = start(1);

    feed(merge, 0, "out ");
    log_merge_feed(merge, 0, LOG_STREAM_ERR, "err\n", 4);
    feed(merge, 0, "goes on\n");
    cr_assert_str_eq(stream_text(), "[gen 2 rank 0] err\n[gen 2 rank 0] out goes on\n");
    log_merge_destroy(&merge);
}

Test(log_merge, ends_an_unfinished_last_line)
{
    struct log_merge *merge = start(1);

    feed(merge, 0, "no newline");
    cr_assert_str_eq(stream_text(), "");
    log_merge_end(merge, 0, LOG_STREAM_OUT);
    cr_assert_str_eq(stream_text(), "[gen 2 rank 0] no newline\n");
    log_merge_destroy(&merge);
}

Test(log_merge, writes_a_file_for_each_rank_and_generation)
{
    struct log_merge *merge = start(2);
    char path[FS_PATH_MAX + 64], *text;
    size_t bytes;

    feed(merge, 1, "first\nsecond\n");
    log_merge_begin(merge, 3);
    feed(merge, 1, "third\n");
    (void)snprintf(path, sizeof path, "%s/logs/gen_2_rank_1.log", folder);
    cr_assert_eq(fs_read_file(fs_posix(), path, 1000, &text, &bytes), STATUS_OK);
    cr_assert_str_eq(text, "first\nsecond\n");
    mem_free(&text);
    (void)snprintf(path, sizeof path, "%s/logs/gen_3_rank_1.log", folder);
    cr_assert_eq(fs_read_file(fs_posix(), path, 1000, &text, &bytes), STATUS_OK);
    cr_assert_str_eq(text, "third\n");
    mem_free(&text);
    log_merge_destroy(&merge);
}

Test(log_merge, remembers_the_last_lines)
{
    struct log_merge *merge = start(1);
    char line[32];

    cr_assert_null(log_merge_tail(merge, 0, 0));
    for (int i = 0; i < 20; i++) {
        (void)snprintf(line, sizeof line, "line %d\n", i);
        feed(merge, 0, line);
    }
    cr_assert_str_eq(log_merge_tail(merge, 0, 0), "line 12");
    cr_assert_str_eq(log_merge_tail(merge, 0, LOG_MERGE_TAIL_LINES - 1), "line 19");
    cr_assert_null(log_merge_tail(merge, 0, LOG_MERGE_TAIL_LINES));
    log_merge_destroy(&merge);
}

Test(log_merge, cuts_endless_lines)
{
    struct log_merge *merge = start(1);
    char *piece;
    size_t bytes = LOG_MERGE_LINE_MAX / 2 + 1;

    cr_assert_eq(mem_alloc(&piece, bytes, 1), STATUS_OK);
    memset(piece, 'x', bytes);
    cr_assert_null(log_merge_tail(merge, 0, 0));
    log_merge_feed(merge, 0, LOG_STREAM_OUT, piece, bytes);
    log_merge_feed(merge, 0, LOG_STREAM_OUT, piece, bytes);
    cr_assert_not_null(log_merge_tail(merge, 0, 0));
    cr_assert_null(log_merge_tail(merge, 0, 1));
    log_merge_end(merge, 0, LOG_STREAM_OUT);
    cr_assert_str_eq(log_merge_tail(merge, 0, 1), "xx");
    mem_free(&piece);
    log_merge_destroy(&merge);
}

Test(log_merge, never_waits_for_a_reader_and_says_what_is_missing)
{
    struct log_merge *merge = start(1);
    char line[1001], text[8192];
    size_t whole = 0;
    bool told = false;
    ssize_t got;

    memset(line, 'y', 1000);
    line[1000] = '\n';
    int64_t began = clock_monotonic_ns();

    for (size_t i = 0; i < 2 * LOG_MERGE_QUEUE_MAX / 1000; i++) {
        log_merge_feed(merge, 0, LOG_STREAM_OUT, line, sizeof line);
    }
    cr_assert_lt(clock_monotonic_ns() - began, 10000000000LL);
    cr_assert(log_merge_pending(merge));
    do {
        log_merge_flush(merge);
        got = read(fds[0], text, sizeof text - 1);
        text[got > 0 ? got : 0] = '\0';
        whole += got > 0 ? (size_t)got : 0;
        told = told || strstr(text, "lines left out here") != NULL;
    } while (log_merge_pending(merge) || got > 0);
    cr_assert(told);
    cr_assert_leq(whole, LOG_MERGE_QUEUE_MAX + (1 << 17));
    log_merge_destroy(&merge);
}

static enum status read_slowly(void *context)
{
    size_t *left = context;
    char bytes[4096];

    while (*left > 0) {
        ssize_t got = read(fds[0], bytes, sizeof bytes);

        *left -= got > 0 ? (size_t)got : 0;
        clock_sleep_ms(1);
    }
    return STATUS_OK;
}

/* The agent's own log may go to the same reader, so a line must not be left half written. */
Test(log_merge, ends_a_line_that_it_has_begun)
{
    struct log_merge *merge = start(1);
    struct thread_task *reader;
    const size_t bytes = 200000;
    size_t left = strlen("[gen 2 rank 0] ") + bytes;
    char *line;

    cr_assert_eq(mem_alloc(&line, bytes, 1), STATUS_OK);
    memset(line, 'z', bytes);
    line[bytes - 1] = '\n';
    cr_assert_eq(thread_task_start(read_slowly, &left, &reader), STATUS_OK);
    log_merge_feed(merge, 0, LOG_STREAM_OUT, line, bytes);
    cr_assert_not(log_merge_pending(merge));
    cr_assert_eq(thread_task_join(reader), STATUS_OK);
    mem_free(&line);
    log_merge_destroy(&merge);
}

Test(log_merge, goes_on_writing_files_when_the_reader_has_gone)
{
    struct log_merge *merge = start(1);
    char path[FS_PATH_MAX + 64], *text;
    size_t bytes;

    (void)close(fds[0]);
    fds[0] = -1;
    feed(merge, 0, "first\n");
    feed(merge, 0, "second\n");
    cr_assert_not(log_merge_pending(merge));
    (void)snprintf(path, sizeof path, "%s/logs/gen_2_rank_0.log", folder);
    cr_assert_eq(fs_read_file(fs_posix(), path, 1000, &text, &bytes), STATUS_OK);
    cr_assert_str_eq(text, "first\nsecond\n");
    mem_free(&text);
    log_merge_destroy(&merge);
}
