/* From text to token files; see preprocess.h.
 *
 *     mapped input -> chunks of whole documents -> workers (parse, encode) -> writers, in order
 *
 * Rounds: as many chunks as keep every worker busy are cut, encoded in parallel and written in
 * input order. Workers share nothing but the counter that hands out chunks, so that the output
 * does not depend on their number; the first error in input order wins.
 */
#include "train/data/preprocess.h"

#include <stdatomic.h>
#include <string.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"
#include "train/data/json_line.h"
#include "train/data/map_file.h"
#include "train/data/token_file.h"

#define CHUNK_BYTES ((size_t)256 << 10)
#define CHUNKS_PER_WORKER 4
#define SECOND_NS 1000000000.0

struct chunk_output { /* one key's part of a chunk */
    struct token_buffer tokens;
    struct token_buffer lengths; /* tokens of each sequence */
    struct token_buffer counts;  /* sequences of each document */
};

struct chunk { /* whole documents, and what became of them */
    const char *begin, *end;
    struct chunk_output *outputs; /* [key_count] */
    enum status status;
    struct status_record failure;
};

struct job {
    const struct preprocess_config *config;
    struct map_file input;
    const char *begin, *end; /* of the input */
    const char *next;        /* not yet cut into chunks */
    struct chunk *chunks;    /* [chunk_capacity] */
    size_t chunk_capacity, chunk_count;
    atomic_size_t chunk_taken;
    struct tokenizer_scratch **scratches; /* [workers] */
    struct thread_pool *pool;
    struct token_writer **writers; /* [key_count] */
    uint64_t documents;
    int64_t start_ns, logged_ns;
    uint64_t logged_documents;
};

static bool is_blank(const char *begin, const char *end)
{
    while (begin < end && (*begin == ' ' || *begin == '\t' || *begin == '\r')) {
        begin++;
    }
    return begin == end;
}

/* The end of the line that holds `at`: its newline, or `end`. */
static const char *line_end(const char *at, const char *end)
{
    const char *newline = memchr(at, '\n', (size_t)(end - at));

    return newline == NULL ? end : newline;
}

static const char *line_after(const char *at, const char *end)
{
    at = line_end(at, end);
    return at == end ? end : at + 1;
}

static unsigned long long line_number(const struct job *job, const char *at)
{
    unsigned long long number = 1;

    for (const char *line = job->begin; (line = line_end(line, at)) != at; line++) {
        number++;
    }
    return number;
}

/* A position from CHUNK_BYTES on where no document is cut. */
static const char *find_cut(const struct job *job, const char *from)
{
    enum preprocess_format format = job->config->format;

    if (format == PREPROCESS_TEXT_FILE || (size_t)(job->end - from) <= CHUNK_BYTES) {
        return job->end;
    }
    const char *at = line_after(from + CHUNK_BYTES, job->end);
    while (format == PREPROCESS_TEXT_PARAGRAPHS && at < job->end &&
           !is_blank(at, line_end(at, job->end))) {
        at = line_after(at, job->end);
    }
    return at;
}

/* Finds the next document of plain text from *at on; false at the end. */
static bool next_text(enum preprocess_format format, const char **at, const char *end,
                      const char **out_text, size_t *out_bytes)
{
    if (format == PREPROCESS_TEXT_FILE) {
        *out_text = *at;
        *out_bytes = (size_t)(end - *at);
        *at = end;
        return *out_bytes > 0;
    }
    while (*at < end && is_blank(*at, line_end(*at, end))) {
        *at = line_after(*at, end);
    }
    if (*at == end) {
        return false;
    }
    *out_text = *at;
    const char *text_end = NULL;
    do {
        text_end = line_end(*at, end);
        *at = line_after(*at, end);
    } while (format == PREPROCESS_TEXT_PARAGRAPHS && *at < end &&
             !is_blank(*at, line_end(*at, end)));
    text_end -= text_end > *out_text && text_end[-1] == '\r';
    *out_bytes = (size_t)(text_end - *out_text);
    return true;
}

static enum status check_text(const struct job *job, const char *text, size_t bytes)
{
    size_t valid = tokenizer_find_invalid_utf8(text, bytes);

    if (valid < bytes) {
        return FAIL(STATUS_BAD_DATA,
                    "invalid UTF-8 (byte 0x%02x) in '%s' line %llu; convert the "
                    "file, for example by iconv",
                    (unsigned char)text[valid], job->config->input, line_number(job, text + valid));
    }
    if (bytes > PREPROCESS_DOCUMENT_BYTES_MAX) {
        return FAIL(STATUS_BAD_DATA,
                    "document of %zu bytes in '%s' line %llu is longer than %zu; "
                    "cut it",
                    bytes, job->config->input, line_number(job, text),
                    PREPROCESS_DOCUMENT_BYTES_MAX);
    }
    return STATUS_OK;
}

/* Adds one sequence to the document at hand; a text without tokens gives none. */
static enum status encode_sequence(const struct job *job, struct tokenizer_scratch *scratch,
                                   struct chunk_output *output, const char *text, size_t bytes,
                                   int32_t *sequence_count)
{
    enum status st = STATUS_OK;
    size_t before = output->tokens.count;

    TRY(st, tokenizer_encode(job->config->tokenizer, scratch, text, bytes, &output->tokens), done);
    int32_t length = (int32_t)(output->tokens.count - before);
    if (length > 0) {
        TRY(st, token_buffer_append(&output->lengths, &length, 1), done);
        ++*sequence_count;
    }
done:
    return st;
}

/* Ends a document; one with sequences gets the end token at the last of them. */
static enum status end_document(const struct job *job, struct chunk_output *output,
                                int32_t sequence_count)
{
    enum status st = STATUS_OK;

    if (sequence_count > 0 && job->config->append_end_of_document) {
        TRY(st, token_buffer_append(&output->tokens, &job->config->tokenizer->end_of_document, 1),
            done);
        output->lengths.ids[output->lengths.count - 1]++;
    }
    TRY(st, token_buffer_append(&output->counts, &sequence_count, 1), done);
done:
    return st;
}

static enum status encode_key(const struct job *job, struct tokenizer_scratch *scratch,
                              struct chunk_output *output, struct json_texts *texts)
{
    enum status st = STATUS_OK;
    const char *text = NULL;
    size_t bytes = 0;
    int32_t sequence_count = 0;

    while (json_texts_next(texts, &text, &bytes)) {
        TRY(st, encode_sequence(job, scratch, output, text, bytes, &sequence_count), done);
    }
    TRY(st, end_document(job, output, sequence_count), done);
done:
    return st;
}

static enum status encode_json_line(const struct job *job, struct tokenizer_scratch *scratch,
                                    struct chunk *chunk, const char *line, const char *end)
{
    enum status st = STATUS_OK;
    struct json_line parsed = {0};
    const char *fault = NULL;

    TRY(st, check_text(job, line, (size_t)(end - line)), done);
    TRY(st, json_line_parse(line, (size_t)(end - line), &parsed, &fault), done);
    if (fault != NULL) {
        st = FAIL(STATUS_BAD_DATA, "%s in '%s' line %llu; every line must be one JSON object",
                  fault, job->config->input, line_number(job, line));
        goto done;
    }
    for (size_t key = 0; key < job->config->key_count; key++) {
        struct json_texts texts = {0};

        fault = json_line_find(&parsed, job->config->keys[key], &texts);
        if (fault != NULL) {
            st = FAIL(STATUS_BAD_DATA,
                      "%s '%s' in '%s' line %llu; every line needs the text under it (--json-keys)",
                      fault, job->config->keys[key], job->config->input, line_number(job, line));
            goto done;
        }
        TRY(st, encode_key(job, scratch, &chunk->outputs[key], &texts), done);
    }
done:
    json_line_deinit(&parsed);
    return st;
}

static enum status encode_text(const struct job *job, struct tokenizer_scratch *scratch,
                               struct chunk_output *output, const char *text, size_t bytes)
{
    enum status st = STATUS_OK;
    int32_t sequence_count = 0;

    TRY(st, check_text(job, text, bytes), done);
    TRY(st, encode_sequence(job, scratch, output, text, bytes, &sequence_count), done);
    TRY(st, end_document(job, output, sequence_count), done);
done:
    return st;
}

static enum status encode_chunk(const struct job *job, struct tokenizer_scratch *scratch,
                                struct chunk *chunk)
{
    enum status st = STATUS_OK;
    const char *at = chunk->begin, *text = NULL;
    size_t bytes = 0;

    if (job->config->format == PREPROCESS_JSON_LINES) {
        for (; at < chunk->end; at = line_after(at, chunk->end)) {
            TRY(st, encode_json_line(job, scratch, chunk, at, line_end(at, chunk->end)), done);
        }
    } else {
        while (next_text(job->config->format, &at, chunk->end, &text, &bytes)) {
            TRY(st, encode_text(job, scratch, &chunk->outputs[0], text, bytes), done);
        }
    }
done:
    return st;
}

/* One worker of a round: takes chunks until none is left. */
static enum status run_worker(void *context, size_t worker)
{
    struct job *job = context;
    size_t i = 0;

    while ((i = atomic_fetch_add(&job->chunk_taken, 1)) < job->chunk_count) {
        struct chunk *chunk = &job->chunks[i];

        chunk->status = encode_chunk(job, job->scratches[worker], chunk);
        if (chunk->status != STATUS_OK) {
            status_take(&chunk->failure);
        }
    }
    return STATUS_OK;
}

static void cut_chunks(struct job *job)
{
    for (job->chunk_count = 0; job->next < job->end && job->chunk_count < job->chunk_capacity;
         job->chunk_count++) {
        struct chunk *chunk = &job->chunks[job->chunk_count];

        chunk->begin = job->next;
        chunk->end = find_cut(job, job->next);
        job->next = chunk->end;
        for (size_t key = 0; key < job->config->key_count; key++) {
            chunk->outputs[key].tokens.count = 0;
            chunk->outputs[key].lengths.count = 0;
            chunk->outputs[key].counts.count = 0;
        }
    }
    atomic_store(&job->chunk_taken, 0);
}

static enum status write_chunk(struct job *job, const struct chunk *chunk)
{
    enum status st = STATUS_OK;

    if (chunk->status != STATUS_OK) {
        return status_give(&chunk->failure);
    }
    for (size_t key = 0; key < job->config->key_count; key++) {
        const struct chunk_output *output = &chunk->outputs[key];
        const int32_t *ids = output->tokens.ids, *length = output->lengths.ids;

        for (size_t document = 0; document < output->counts.count; document++) {
            for (int32_t left = output->counts.ids[document]; left > 0; left--) {
                TRY(st, token_writer_add_sequence(job->writers[key], ids, (size_t)*length), done);
                ids += *length++;
            }
            TRY(st, token_writer_end_document(job->writers[key]), done);
        }
    }
    job->documents += chunk->outputs[0].counts.count;
done:
    return st;
}

static void log_progress(struct job *job)
{
    int64_t now = clock_monotonic_ns(), interval = job->config->log_interval;
    double seconds = (double)(now - job->start_ns) / SECOND_NS;
    double bytes = (double)(job->next - job->begin), all = (double)(job->end - job->begin);

    if (interval == 0 || job->documents < job->logged_documents + (uint64_t)interval ||
        (double)(now - job->logged_ns) < SECOND_NS) {
        return;
    }
    job->logged_ns = now;
    job->logged_documents = job->documents;
    log_info("%5.1f %% | %llu documents | %.0f docs/s | %.1f MB/s | %.0f s left", 100 * bytes / all,
             (unsigned long long)job->documents, (double)job->documents / seconds,
             bytes / seconds / 1e6, seconds * (all - bytes) / bytes);
}

static enum status run_rounds(struct job *job)
{
    enum status st = STATUS_OK;

    while (job->next < job->end) {
        cut_chunks(job);
        TRY(st, thread_pool_run(job->pool, run_worker, job, (size_t)job->config->workers), done);
        for (size_t i = 0; i < job->chunk_count; i++) {
            TRY(st, write_chunk(job, &job->chunks[i]), done);
        }
        if (job->config->should_stop != NULL && job->config->should_stop()) {
            return FAIL(STATUS_INTERRUPTED, "interrupted; nothing is written under '%s'",
                        job->config->output_prefix);
        }
        log_progress(job);
    }
done:
    return st;
}

static enum status open_writers(struct job *job)
{
    enum status st = STATUS_OK;
    const struct preprocess_config *config = job->config;
    char *prefix = NULL;

    TRY(st, mem_alloc(&job->writers, config->key_count, sizeof *job->writers), done);
    for (size_t key = 0; key < config->key_count; key++) {
        mem_free(&prefix);
        TRY(st, mem_format(&prefix, "%s_%s_document", config->output_prefix, config->keys[key]),
            done);
        TRY(st,
            token_writer_create(config->fs, prefix,
                                token_type_for_vocab(config->tokenizer->vocab_size),
                                &job->writers[key]),
            done);
    }
done:
    mem_free(&prefix);
    return st;
}

static enum status open_workers(struct job *job)
{
    enum status st = STATUS_OK;
    size_t workers = (size_t)job->config->workers, keys = job->config->key_count;

    TRY(st, thread_pool_create(job->config->workers, &job->pool), done);
    TRY(st, mem_alloc(&job->scratches, workers, sizeof *job->scratches), done);
    for (size_t i = 0; i < workers; i++) {
        TRY(st, tokenizer_create_scratch(job->config->tokenizer, &job->scratches[i]), done);
    }
    job->chunk_capacity = workers * CHUNKS_PER_WORKER;
    TRY(st, mem_alloc(&job->chunks, job->chunk_capacity, sizeof *job->chunks), done);
    for (size_t i = 0; i < job->chunk_capacity; i++) {
        TRY(st, mem_alloc(&job->chunks[i].outputs, keys, sizeof *job->chunks[i].outputs), done);
    }
done:
    return st;
}

static enum status open_input(struct job *job)
{
    enum status st = STATUS_OK;

    TRY(st, map_file_open(job->config->input, &job->input), done);
    job->begin = (const char *)job->input.bytes;
    job->end = job->begin + job->input.count;
    job->next = job->begin;
    if (job->input.count == 0) {
        return FAIL(STATUS_BAD_DATA, "empty input: '%s' has 0 bytes", job->config->input);
    }
    if (job->input.count >= 3 && memcmp(job->begin, "\xef\xbb\xbf", 3) == 0) {
        return FAIL(STATUS_BAD_DATA,
                    "byte order mark in '%s' line 1; take it away, for example "
                    "by sed -i '1s/^\\xef\\xbb\\xbf//'",
                    job->config->input);
    }
done:
    return st;
}

/* Makes all pairs durable before the first gets its name. */
static enum status publish(struct job *job)
{
    enum status st = STATUS_OK;
    const struct preprocess_config *config = job->config;

    for (size_t key = 0; key < config->key_count; key++) {
        if (token_writer_token_count(job->writers[key]) == 0) {
            return FAIL(STATUS_BAD_DATA,
                        "no tokens for '%s' in '%s': all of its %llu documents "
                        "are empty; nothing is written",
                        config->keys[key], config->input, (unsigned long long)job->documents);
        }
        TRY(st, token_writer_finish(job->writers[key]), done);
    }
    for (size_t key = 0; key < config->key_count; key++) {
        TRY(st, token_writer_publish(job->writers[key]), done);
    }
    double seconds = (double)(clock_monotonic_ns() - job->start_ns) / SECOND_NS;
    for (size_t key = 0; key < config->key_count; key++) {
        log_info("wrote '%s_%s_document': %llu documents, %llu tokens in %.2f s (%.1f MB/s)",
                 config->output_prefix, config->keys[key], (unsigned long long)job->documents,
                 (unsigned long long)token_writer_token_count(job->writers[key]), seconds,
                 (double)job->input.count / seconds / 1e6);
    }
done:
    return st;
}

static void close_job(struct job *job)
{
    size_t keys = job->config->key_count;

    for (size_t key = 0; job->writers != NULL && key < keys; key++) {
        token_writer_destroy(job->writers[key]);
    }
    for (size_t i = 0; job->chunks != NULL && i < job->chunk_capacity; i++) {
        struct chunk *chunk = &job->chunks[i];

        for (size_t key = 0; chunk->outputs != NULL && key < keys; key++) {
            token_buffer_deinit(&chunk->outputs[key].tokens);
            token_buffer_deinit(&chunk->outputs[key].lengths);
            token_buffer_deinit(&chunk->outputs[key].counts);
        }
        mem_free(&chunk->outputs);
    }
    for (int i = 0; job->scratches != NULL && i < job->config->workers; i++) {
        tokenizer_destroy_scratch(job->config->tokenizer, job->scratches[i]);
    }
    thread_pool_destroy(job->pool);
    mem_free(&job->writers);
    mem_free(&job->chunks);
    mem_free(&job->scratches);
    map_file_close(&job->input);
}

enum status preprocess_run(const struct preprocess_config *config)
{
    enum status st = STATUS_OK;
    struct job job = {.config = config};
    struct status_record record;

    CHECK(config->key_count >= 1 && config->key_count <= PREPROCESS_KEYS_MAX);
    CHECK(config->workers >= 1 && config->workers <= THREAD_COUNT_MAX);
    CHECK(config->format == PREPROCESS_JSON_LINES || config->key_count == 1);
    CHECK(!config->append_end_of_document || config->tokenizer->end_of_document >= 0);
    job.start_ns = job.logged_ns = clock_monotonic_ns();
    TRY(st, open_input(&job), done);
    TRY(st, open_workers(&job), done);
    TRY(st, open_writers(&job), done);
    TRY(st, run_rounds(&job), done);
    TRY(st, publish(&job), done);
done:
    status_take(&record); /* taking the temporary files away may fail, and is not what failed */
    close_job(&job);
    return st == STATUS_OK ? STATUS_OK : status_give(&record);
}
