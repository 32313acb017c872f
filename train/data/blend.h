/* Blends of data sets by weight: what a --data-path says, and Megatron's BlendedDataset order.
 *
 * Before it: the option's text. After it: data_loader, which opens the parts. Sample n of a blend
 * is sample part_samples[n] of part parts[n]: at every n the part that is farthest below its weight
 * gives the next one, the first of equals.
 */
#ifndef TRAIN_DATA_BLEND_H
#define TRAIN_DATA_BLEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"
#include "train/data/array_file.h"

#define BLEND_PARTS_MAX 32766 /* Megatron numbers them by 16 bits */

struct blend {
    size_t part_count;
    char **prefixes;
    double *weights; /* they add up to 1; NULL: none were given */
};

/* "PREFIX ..." or "WEIGHT PREFIX ..." divided by spaces; a backslash keeps the blank (or backslash)
 * behind it in its word, as OPTION_WORDS writes it. Megatron's rule: an even number of words
 * of which every first of two is a number has weights. Some numbers only, negative or infinite
 * ones, and weights that add up to 0 are STATUS_USAGE. Freed by blend_deinit. */
enum status blend_parse(const char *text, struct blend *out_blend) STATUS_MUST_CHECK;
/* One data set without a weight. */
enum status blend_create(const char *prefix, struct blend *out_blend) STATUS_MUST_CHECK;
void blend_deinit(struct blend *blend); /* takes a zeroed one */

/* Makes weights add up to 1, dividing by the sum as NumPy adds it. False when it is not above 0. */
bool blend_normalize(double *weights, size_t count);

/* Of `samples` of a blend, how many a part of that weight has to give, and how many it is asked
 * for: half a percent more. */
uint64_t blend_part_share(double weight, uint64_t samples);
uint64_t blend_part_request(double weight, uint64_t samples);

struct blend_index {
    uint64_t sample_count;
    struct array_file arrays[2]; /* the memory of the two below */
    const int16_t *parts;        /* [sample_count] */
    const int64_t *part_samples; /* [sample_count] */
};

enum blend_array { BLEND_DATASET_INDEX, BLEND_DATASET_SAMPLE_INDEX, BLEND_ARRAY_COUNT };

/* The shapes of an index, without its arrays; then either fill makes them, or index_cache maps them
 * and attach looks into them. Weights [part_count] add up to 1. */
void blend_index_plan(uint64_t sample_count, struct blend_index *out_index);
enum status blend_index_fill(struct blend_index *index, const double *weights, size_t part_count)
    STATUS_MUST_CHECK;
void blend_index_attach(struct blend_index *index);
void blend_index_deinit(struct blend_index *index); /* takes a zeroed one */

#endif
