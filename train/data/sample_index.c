/* Megatron's GPTDataset indices; see sample_index.h. The arithmetic follows Megatron-core's
 * gpt_dataset.py, helpers.cpp and blended_megatron_dataset_builder.py to the last rounding. */
#include "train/data/sample_index.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/mem.h"
#include "train/data/mt19937.h"

/* Below this share of its samples the last epoch is shuffled apart. */
#define FINAL_EPOCH_SHARE 0.80

const char *sample_split_name(enum data_split split)
{
    static const char *const names[DATA_SPLIT_COUNT] = {"train", "valid", "test"};

    CHECK((unsigned)split < DATA_SPLIT_COUNT);
    return names[split];
}

static enum status parse_ratios(const char *text, double out_ratios[DATA_SPLIT_COUNT])
{
    const char *at = text;

    for (int i = 0; i < DATA_SPLIT_COUNT; i++) {
        char *end = NULL;

        if (!isdigit((unsigned char)*at) && *at != '.') {
            break;
        }
        out_ratios[i] = strtod(at, &end);
        if (end == at || !isfinite(out_ratios[i])) {
            break;
        }
        at = end + strspn(end, " ");
        if (*at == 0) {
            return STATUS_OK;
        }
        if (*at++ != ',') {
            break;
        }
        at += strspn(at, " ");
    }
    return FAIL(STATUS_USAGE,
                "unusable split '%s': give up to three ratios of train, valid and "
                "test, as in 969,30,1",
                text);
}

enum status sample_index_split(const char *text, uint64_t sequence_count,
                               struct sample_range out_ranges[DATA_SPLIT_COUNT])
{
    enum status st = STATUS_OK;
    double ratios[DATA_SPLIT_COUNT] = {0}, sum = 0, upto = 0;

    TRY(st, parse_ratios(text, ratios), done);
    for (int i = 0; i < DATA_SPLIT_COUNT; i++) {
        sum += ratios[i];
    }
    if (!(sum > 0)) {
        return FAIL(STATUS_USAGE, "unusable split '%s': the ratios add up to 0", text);
    }
    for (int i = 0; i < DATA_SPLIT_COUNT; i++) {
        double from = upto;

        upto += ratios[i] / sum;
        out_ranges[i].begin = (uint64_t)rint(from * (double)sequence_count);
        out_ranges[i].end = (uint64_t)rint(upto * (double)sequence_count);
        if (out_ranges[i].end > sequence_count) {
            out_ranges[i].end = sequence_count; /* the ratios' sum may round above 1 */
        }
    }
done:
    return st;
}

static enum status check_size(const struct sample_index *index, const struct token_file *file,
                              const char *name)
{
    uint64_t sequences = index->range.end - index->range.begin;
    uint64_t documents_bytes = 0, samples_bytes = 0, bytes = 0;
    bool too_many = __builtin_mul_overflow(index->epoch_count, 4 * sequences, &documents_bytes) ||
                    __builtin_mul_overflow(index->sample_count + 1, 12, &samples_bytes) ||
                    __builtin_add_overflow(documents_bytes, samples_bytes, &bytes);

    if (too_many || bytes > SAMPLE_INDEX_BYTES_MAX || file->sequence_count > INT32_MAX) {
        return FAIL(STATUS_BAD_DATA,
                    "index of split '%s' of '%s' too large: %llu sequences (of "
                    "%llu in the file) x %llu epochs, %llu samples; limits are %llu GiB and %d "
                    "sequences; ask for fewer samples, or join short texts into longer documents",
                    name, file->prefix, (unsigned long long)sequences,
                    (unsigned long long)file->sequence_count,
                    (unsigned long long)index->epoch_count, (unsigned long long)index->sample_count,
                    (unsigned long long)(SAMPLE_INDEX_BYTES_MAX >> 30), INT32_MAX);
    }
    return STATUS_OK;
}

static enum status check_range(const struct token_file *file, struct sample_range range,
                               uint64_t tokens, uint64_t samples, const char *name)
{
    if (range.end <= range.begin) {
        return FAIL(STATUS_BAD_DATA,
                    "split '%s' of '%s' is empty: it gets none of the %llu "
                    "sequences, but %llu samples are asked of it; give it a larger part by "
                    "--split, or ask for none (--eval-iters 0)",
                    name, file->prefix, (unsigned long long)file->sequence_count,
                    (unsigned long long)samples);
    }
    if (tokens == 0) {
        return FAIL(STATUS_BAD_DATA,
                    "no tokens in split '%s' of '%s': its %llu sequences are "
                    "empty, but %llu samples are asked of it",
                    name, file->prefix, (unsigned long long)(range.end - range.begin),
                    (unsigned long long)samples);
    }
    return STATUS_OK;
}

/* The fewest epochs whose tokens are samples x length + 1, and what is shuffled apart. */
static void plan_epochs(uint64_t tokens, uint64_t length, uint64_t samples,
                        struct sample_index *index)
{
    uint64_t sequences = index->range.end - index->range.begin;

    index->epoch_count = samples * length / tokens + 1;
    index->sample_count = (index->epoch_count * tokens - 1) / length;
    index->document_count = index->epoch_count * sequences;
    if (index->epoch_count > 1) {
        uint64_t before = ((index->epoch_count - 1) * tokens - 1) / length;
        uint64_t per_epoch = (tokens - 1) / length;

        CHECK(samples >= before && samples - before <= per_epoch + 1);
        if (samples - before < (uint64_t)(FINAL_EPOCH_SHARE * (double)per_epoch)) {
            index->final_sequences = sequences;
            index->final_samples = index->sample_count - before;
        }
    }
}

enum status sample_index_plan(const struct token_file *file, struct sample_range range,
                              int64_t sequence_length, uint64_t samples, const char *name,
                              struct sample_index *out_index)
{
    enum status st = STATUS_OK;
    struct sample_index index = {.range = range};
    uint64_t length = (uint64_t)sequence_length, wanted = 0;

    CHECK(sequence_length > 0 && range.begin <= range.end && range.end <= file->sequence_count);
    *out_index = (struct sample_index){0};
    uint64_t tokens = token_file_start(file, range.end) - token_file_start(file, range.begin);
    if (samples > 0) {
        TRY(st, check_range(file, range, tokens, samples, name), done);
    }
    if (__builtin_mul_overflow(samples, length, &wanted) || wanted > (uint64_t)INT64_MAX / 2) {
        return FAIL(STATUS_BAD_DATA, "too many samples asked of split '%s': %llu of %llu tokens",
                    name, (unsigned long long)samples, (unsigned long long)length);
    }
    if (tokens > 0) {
        plan_epochs(tokens, length, samples, &index);
    }
    TRY(st, check_size(&index, file, name), done);
    index.arrays[SAMPLE_DOCUMENTS] =
        array_file_describe("document_index", ARRAY_INT32, index.document_count, 0);
    index.arrays[SAMPLE_SAMPLES] =
        array_file_describe("sample_index", ARRAY_INT32, index.sample_count + 1, 2);
    index.arrays[SAMPLE_SHUFFLE] =
        array_file_describe("shuffle_index", ARRAY_UINT32, index.sample_count, 0);
    *out_index = index;
done:
    return st;
}

void sample_index_attach(struct sample_index *index)
{
    index->documents = array_file_elements(&index->arrays[SAMPLE_DOCUMENTS]);
    index->samples = array_file_elements(&index->arrays[SAMPLE_SAMPLES]);
    index->shuffle = array_file_elements(&index->arrays[SAMPLE_SHUFFLE]);
}

static void fill_documents(const struct sample_index *index, struct mt19937 *stream)
{
    uint32_t *documents = array_file_elements(&index->arrays[SAMPLE_DOCUMENTS]);
    uint64_t first = index->document_count - index->final_sequences;
    uint64_t sequences = index->range.end - index->range.begin;

    for (uint64_t i = 0; i < index->document_count; i++) {
        documents[i] = (uint32_t)(index->range.begin + i % sequences);
    }
    mt19937_shuffle(stream, documents, first);
    mt19937_shuffle(stream, documents + first, index->final_sequences);
}

/* Walks the shuffled sequences and notes where each sample starts. A sample that ends with a
 * sequence's last token keeps that position; the next one starts there, not in the sequence
 * behind it. */
static void fill_samples(const struct sample_index *index, const struct token_file *file,
                         int64_t sequence_length)
{
    int32_t(*samples)[2] = array_file_elements(&index->arrays[SAMPLE_SAMPLES]);
    uint64_t document = 0;
    int64_t offset = 0;

    for (uint64_t i = 1; i <= index->sample_count; i++) {
        int64_t missing = sequence_length + 1;

        for (;;) {
            int64_t left = token_file_length(file, (uint64_t)index->documents[document]) - offset;

            missing -= left;
            if (missing <= 0) {
                offset += missing + left - 1;
                break;
            }
            document++;
            offset = 0;
            CHECK(document < index->document_count);
        }
        samples[i][0] = (int32_t)document;
        samples[i][1] = (int32_t)offset;
    }
}

static void fill_shuffle(const struct sample_index *index, struct mt19937 *stream)
{
    uint32_t *shuffle = array_file_elements(&index->arrays[SAMPLE_SHUFFLE]);
    uint64_t first = index->sample_count - index->final_samples;

    for (uint64_t i = 0; i < index->sample_count; i++) {
        shuffle[i] = (uint32_t)i;
    }
    mt19937_shuffle(stream, shuffle, first);
    mt19937_shuffle(stream, shuffle + first, index->final_samples);
}

enum status sample_index_fill(struct sample_index *index, const struct token_file *file,
                              int64_t sequence_length, uint64_t seed)
{
    enum status st = STATUS_OK;
    struct mt19937 stream;

    if (seed > UINT32_MAX) {
        return FAIL(STATUS_USAGE, "seed %llu is too large: the data order takes 0 to %u",
                    (unsigned long long)seed, UINT32_MAX);
    }
    for (int i = 0; i < SAMPLE_ARRAY_COUNT; i++) {
        TRY(st, array_file_create(&index->arrays[i]), done);
    }
    sample_index_attach(index);
    mt19937_init(&stream, (uint32_t)seed);
    fill_documents(index, &stream);
    fill_samples(index, file, sequence_length);
    fill_shuffle(index, &stream);
done:
    return st;
}

void sample_index_deinit(struct sample_index *index)
{
    for (int i = 0; i < SAMPLE_ARRAY_COUNT; i++) {
        array_file_deinit(&index->arrays[i]);
    }
    *index = (struct sample_index){0};
}

enum status sample_index_read(const struct sample_index *index, const struct token_file *file,
                              int64_t sequence_length, uint64_t sample, int32_t *out_tokens)
{
    CHECK(sample < index->sample_count);
    uint64_t shuffled = index->shuffle[sample];
    const int32_t *start = shuffled < index->sample_count ? index->samples[shuffled] : NULL;
    uint64_t document = start != NULL ? (uint64_t)start[0] : index->document_count;
    int64_t offset = start != NULL ? start[1] : 0;

    for (int64_t missing = sequence_length + 1; missing > 0; document++, offset = 0) {
        uint64_t sequence = document < index->document_count ? (uint64_t)index->documents[document]
                                                             : file->sequence_count;
        int64_t left =
            sequence < file->sequence_count ? token_file_length(file, sequence) - offset : -1;

        if (left < 0 || offset < 0) {
            return FAIL(STATUS_CORRUPT,
                        "index of '%s' leads out of the file at sample %llu: the files in "
                        "--data-cache-path were changed; remove them",
                        file->prefix, (unsigned long long)sample);
        }
        left = left < missing ? left : missing;
        token_file_copy(file, token_file_start(file, sequence) + (uint64_t)offset, (size_t)left,
                        out_tokens);
        out_tokens += left;
        missing -= left;
    }
    return STATUS_OK;
}
