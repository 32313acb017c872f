/* Sources of samples: indexed token files, or mock data; see data_loader.h. */
#include "train/data/data_loader.h"

#include "ckpt/base/fs.h"
#include "ckpt/base/json.h"
#include "ckpt/base/mem.h"
#include "train/data/blend.h"
#include "train/data/data_part.h"
#include "train/data/index_cache.h"

#define MOCK_IDS_MAX 256
#define MOCK_STRIDES 3

struct indexed_source {
    struct data_part *parts; /* [part_count] */
    size_t part_count;
    struct blend_index order; /* of a blend; zeroed when there is one part alone */
    int64_t sequence_length;
    enum data_split split;
};

static enum status indexed_get(void *context, uint64_t sample, int32_t *out_tokens)
{
    const struct indexed_source *source = context;
    const struct data_part *part = source->parts;
    bool is_blend = source->order.parts != NULL;
    uint64_t limit = is_blend ? source->order.sample_count : part->index.sample_count;
    uint64_t part_sample = sample;

    if (is_blend && sample < limit) {
        uint64_t number = (uint64_t)source->order.parts[sample];

        part = number < source->part_count ? &source->parts[number] : part;
        part_sample = (uint64_t)source->order.part_samples[sample];
        limit = part->index.sample_count;
    }
    if (part_sample >= limit) {
        return FAIL(STATUS_BAD_DATA,
                    "sample %llu of split '%s' asked for, the index of '%s' has "
                    "%llu",
                    (unsigned long long)part_sample, sample_split_name(source->split),
                    part->file.prefix, (unsigned long long)limit);
    }
    return sample_index_read(&part->index, &part->file, source->sequence_length, part_sample,
                             out_tokens);
}

static void indexed_close(void *context)
{
    struct indexed_source *source = context;

    for (size_t i = 0; source->parts != NULL && i < source->part_count; i++) {
        data_part_close(&source->parts[i]);
    }
    mem_free(&source->parts);
    blend_index_deinit(&source->order);
    mem_free(&source);
}

/* A blend's order depends on nothing but its weights and its length. */
static enum status make_order_key(const double *weights, size_t count, enum data_split split,
                                  uint64_t samples, cJSON **out_key)
{
    enum status st = STATUS_OK;
    cJSON *key = NULL, *list = NULL;

    TRY(st, json_new_object(&key), done);
    TRY(st, json_add_string(key, "class", "BlendedDataset"), done);
    TRY(st, json_add_string(key, "index_split", sample_split_name(split)), done);
    TRY(st, json_new_array(&list), done);
    for (size_t i = 0; i < count; i++) {
        cJSON *weight = cJSON_CreateNumber(weights[i]);

        if (weight == NULL) {
            st = FAIL(STATUS_NO_MEMORY, "no memory for the weights of a blend");
            goto done;
        }
        TRY(st, json_append(list, weight), done);
    }
    cJSON *taken = list;
    list = NULL; /* json_add_item takes it over */
    TRY(st, json_add_item(key, "weights", taken), done);
    TRY(st, json_add_u64(key, "size", samples), done);
done:
    cJSON_Delete(list);
    if (st != STATUS_OK) {
        cJSON_Delete(key);
        key = NULL;
    }
    *out_key = key;
    return st;
}

static enum status open_order(const struct data_config *config, const double *weights,
                              uint64_t samples, struct indexed_source *source)
{
    enum status st = STATUS_OK;
    cJSON *key = NULL;

    if (samples > SAMPLE_INDEX_BYTES_MAX / (sizeof(int16_t) + sizeof(int64_t))) {
        return FAIL(STATUS_BAD_DATA, "too many samples asked of a blend in split '%s': %llu",
                    sample_split_name(source->split), (unsigned long long)samples);
    }
    blend_index_plan(samples, &source->order);
    struct index_entry entry = {.class_name = "BlendedDataset",
                                .split_name = sample_split_name(source->split),
                                .arrays = source->order.arrays,
                                .array_count = BLEND_ARRAY_COUNT};
    if (config->cache_folder != NULL) {
        TRY(st, make_order_key(weights, source->part_count, source->split, samples, &key), done);
        entry.key = key;
        if (index_cache_load(config->cache_folder, &entry)) {
            blend_index_attach(&source->order);
            goto done;
        }
    }
    TRY(st, blend_index_fill(&source->order, weights, source->part_count), done);
    if (config->cache_folder != NULL) {
        index_cache_store(config->cache_folder, &entry);
    }
done:
    cJSON_Delete(key);
    return st;
}

/* With weights the length is the sum of the parts' shares, each rounded up. */
static enum status open_weighted(const struct data_config *config, const struct blend *blend,
                                 struct indexed_source *source)
{
    enum status st = STATUS_OK;
    uint64_t samples = config->samples[source->split], length = 0;

    for (size_t i = 0; i < blend->part_count; i++) {
        TRY(st,
            data_part_open(config, source->split, blend->prefixes[i],
                           blend_part_request(blend->weights[i], samples), &source->parts[i]),
            done);
        length += blend_part_share(blend->weights[i], samples);
    }
    TRY(st, open_order(config, blend->weights, length, source), done);
done:
    return st;
}

/* Without weights each part gives one epoch, and they are mixed by their lengths. */
static enum status open_unweighted(const struct data_config *config, const struct blend *blend,
                                   struct indexed_source *source)
{
    enum status st = STATUS_OK;
    uint64_t wanted = config->samples[source->split], length = 0;
    double *weights = NULL;

    TRY(st, mem_alloc(&weights, blend->part_count, sizeof *weights), done);
    for (size_t i = 0; i < blend->part_count; i++) {
        TRY(st, data_part_open(config, source->split, blend->prefixes[i], 0, &source->parts[i]),
            done);
        length += source->parts[i].index.sample_count;
        weights[i] = (double)source->parts[i].index.sample_count;
    }
    if (length < wanted) {
        st =
            FAIL(STATUS_BAD_DATA,
                 "split '%s' of the %zu data sets has %llu samples, but %llu are asked of it; give "
                 "weights, so that they repeat, or ask for fewer",
                 sample_split_name(source->split), blend->part_count, (unsigned long long)length,
                 (unsigned long long)wanted);
        goto done;
    }
    (void)blend_normalize(weights, blend->part_count); /* length >= wanted > 0 */
    TRY(st, open_order(config, weights, wanted, source), done);
done:
    mem_free(&weights);
    return st;
}

/* A path with spaces that names files as a whole is one data set, otherwise they divide several. */
static enum status parse_path(const char *path, struct blend *out_blend)
{
    enum status st = STATUS_OK;
    char *index = NULL;

    TRY(st, mem_format(&index, "%s.idx", path), done);
    st =
        fs_exists(fs_posix(), index) ? blend_create(path, out_blend) : blend_parse(path, out_blend);
done:
    mem_free(&index);
    return st;
}

static enum status open_indexed(const struct data_config *config, enum data_split split,
                                struct data_source *out_source)
{
    enum status st = STATUS_OK;
    struct blend blend = {0};
    struct indexed_source *source = NULL;

    TRY(st, parse_path(config->path, &blend), done);
    /* Megatron blends a weighted single data set too, but not where a split has its own path. */
    bool is_alone = blend.part_count == 1 && (blend.weights == NULL || config->split == NULL);
    TRY(st, mem_alloc(&source, 1, sizeof *source), done);
    source->split = split;
    source->sequence_length = config->sequence_length;
    source->part_count = blend.part_count;
    TRY(st, mem_alloc(&source->parts, blend.part_count, sizeof *source->parts), done);
    if (is_alone) {
        TRY(st,
            data_part_open(config, split, blend.prefixes[0], config->samples[split], source->parts),
            done);
    } else if (blend.weights != NULL) {
        TRY(st, open_weighted(config, &blend, source), done);
    } else {
        TRY(st, open_unweighted(config, &blend, source), done);
    }
    *out_source = (struct data_source){.context = source,
                                       .get = indexed_get,
                                       .close = indexed_close,
                                       .count = is_alone ? source->parts[0].index.sample_count
                                                         : source->order.sample_count};
done:
    blend_deinit(&blend);
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
    *out_source = (struct data_source){
        .context = source, .get = mock_get, .close = mock_close, .count = config->samples[split]};
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

size_t data_loader_mask_loss(const int32_t *tokens, size_t count, int32_t end_of_document,
                             float *out_mask)
{
    size_t kept = 0;

    for (size_t i = 0; i < count; i++) {
        bool counts = tokens[i] != end_of_document;

        out_mask[i] = counts ? 1.0f : 0.0f;
        kept += counts;
    }
    return kept;
}

void data_loader_find_starts(const int32_t *tokens, size_t count, int32_t end_of_document,
                             int32_t *out_starts)
{
    int32_t start = 0;

    for (size_t i = 0; i < count; i++) {
        out_starts[i] = start;
        if (tokens[i] == end_of_document) {
            start = (int32_t)i + 1;
        }
    }
}

void data_loader_close(struct data_source *source)
{
    if (source->close != NULL) {
        source->close(source->context);
    }
    *source = (struct data_source){0};
}
