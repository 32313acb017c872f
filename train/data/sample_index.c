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

/* The sizes of an index and how it is shuffled, known before anything is allocated. */
struct plan {
    uint64_t epochs;
    uint64_t tokens, sequences; /* of one epoch */
    uint64_t samples;           /* of all epochs */
    uint64_t final_sequences;   /* shuffled apart at the end; 0: none */
    uint64_t final_samples;
};

static enum status check_size(const struct plan *plan, const struct token_file *file,
                              const char *name)
{
    uint64_t documents_bytes = 0, samples_bytes = 0, bytes = 0;
    bool too_many = __builtin_mul_overflow(plan->epochs, 4 * plan->sequences, &documents_bytes) ||
                    __builtin_mul_overflow(plan->samples + 1, 12, &samples_bytes) ||
                    __builtin_add_overflow(documents_bytes, samples_bytes, &bytes);

    if (too_many || bytes > SAMPLE_INDEX_BYTES_MAX || file->sequence_count > INT32_MAX) {
        return FAIL(STATUS_BAD_DATA,
                    "index of split '%s' of '%s' too large: %llu sequences (of "
                    "%llu in the file) x %llu epochs, %llu samples; limits are %llu GiB and %d "
                    "sequences; ask for fewer samples, or join short texts into longer documents",
                    name, file->prefix, (unsigned long long)plan->sequences,
                    (unsigned long long)file->sequence_count, (unsigned long long)plan->epochs,
                    (unsigned long long)plan->samples,
                    (unsigned long long)(SAMPLE_INDEX_BYTES_MAX >> 30), INT32_MAX);
    }
    return STATUS_OK;
}

static enum status make_plan(const struct token_file *file, struct sample_range range,
                             int64_t sequence_length, uint64_t samples, const char *name,
                             struct plan *out_plan)
{
    struct plan plan = {0};
    uint64_t length = (uint64_t)sequence_length, wanted = 0;

    if (range.end <= range.begin) {
        return FAIL(STATUS_BAD_DATA,
                    "split '%s' of '%s' is empty: it gets none of the %llu "
                    "sequences, but %llu samples are asked of it; give it a larger part by "
                    "--split, or ask for none (--eval-iters 0)",
                    name, file->prefix, (unsigned long long)file->sequence_count,
                    (unsigned long long)samples);
    }
    plan.sequences = range.end - range.begin;
    plan.tokens = token_file_start(file, range.end) - token_file_start(file, range.begin);
    if (plan.tokens == 0) {
        return FAIL(STATUS_BAD_DATA,
                    "no tokens in split '%s' of '%s': its %llu sequences are "
                    "empty, but %llu samples are asked of it",
                    name, file->prefix, (unsigned long long)plan.sequences,
                    (unsigned long long)samples);
    }
    if (__builtin_mul_overflow(samples, length, &wanted) || wanted > (uint64_t)INT64_MAX / 2) {
        return FAIL(STATUS_BAD_DATA, "too many samples asked of split '%s': %llu of %llu tokens",
                    name, (unsigned long long)samples, (unsigned long long)length);
    }
    /* The fewest epochs whose tokens are samples x length + 1. */
    plan.epochs = wanted / plan.tokens + 1;
    plan.samples = (plan.epochs * plan.tokens - 1) / length;
    if (plan.epochs > 1) {
        uint64_t before = ((plan.epochs - 1) * plan.tokens - 1) / length;
        uint64_t per_epoch = (plan.tokens - 1) / length;

        CHECK(samples >= before && samples - before <= per_epoch + 1);
        if (samples - before < (uint64_t)(FINAL_EPOCH_SHARE * (double)per_epoch)) {
            plan.final_sequences = plan.sequences;
            plan.final_samples = plan.samples - before;
        }
    }
    *out_plan = plan;
    return check_size(&plan, file, name);
}

static void fill_documents(struct sample_index *index, uint64_t begin, const struct plan *plan,
                           struct mt19937 *stream)
{
    uint64_t first = index->document_count - plan->final_sequences;
    uint32_t *documents = (uint32_t *)index->documents;

    for (uint64_t i = 0; i < index->document_count; i++) {
        documents[i] = (uint32_t)(begin + i % plan->sequences);
    }
    mt19937_shuffle(stream, documents, first);
    mt19937_shuffle(stream, documents + first, plan->final_sequences);
}

/* Walks the shuffled sequences and notes where each sample starts. A sample that ends with a
 * sequence's last token keeps that position; the next one starts there, not in the sequence
 * behind it. */
static void fill_samples(struct sample_index *index, const struct token_file *file,
                         int64_t sequence_length)
{
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
        index->samples[i][0] = (int32_t)document;
        index->samples[i][1] = (int32_t)offset;
    }
}

static void fill_shuffle(struct sample_index *index, const struct plan *plan,
                         struct mt19937 *stream)
{
    uint64_t first = plan->samples - plan->final_samples;

    for (uint64_t i = 0; i < plan->samples; i++) {
        index->shuffle[i] = (uint32_t)i;
    }
    mt19937_shuffle(stream, index->shuffle, first);
    mt19937_shuffle(stream, index->shuffle + first, plan->final_samples);
}

enum status sample_index_build(const struct token_file *file, struct sample_range range,
                               int64_t sequence_length, uint64_t samples, uint64_t seed,
                               const char *name, struct sample_index *out_index)
{
    enum status st = STATUS_OK;
    struct mt19937 stream;
    struct plan plan = {0};

    CHECK(sequence_length > 0 && samples > 0 && range.end <= file->sequence_count);
    *out_index = (struct sample_index){0};
    if (seed > UINT32_MAX) {
        return FAIL(STATUS_USAGE, "seed %llu is too large: the data order takes 0 to %u",
                    (unsigned long long)seed, UINT32_MAX);
    }
    TRY(st, make_plan(file, range, sequence_length, samples, name, &plan), done);
    out_index->epoch_count = plan.epochs;
    out_index->document_count = plan.epochs * plan.sequences;
    out_index->sample_count = plan.samples;
    TRY(st,
        mem_alloc(&out_index->documents, out_index->document_count, sizeof *out_index->documents),
        done);
    TRY(st, mem_alloc(&out_index->samples, plan.samples + 1, sizeof *out_index->samples), done);
    TRY(st, mem_alloc(&out_index->shuffle, plan.samples, sizeof *out_index->shuffle), done);
    mt19937_init(&stream, (uint32_t)seed);
    fill_documents(out_index, range.begin, &plan, &stream);
    fill_samples(out_index, file, sequence_length);
    fill_shuffle(out_index, &plan, &stream);
done:
    if (st != STATUS_OK) {
        sample_index_deinit(out_index);
    }
    return st;
}

void sample_index_deinit(struct sample_index *index)
{
    mem_free(&index->documents);
    mem_free(&index->samples);
    mem_free(&index->shuffle);
    *index = (struct sample_index){0};
}

void sample_index_read(const struct sample_index *index, const struct token_file *file,
                       int64_t sequence_length, uint64_t sample, int32_t *out_tokens)
{
    CHECK(sample < index->sample_count);
    const int32_t *start = index->samples[index->shuffle[sample]];
    uint64_t document = (uint64_t)start[0];
    int64_t offset = start[1];

    for (int64_t missing = sequence_length + 1; missing > 0; document++, offset = 0) {
        uint64_t sequence = (uint64_t)index->documents[document];
        int64_t left = token_file_length(file, sequence) - offset;

        left = left < missing ? left : missing;
        token_file_copy(file, token_file_start(file, sequence) + (uint64_t)offset, (size_t)left,
                        out_tokens);
        out_tokens += left;
        missing -= left;
    }
}
