/* Lines in, files and one stream out; see log_merge.h. */
#include "recover/log_merge.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/fs.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "recover/run_dir.h"

#define PREFIX_MAX 64
#define LINE_WAIT_MS 100

struct line { /* an unfinished one */
    char *bytes;
    size_t count, capacity;
};

struct rank_log {
    struct line lines[LOG_STREAM_COUNT];
    struct fs_file *file; /* NULL: none, or it failed */
    uint64_t file_bytes;
    char tail[LOG_MERGE_TAIL_LINES][LOG_MERGE_TAIL_BYTES];
    uint64_t tail_count; /* lines ever; the newest is at (count - 1) % LINES */
};

struct log_merge {
    int out_fd;
    bool out_closed; /* the reader has gone */
    char run_dir[FS_PATH_MAX];
    uint64_t generation;
    struct rank_log *ranks;
    int rank_count;
    char *queue; /* queue[queue_begin .. queue_end) waits */
    size_t queue_begin, queue_end, queue_capacity;
    bool in_line;      /* the last byte written was no line's end */
    bool stuck;        /* ... and the reader did not take more in time */
    uint64_t left_out; /* lines since the queue was full */
};

enum status log_merge_create(int out_fd, const char *run_dir, int rank_count,
                             struct log_merge **out_merge)
{
    enum status st = STATUS_OK;
    struct log_merge *merge = NULL;

    TRY(st, mem_alloc(&merge, 1, sizeof *merge), done);
    merge->out_fd = out_fd;
    merge->rank_count = rank_count;
    (void)snprintf(merge->run_dir, sizeof merge->run_dir, "%s", run_dir);
    TRY(st, mem_alloc(&merge->ranks, (size_t)rank_count, sizeof *merge->ranks), done);
done:
    if (st != STATUS_OK) {
        log_merge_destroy(&merge);
    }
    *out_merge = merge;
    return st;
}

void log_merge_destroy(struct log_merge **merge)
{
    if (*merge == NULL) {
        return;
    }
    for (int i = 0; (*merge)->ranks != NULL && i < (*merge)->rank_count; i++) {
        struct rank_log *rank = &(*merge)->ranks[i];

        fs_close(&rank->file);
        for (int stream = 0; stream < LOG_STREAM_COUNT; stream++) {
            mem_free(&rank->lines[stream].bytes);
        }
    }
    mem_free(&(*merge)->ranks);
    mem_free(&(*merge)->queue);
    mem_free(merge);
}

static struct rank_log *rank_at(const struct log_merge *merge, int rank)
{
    CHECK(rank >= 0 && rank < merge->rank_count);
    return &merge->ranks[rank];
}

void log_merge_begin(struct log_merge *merge, uint64_t generation)
{
    merge->generation = generation;
    for (int i = 0; i < merge->rank_count; i++) {
        struct rank_log *rank = rank_at(merge, i);
        char path[FS_PATH_MAX];

        run_dir_log_path(merge->run_dir, generation, i, path);
        fs_close(&rank->file);
        rank->file_bytes = 0;
        rank->tail_count = 0;
        if (fs_open(fs_posix(), path, FS_CREATE, &rank->file) != STATUS_OK) {
            log_warn("rank %d has no log file: %s", i, status_last()->message);
        }
    }
}

static void write_file(struct rank_log *rank, int index, const char *bytes, size_t count)
{
    if (rank->file == NULL) {
        return;
    }
    if (fs_pwrite(rank->file, bytes, count, rank->file_bytes) != STATUS_OK) {
        log_warn("log of rank %d ends here: %s", index, status_last()->message);
        fs_close(&rank->file);
        return;
    }
    rank->file_bytes += count;
}

static void remember(struct rank_log *rank, const char *line, size_t count)
{
    char *place = rank->tail[rank->tail_count++ % LOG_MERGE_TAIL_LINES];
    size_t kept = count < LOG_MERGE_TAIL_BYTES - 1 ? count : LOG_MERGE_TAIL_BYTES - 1;

    memcpy(place, line, kept);
    place[kept] = '\0';
}

/* Makes room for `count` more bytes; false when the queue is full. */
static bool reserve_queue(struct log_merge *merge, size_t count)
{
    size_t waiting = merge->queue_end - merge->queue_begin;

    if (waiting + count > LOG_MERGE_QUEUE_MAX) {
        return false;
    }
    if (merge->queue_begin > 0 && merge->queue_end + count > merge->queue_capacity) {
        memmove(merge->queue, merge->queue + merge->queue_begin, waiting);
        merge->queue_begin = 0;
        merge->queue_end = waiting;
    }
    return mem_grow((void **)&merge->queue, &merge->queue_capacity, merge->queue_end + count, 1) ==
           STATUS_OK;
}

static void append_queue(struct log_merge *merge, const char *bytes, size_t count)
{
    memcpy(merge->queue + merge->queue_end, bytes, count);
    merge->queue_end += count;
}

/* Tells how many lines are missing, once there is room again. */
static void tell_left_out(struct log_merge *merge)
{
    char text[128];
    int length =
        snprintf(text, sizeof text,
                 "[%" PRIu64 " lines left out here, their reader was too slow: see logs]\n",
                 merge->left_out);

    if (merge->left_out > 0 && reserve_queue(merge, (size_t)length)) {
        append_queue(merge, text, (size_t)length);
        merge->left_out = 0;
    }
}

/* `line` has no newline. */
static void queue_line(struct log_merge *merge, int rank, const char *line, size_t count)
{
    char prefix[PREFIX_MAX];
    int length =
        snprintf(prefix, sizeof prefix, "[gen %" PRIu64 " rank %d] ", merge->generation, rank);

    if (merge->out_closed) {
        return;
    }
    if (merge->left_out > 0 && merge->queue_end - merge->queue_begin < LOG_MERGE_QUEUE_MAX / 2) {
        tell_left_out(merge);
    }
    if (merge->left_out > 0 || !reserve_queue(merge, (size_t)length + count + 1)) {
        merge->left_out++;
        return;
    }
    append_queue(merge, prefix, (size_t)length);
    append_queue(merge, line, count);
    append_queue(merge, "\n", 1);
}

static void end_line(struct log_merge *merge, int rank, struct line *line)
{
    struct rank_log *log = rank_at(merge, rank);

    queue_line(merge, rank, line->bytes, line->count);
    remember(log, line->bytes, line->count);
    line->bytes[line->count++] = '\n'; /* there is room: see add_piece */
    write_file(log, rank, line->bytes, line->count);
    line->count = 0;
}

/* Adds a piece without newline to an unfinished line. */
static void add_piece(struct log_merge *merge, int rank, struct line *line, const char *bytes,
                      size_t count)
{
    while (count > 0) {
        size_t room = LOG_MERGE_LINE_MAX - line->count;
        size_t part = count < room ? count : room;

        if (mem_grow((void **)&line->bytes, &line->capacity, line->count + part + 1, 1) !=
            STATUS_OK) {
            log_warn("output of rank %d is lost: %s", rank, status_last()->message);
            return;
        }
        memcpy(line->bytes + line->count, bytes, part);
        line->count += part;
        bytes += part;
        count -= part;
        if (line->count == LOG_MERGE_LINE_MAX && count > 0) {
            end_line(merge, rank, line);
        }
    }
}

void log_merge_feed(struct log_merge *merge, int rank, enum log_stream stream, const char *bytes,
                    size_t count)
{
    struct line *line = &rank_at(merge, rank)->lines[stream];

    while (count > 0) {
        const char *newline = memchr(bytes, '\n', count);
        size_t piece = newline != NULL ? (size_t)(newline - bytes) : count;

        add_piece(merge, rank, line, bytes, piece);
        if (newline == NULL) {
            break;
        }
        if (mem_grow((void **)&line->bytes, &line->capacity, line->count + 1, 1) == STATUS_OK) {
            end_line(merge, rank, line);
        }
        bytes += piece + 1;
        count -= piece + 1;
    }
    log_merge_flush(merge);
}

void log_merge_end(struct log_merge *merge, int rank, enum log_stream stream)
{
    struct line *line = &rank_at(merge, rank)->lines[stream];

    if (line->count > 0) {
        end_line(merge, rank, line);
        log_merge_flush(merge);
    }
}

bool log_merge_pending(const struct log_merge *merge)
{
    return merge->queue_end > merge->queue_begin;
}

/* What to write at once: whole lines if one fits into PIPE_BUF bytes. So many bytes do not block
 * after a poll that said "writable", on a pipe or a terminal; the descriptor itself is shared with
 * others and must stay blocking. */
static size_t next_part(const struct log_merge *merge)
{
    size_t waiting = merge->queue_end - merge->queue_begin;
    size_t part = waiting < PIPE_BUF ? waiting : PIPE_BUF;
    const char *begin = merge->queue + merge->queue_begin;
    const char *newline = memrchr(begin, '\n', part);

    return newline != NULL ? (size_t)(newline - begin) + 1 : part;
}

/* A line begun gets a moment to end, so that lines of this process's own log, which may go to the
 * same reader, do not come into its middle; once, until the reader takes something again. */
void log_merge_flush(struct log_merge *merge)
{
    while (log_merge_pending(merge)) {
        struct pollfd out = {.fd = merge->out_fd, .events = POLLOUT};

        if (poll(&out, 1, merge->in_line && !merge->stuck ? LINE_WAIT_MS : 0) <= 0) {
            merge->stuck = merge->in_line;
            break;
        }
        ssize_t written = write(merge->out_fd, merge->queue + merge->queue_begin, next_part(merge));

        if (written < 0 && errno != EINTR && errno != EAGAIN) {
            merge->out_closed = true; /* the files go on */
            merge->queue_begin = merge->queue_end;
        } else if (written < 0) {
            break;
        } else {
            merge->queue_begin += (size_t)written;
            merge->in_line = merge->queue[merge->queue_begin - 1] != '\n';
            merge->stuck = false;
        }
    }
    if (!log_merge_pending(merge)) {
        merge->queue_begin = 0;
        merge->queue_end = 0;
        tell_left_out(merge);
    }
}

void log_merge_drain(struct log_merge *merge, int64_t timeout_ms)
{
    struct deadline deadline = deadline_in_ms(timeout_ms);

    log_merge_flush(merge);
    while (log_merge_pending(merge) && !deadline_passed(deadline)) {
        clock_sleep_ms(1);
        log_merge_flush(merge);
    }
}

const char *log_merge_tail(const struct log_merge *merge, int rank, int index)
{
    const struct rank_log *log = rank_at(merge, rank);
    uint64_t kept = log->tail_count < LOG_MERGE_TAIL_LINES ? log->tail_count : LOG_MERGE_TAIL_LINES;

    if (index < 0 || (uint64_t)index >= kept) {
        return NULL;
    }
    return log->tail[(log->tail_count - kept + (uint64_t)index) % LOG_MERGE_TAIL_LINES];
}
