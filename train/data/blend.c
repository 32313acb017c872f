/* Blends; see blend.h. The arithmetic follows Megatron-core's get_blend_from_list,
 * _get_size_per_split_per_dataset and build_blending_indices to the last rounding. */
#include "train/data/blend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/mem.h"

/* More samples than a part's share, so that no rounding of the order runs past its end. */
#define SURPLUS 0.005
#define BLANKS " \t\n"

/* Takes the word that begins at `*at`, without the backslashes that kept its blanks. */
static enum status take_word(const char **at, char **out_word)
{
    enum status st = STATUS_OK;
    size_t used = 0;

    TRY(st, mem_alloc(out_word, strlen(*at) + 1, 1), done);
    for (; **at != 0 && strchr(BLANKS, **at) == NULL; (*at)++) {
        *at += **at == '\\' && (*at)[1] != 0;
        (*out_word)[used++] = **at;
    }
done:
    return st;
}

static enum status split_words(const char *text, char ***out_words, size_t *out_count)
{
    enum status st = STATUS_OK;
    size_t capacity = 0;

    *out_words = NULL;
    *out_count = 0;
    for (const char *at = text + strspn(text, BLANKS); *at != 0; at += strspn(at, BLANKS)) {
        TRY(st, mem_grow((void **)out_words, &capacity, *out_count + 1, sizeof **out_words), done);
        TRY(st, take_word(&at, &(*out_words)[*out_count]), done);
        (*out_count)++;
    }
done:
    return st;
}

static bool parse_weight(const char *word, double *out_weight)
{
    char *end = NULL;

    *out_weight = strtod(word, &end);
    return end != word && *end == 0;
}

/* The words are in turn weights and prefixes; takes the weights out of `words`. */
static enum status take_weights(const char *text, char **words, struct blend *blend)
{
    enum status st = STATUS_OK;

    TRY(st, mem_alloc(&blend->weights, blend->part_count, sizeof *blend->weights), done);
    for (size_t i = 0; i < blend->part_count; i++) {
        double weight = 0;

        if (!parse_weight(words[2 * i], &weight) || !isfinite(weight) || weight < 0) {
            st = FAIL(
                STATUS_USAGE,
                "unusable weight '%.200s' in the data path '%.200s': give a number from 0 before "
                "every prefix, or before none",
                words[2 * i], text);
            goto done;
        }
        blend->weights[i] = weight;
        mem_free(&words[2 * i]);
        blend->prefixes[i] = words[2 * i + 1];
        words[2 * i + 1] = NULL;
    }
    if (!blend_normalize(blend->weights, blend->part_count)) {
        st = FAIL(STATUS_USAGE, "unusable data path '%.200s': its weights add up to 0", text);
    }
done:
    return st;
}

enum status blend_parse(const char *text, struct blend *out_blend)
{
    enum status st = STATUS_OK;
    char **words = NULL;
    size_t word_count = 0, number_count = 0;
    double ignored = 0;

    *out_blend = (struct blend){0};
    TRY(st, split_words(text, &words, &word_count), done);
    for (size_t i = 0; word_count % 2 == 0 && i < word_count; i += 2) {
        number_count += parse_weight(words[i], &ignored);
    }
    size_t part_count = number_count > 0 ? word_count / 2 : word_count;
    if (part_count == 0 || part_count > BLEND_PARTS_MAX) {
        st = FAIL(STATUS_USAGE, "data path of %zu data sets: 1 to %d are possible", part_count,
                  BLEND_PARTS_MAX);
        goto done;
    }
    TRY(st, mem_alloc(&out_blend->prefixes, part_count, sizeof *out_blend->prefixes), done);
    out_blend->part_count = part_count;
    if (number_count > 0) {
        TRY(st, take_weights(text, words, out_blend), done);
    } else {
        memcpy(out_blend->prefixes, words, part_count * sizeof *words);
        word_count = 0; /* they are the blend's now */
    }
done:
    for (size_t i = 0; i < word_count; i++) {
        mem_free(&words[i]);
    }
    mem_free(&words);
    if (st != STATUS_OK) {
        blend_deinit(out_blend);
    }
    return st;
}

enum status blend_create(const char *prefix, struct blend *out_blend)
{
    enum status st = STATUS_OK;

    *out_blend = (struct blend){0};
    TRY(st, mem_alloc(&out_blend->prefixes, 1, sizeof *out_blend->prefixes), done);
    out_blend->part_count = 1;
    TRY(st, mem_copy_string(out_blend->prefixes, prefix), done);
done:
    if (st != STATUS_OK) {
        blend_deinit(out_blend);
    }
    return st;
}

void blend_deinit(struct blend *blend)
{
    for (size_t i = 0; blend->prefixes != NULL && i < blend->part_count; i++) {
        mem_free(&blend->prefixes[i]);
    }
    mem_free(&blend->prefixes);
    mem_free(&blend->weights);
    *blend = (struct blend){0};
}

/* NumPy's pairwise sum: eight running sums up to 128 numbers, halves beyond. */
static double sum_pairwise(const double *numbers, size_t count)
{
    if (count > 128) {
        size_t half = count / 2;

        half -= half % 8;
        return sum_pairwise(numbers, half) + sum_pairwise(numbers + half, count - half);
    }
    double sums[8] = {0}, sum = 0;
    size_t eights = count - count % 8;

    for (size_t i = 0; i < eights; i++) {
        sums[i % 8] += numbers[i];
    }
    sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    for (size_t i = eights; i < count; i++) {
        sum += numbers[i];
    }
    return sum;
}

bool blend_normalize(double *weights, size_t count)
{
    double sum = sum_pairwise(weights, count);

    if (!(sum > 0) || !isfinite(sum)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        weights[i] /= sum;
    }
    return true;
}

uint64_t blend_part_share(double weight, uint64_t samples)
{
    return (uint64_t)ceil((double)samples * weight);
}

uint64_t blend_part_request(double weight, uint64_t samples)
{
    return (uint64_t)ceil((double)blend_part_share(weight, samples) * (1 + SURPLUS));
}

void blend_index_plan(uint64_t sample_count, struct blend_index *out_index)
{
    *out_index = (struct blend_index){.sample_count = sample_count};
    out_index->arrays[BLEND_DATASET_INDEX] =
        array_file_describe("dataset_index", ARRAY_INT16, sample_count, 0);
    out_index->arrays[BLEND_DATASET_SAMPLE_INDEX] =
        array_file_describe("dataset_sample_index", ARRAY_INT64, sample_count, 0);
}

void blend_index_attach(struct blend_index *index)
{
    index->parts = array_file_elements(&index->arrays[BLEND_DATASET_INDEX]);
    index->part_samples = array_file_elements(&index->arrays[BLEND_DATASET_SAMPLE_INDEX]);
}

/* The part that is farthest below its weight at sample `at`. */
static size_t find_hungriest(const double *weights, const int64_t *counts, size_t part_count,
                             uint64_t at)
{
    double position = at > 0 ? (double)at : 1, greatest = 0;
    size_t found = 0;

    for (size_t i = 0; i < part_count; i++) {
        double due = weights[i] * position; /* apart, so that it is rounded as Megatron's */
        double missing = due - (double)counts[i];

        if (i == 0 || missing > greatest) {
            greatest = missing;
            found = i;
        }
    }
    return found;
}

enum status blend_index_fill(struct blend_index *index, const double *weights, size_t part_count)
{
    enum status st = STATUS_OK;
    int64_t *counts = NULL;

    TRY(st, mem_alloc(&counts, part_count, sizeof *counts), done);
    for (int i = 0; i < BLEND_ARRAY_COUNT; i++) {
        TRY(st, array_file_create(&index->arrays[i]), done);
    }
    blend_index_attach(index);
    int16_t *parts = array_file_elements(&index->arrays[BLEND_DATASET_INDEX]);
    int64_t *part_samples = array_file_elements(&index->arrays[BLEND_DATASET_SAMPLE_INDEX]);
    for (uint64_t n = 0; n < index->sample_count; n++) {
        size_t part = find_hungriest(weights, counts, part_count, n);

        parts[n] = (int16_t)part;
        part_samples[n] = counts[part]++;
    }
done:
    mem_free(&counts);
    return st;
}

void blend_index_deinit(struct blend_index *index)
{
    for (int i = 0; i < BLEND_ARRAY_COUNT; i++) {
        array_file_deinit(&index->arrays[i]);
    }
    *index = (struct blend_index){0};
}
