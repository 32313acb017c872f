/* Opening one split of one data set; see data_part.h. */
#include "train/data/data_part.h"

#include "ckpt/base/fs.h"
#include "ckpt/base/hash.h"
#include "ckpt/base/json.h"
#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"
#include "train/data/index_cache.h"

/* Tokens that one piece of the scan looks at. */
#define SCAN_TOKENS ((uint64_t)1 << 20)

struct scan {
    const struct token_file *file;
    uint64_t first, count;
    struct index_ids *pieces; /* what each piece found */
};

static enum status scan_piece(void *context, size_t piece)
{
    const struct scan *scan = context;
    uint64_t begin = piece * SCAN_TOKENS, count = scan->count - begin;

    count = count < SCAN_TOKENS ? count : SCAN_TOKENS;
    token_file_range(scan->file, scan->first + begin, count, &scan->pieces[piece].min,
                     &scan->pieces[piece].max);
    return STATUS_OK;
}

/* Looks at every id of the split, by all threads. */
static enum status scan_ids(const struct token_file *file, struct sample_range range,
                            struct index_ids *out_ids)
{
    enum status st = STATUS_OK;
    struct thread_pool *pool = NULL;
    uint64_t first = token_file_start(file, range.begin);
    struct scan scan = {
        .file = file, .first = first, .count = token_file_start(file, range.end) - first};
    size_t piece_count = (size_t)((scan.count + SCAN_TOKENS - 1) / SCAN_TOKENS);

    *out_ids = (struct index_ids){0};
    TRY(st, mem_alloc(&scan.pieces, piece_count, sizeof *scan.pieces), done);
    TRY(st, thread_pool_create(thread_cpu_count(), &pool), done);
    TRY(st, thread_pool_run(pool, scan_piece, &scan, piece_count), done);
    for (size_t i = 0; i < piece_count; i++) {
        const struct index_ids *piece = &scan.pieces[i];

        out_ids->min = i == 0 || piece->min < out_ids->min ? piece->min : out_ids->min;
        out_ids->max = i == 0 || piece->max > out_ids->max ? piece->max : out_ids->max;
    }
done:
    thread_pool_destroy(pool);
    mem_free(&scan.pieces);
    return st;
}

/* Every id must have a row in the embedding. */
static enum status check_ids(const struct data_config *config, const char *prefix,
                             struct index_ids ids)
{
    if (ids.min < 0 || ids.max >= config->vocab_size) {
        return FAIL(STATUS_BAD_DATA,
                    "token id %lld in '%s.bin' is outside the vocabulary of %lld; "
                    "was it made with another tokenizer?",
                    (long long)(ids.min < 0 ? ids.min : ids.max), prefix,
                    (long long)config->vocab_size);
    }
    return STATUS_OK;
}

/* All that the index and the ids depend on. The data are known by the hash of their lengths and by
 * size and time of the tokens, so that new data under an old name is no match. */
static enum status make_key(const struct data_config *config, enum data_split split,
                            const struct data_part *part, uint64_t samples, cJSON **out_key)
{
    enum status st = STATUS_OK;
    cJSON *key = NULL;
    char *path = NULL;
    struct fs_stat tokens = {0};
    const struct map_file *index = &part->file.index;

    TRY(st, mem_format(&path, "%s.bin", part->file.prefix), done);
    TRY(st, fs_stat(fs_posix(), path, &tokens), done);
    TRY(st, json_new_object(&key), done);
    TRY(st, json_add_string(key, "class", "GPTDataset"), done);
    TRY(st, json_add_string(key, "dataset_path", part->file.prefix), done);
    TRY(st, json_add_hex64(key, "dataset_idx_xxh3", hash_bytes64(index->bytes, index->count)),
        done);
    TRY(st, json_add_u64(key, "dataset_bin_bytes", tokens.size), done);
    TRY(st, json_add_hex64(key, "dataset_bin_modified_ns", (uint64_t)tokens.modified_ns), done);
    TRY(st, json_add_u64(key, "num_samples", samples), done);
    TRY(st, json_add_string(key, "index_split", sample_split_name(split)), done);
    TRY(st, json_add_u64(key, "random_seed", config->seed), done);
    TRY(st, json_add_i64(key, "sequence_length", config->sequence_length), done);
    TRY(st, json_add_string(key, "split", config->split == NULL ? "" : config->split), done);
done:
    mem_free(&path);
    if (st != STATUS_OK) {
        cJSON_Delete(key);
        key = NULL;
    }
    *out_key = key;
    return st;
}

/* Fills the planned index, from the cache if it has it. */
static enum status fill(const struct data_config *config, enum data_split split, uint64_t samples,
                        struct data_part *part, struct index_ids *out_ids)
{
    enum status st = STATUS_OK;
    cJSON *key = NULL;
    struct index_entry entry = {.class_name = "GPTDataset",
                                .split_name = sample_split_name(split),
                                .arrays = part->index.arrays,
                                .array_count = SAMPLE_ARRAY_COUNT,
                                .ids = out_ids};

    if (config->cache_folder != NULL) {
        TRY(st, make_key(config, split, part, samples, &key), done);
        entry.key = key;
        if (index_cache_load(config->cache_folder, &entry)) {
            sample_index_attach(&part->index);
            goto done;
        }
    }
    TRY(st, sample_index_fill(&part->index, &part->file, config->sequence_length, config->seed),
        done);
    TRY(st, scan_ids(&part->file, part->index.range, out_ids), done);
    if (config->cache_folder != NULL) {
        index_cache_store(config->cache_folder, &entry);
    }
done:
    cJSON_Delete(key);
    return st;
}

enum status data_part_open(const struct data_config *config, enum data_split split,
                           const char *prefix, uint64_t samples, struct data_part *out_part)
{
    enum status st = STATUS_OK;
    struct sample_range ranges[DATA_SPLIT_COUNT];
    struct index_ids ids = {0};

    *out_part = (struct data_part){0};
    TRY(st, token_file_open(prefix, &out_part->file), done);
    if (out_part->file.token_count == 0) {
        st = FAIL(STATUS_BAD_DATA, "no tokens in '%s.bin': it is empty", prefix);
        goto done;
    }
    if (config->split == NULL) {
        ranges[split] = (struct sample_range){0, out_part->file.sequence_count};
    } else {
        TRY(st, sample_index_split(config->split, out_part->file.sequence_count, ranges), done);
    }
    TRY(st,
        sample_index_plan(&out_part->file, ranges[split], config->sequence_length, samples,
                          sample_split_name(split), &out_part->index),
        done);
    TRY(st, fill(config, split, samples, out_part, &ids), done);
    TRY(st, check_ids(config, prefix, ids), done);
done:
    if (st != STATUS_OK) {
        data_part_close(out_part);
    }
    return st;
}

void data_part_close(struct data_part *part)
{
    sample_index_deinit(&part->index);
    token_file_close(&part->file);
    *part = (struct data_part){0};
}
