/* Sources of samples: an indexed token file, or mock data; see data_loader.h. */
#include "train/data/data_loader.h"

#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"
#include "train/data/sample_index.h"
#include "train/data/token_file.h"

/* Tokens that one piece of the scan looks at. */
#define SCAN_TOKENS ((uint64_t)1 << 20)

#define MOCK_IDS_MAX 256
#define MOCK_STRIDES 3

struct indexed_source {
    struct token_file file;
    struct sample_index index;
    int64_t sequence_length;
    const char *name; /* of the split */
};

static enum status indexed_get(void *context, uint64_t sample, int32_t *out_tokens)
{
    const struct indexed_source *source = context;

    if (sample >= source->index.sample_count) {
        return FAIL(STATUS_BAD_DATA,
                    "sample %llu of split '%s' asked for, the index of '%s' has "
                    "%llu",
                    (unsigned long long)sample, source->name, source->file.prefix,
                    (unsigned long long)source->index.sample_count);
    }
    sample_index_read(&source->index, &source->file, source->sequence_length, sample, out_tokens);
    return STATUS_OK;
}

static void indexed_close(void *context)
{
    struct indexed_source *source = context;

    sample_index_deinit(&source->index);
    token_file_close(&source->file);
    mem_free(&source);
}

struct scan {
    const struct token_file *file;
    uint64_t first, count;
    int64_t vocab_size;
};

static enum status scan_piece(void *context, size_t piece)
{
    const struct scan *scan = context;
    uint64_t begin = piece * SCAN_TOKENS, count = scan->count - begin;
    int64_t min = 0, max = 0;

    count = count < SCAN_TOKENS ? count : SCAN_TOKENS;
    token_file_range(scan->file, scan->first + begin, count, &min, &max);
    if (min < 0 || max >= scan->vocab_size) {
        return FAIL(STATUS_BAD_DATA,
                    "token id %lld in '%s.bin' is outside the vocabulary of %lld; "
                    "was it made with another tokenizer?",
                    (long long)(min < 0 ? min : max), scan->file->prefix,
                    (long long)scan->vocab_size);
    }
    return STATUS_OK;
}

/* Every id of the split must have a row in the embedding; this looks at all of them, once. */
static enum status check_ids(const struct token_file *file, struct sample_range range,
                             int64_t vocab_size)
{
    enum status st = STATUS_OK;
    struct thread_pool *pool = NULL;
    uint64_t first = token_file_start(file, range.begin);
    struct scan scan = {file, first, token_file_start(file, range.end) - first, vocab_size};

    TRY(st, thread_pool_create(thread_cpu_count(), &pool), done);
    TRY(st,
        thread_pool_run(pool, scan_piece, &scan,
                        (size_t)((scan.count + SCAN_TOKENS - 1) / SCAN_TOKENS)),
        done);
done:
    thread_pool_destroy(pool);
    return st;
}

static enum status open_indexed(const struct data_config *config, enum data_split split,
                                struct data_source *out_source)
{
    enum status st = STATUS_OK;
    struct sample_range ranges[DATA_SPLIT_COUNT];
    struct indexed_source *source = NULL;

    TRY(st, mem_alloc(&source, 1, sizeof *source), done);
    source->sequence_length = config->sequence_length;
    source->name = sample_split_name(split);
    TRY(st, token_file_open(config->path, &source->file), done);
    if (source->file.token_count == 0) {
        st = FAIL(STATUS_BAD_DATA, "no tokens in '%s.bin': it is empty", config->path);
        goto done;
    }
    TRY(st, sample_index_split(config->split, source->file.sequence_count, ranges), done);
    TRY(st,
        sample_index_build(&source->file, ranges[split], config->sequence_length,
                           config->samples[split], config->seed, source->name, &source->index),
        done);
    TRY(st, check_ids(&source->file, ranges[split], config->vocab_size), done);
    *out_source = (struct data_source){source, indexed_get, indexed_close};
done:
    if (st != STATUS_OK && source != NULL) {
        indexed_close(source);
    }
    return st;
}

struct mock_source {
    int64_t sequence_length;
    uint64_t seed; /* of this split */
    uint64_t ids;  /* how many different ones */
};

/* splitmix64's finalizer. */
static uint64_t mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

static enum status mock_get(void *context, uint64_t sample, int32_t *out_tokens)
{
    const struct mock_source *source = context;
    uint64_t draw = mix(source->seed + (sample + 1) * 0x9e3779b97f4a7c15u);
    uint64_t id = (draw >> 8) % source->ids;
    uint64_t stride = 1 + (draw & 0xff) % MOCK_STRIDES;

    for (int64_t i = 0; i <= source->sequence_length; i++) {
        out_tokens[i] = (int32_t)id;
        id = (id + stride) % source->ids;
    }
    return STATUS_OK;
}

static void mock_close(void *context)
{
    mem_free(&context);
}

static enum status open_mock(const struct data_config *config, enum data_split split,
                             struct data_source *out_source)
{
    enum status st = STATUS_OK;
    struct mock_source *source = NULL;

    TRY(st, mem_alloc(&source, 1, sizeof *source), done);
    source->sequence_length = config->sequence_length;
    source->seed = mix(config->seed * DATA_SPLIT_COUNT + (uint64_t)split);
    source->ids = config->vocab_size < MOCK_IDS_MAX ? (uint64_t)config->vocab_size : MOCK_IDS_MAX;
    *out_source = (struct data_source){source, mock_get, mock_close};
done:
    return st;
}

enum status data_loader_open(const struct data_config *config, enum data_split split,
                             struct data_source *out_source)
{
    CHECK((unsigned)split < DATA_SPLIT_COUNT);
    CHECK(config->sequence_length > 0 && config->vocab_size > 0);
    *out_source = (struct data_source){0};
    if (config->samples[split] == 0) {
        return STATUS_OK;
    }
    return config->path == NULL ? open_mock(config, split, out_source)
                                : open_indexed(config, split, out_source);
}

void data_loader_close(struct data_source *source)
{
    if (source->close != NULL) {
        source->close(source->context);
    }
    *source = (struct data_source){0};
}
