/* Data sources by the options; see train_data.h. */
#include "train/train_data.h"

#include <string.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/mem.h"
#include "train/data/cyclic_order.h"
#include "train/data/read_ahead.h"

#define DATA_ARGS_BYTES_MAX ((size_t)64 << 20)

static bool has_own_paths(const struct train_options *options)
{
    return options->train_data_path[0] != 0 || options->valid_data_path[0] != 0 ||
           options->test_data_path[0] != 0;
}

static enum status check_source(const struct train_options *options)
{
    bool by_split = has_own_paths(options);
    int sources = (options->data_path[0] != 0) + (options->data_args_path[0] != 0) + by_split +
                  options->mock_data;

    if (sources == 0) {
        return FAIL(STATUS_USAGE,
                    "no data: give --data-path, or --train-data-path, or --mock-data");
    }
    if (sources > 1) {
        return FAIL(STATUS_USAGE,
                    "several sources of data (--data-path '%.160s', --data-args-path '%.160s', "
                    "--train-data-path '%.160s', --valid-data-path '%.160s', --test-data-path "
                    "'%.160s', --mock-data %s): give one of the first two, or paths for each "
                    "split, or --mock-data",
                    options->data_path, options->data_args_path, options->train_data_path,
                    options->valid_data_path, options->test_data_path,
                    options->mock_data ? "true" : "false");
    }
    return STATUS_OK;
}

bool train_data_needs_eod(const struct train_options *options)
{
    return options->eod_mask_loss || options->reset_position_ids || options->reset_attention_mask;
}

enum status train_data_check(const struct train_options *options)
{
    enum status st = STATUS_OK;
    bool by_split = has_own_paths(options);

    TRY(st, check_source(options), done);
    if (train_data_needs_eod(options) &&
        (options->eod_id < 0 || options->eod_id >= options->vocab_size)) {
        return FAIL(
            STATUS_USAGE,
            "--eod-mask-loss, --reset-position-ids and --reset-attention-mask need the id "
            "that ends a document, below --vocab-size %lld, and not %lld: give --eod-id, or "
            "the tokenizer's files",
            (long long)options->vocab_size, (long long)options->eod_id);
    }
    if (by_split && options->train_data_path[0] == 0) {
        return FAIL(STATUS_USAGE,
                    "--valid-data-path '%.200s' and --test-data-path '%.200s' need a "
                    "--train-data-path beside them",
                    options->valid_data_path, options->test_data_path);
    }
    if (by_split && options->eval_interval > 0 && options->valid_data_path[0] == 0) {
        return FAIL(STATUS_USAGE,
                    "--eval-interval %lld needs a --valid-data-path beside --train-data-path '%s'",
                    (long long)options->eval_interval, options->train_data_path);
    }
    if (by_split && options->given[TRAIN_OPTION_split]) {
        return FAIL(STATUS_USAGE,
                    "--split '%s' does not go with --train-data-path '%s': it cuts --data-path",
                    options->split, options->train_data_path);
    }
done:
    return st;
}

/* What --data-path says, or the file that says it. */
static enum status read_path(const struct train_options *options, char **out_path)
{
    enum status st = STATUS_OK;
    size_t count = 0;

    if (options->data_args_path[0] == 0) {
        return mem_copy_string(out_path, options->data_path);
    }
    TRY(st,
        fs_read_file(fs_posix(), options->data_args_path, DATA_ARGS_BYTES_MAX, out_path, &count),
        done);
    if (strlen(*out_path) != count) {
        st = FAIL(STATUS_BAD_DATA, "'%s' is no text: it holds a byte 0", options->data_args_path);
    }
done:
    return st;
}

enum status train_data_open(const struct train_options *options, const struct train_plan *plan,
                            enum data_split split, uint64_t samples, struct data_source *out_source)
{
    enum status st = STATUS_OK;
    const char *const own[DATA_SPLIT_COUNT] = {options->train_data_path, options->valid_data_path,
                                               options->test_data_path};
    bool by_split = has_own_paths(options);
    char *path = NULL;
    uint64_t run = (uint64_t)plan->model.micro_batch;
    struct data_config config = {
        .split = by_split ? NULL : options->split,
        .sequence_length = options->seq_length,
        .seed = (uint64_t)options->seed,
        .vocab_size = options->vocab_size,
        .cache_folder = options->data_cache_path[0] != 0 ? options->data_cache_path : NULL,
    };
    struct read_ahead_config ahead = {
        .workers = (int)options->num_workers,
        .sequence_length = options->seq_length,
        .run = run,
        .stride = run * (uint64_t)plan->layout.dp,
    };

    struct cyclic_order_config cyclic = {.micro_batch = run,
                                         .dp = (uint64_t)plan->layout.dp,
                                         .data_sharding = options->data_sharding};

    TRY(st, read_path(options, &path), done);
    config.path = options->mock_data ? NULL : by_split ? own[split] : path;
    config.samples[split] = samples;
    TRY(st, data_loader_open(&config, split, out_source), done);
    if (samples > 0 && strcmp(options->dataloader_type, "cyclic") == 0) {
        TRY(st, cyclic_order_open(&cyclic, out_source), done);
    }
    if (samples > 0 && !options->mock_data && ahead.workers > 0) {
        TRY(st, read_ahead_open(&ahead, out_source), done);
    }
done:
    mem_free(&path);
    return st;
}
