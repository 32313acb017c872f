/* GB/s of saving and loading one rank's state, in both compressions.
 *
 *     cmake --build BUILD --target ckpt_bench && BUILD/bin/ckpt_bench FOLDER [MIB 512] [THREADS 2]
 *
 * FOLDER should be a tmpfs: the disk is not what is measured. The state is fp32 numbers as weights
 * are, random but for sign and exponent. Rates are of raw bytes, the best of three rounds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/ckpt.h"

#define TENSORS 8
#define COLUMNS 1024
#define ROUNDS 3

static void fill(float *values, size_t count)
{
    uint64_t state = 1;

    for (size_t i = 0; i < count; i++) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        uint64_t low = state >> 40, high = (state >> 16) & 0xffffff;
        values[i] = ((float)low + (float)high - 16777216.0F) * 0x1p-24F * 0.04F;
    }
}

static enum status make_tensors(uint64_t bytes, struct ckpt_tensor *tensors)
{
    static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    enum status st = STATUS_OK;

    for (int i = 0; i < TENSORS; i++) {
        struct ckpt_tensor *tensor = &tensors[i];
        *tensor = (struct ckpt_tensor){.name = names[i], .type = MANIFEST_F32, .dims = 2};
        tensor->shape[0] = bytes / TENSORS / COLUMNS / sizeof(float);
        tensor->shape[1] = COLUMNS;
        tensor->box = tensor->owned = box_whole(2, tensor->shape);
        TRY(st, mem_alloc(&tensor->data, (size_t)box_count(&tensor->box), sizeof(float)), done);
        fill(tensor->data, (size_t)box_count(&tensor->box));
    }
done:
    return st;
}

struct rates {
    double save_s, load_s;
    uint64_t file_bytes;
};

static enum status run_round(const char *folder, const char *compression, int threads,
                             struct ckpt_tensor *tensors, struct rates *rates)
{
    enum status st = STATUS_OK;
    struct ckpt_writer *writer = NULL;
    struct ckpt_choice choice = {.found = false};
    struct ckpt_save_result result;
    cJSON empty = {.type = cJSON_Object};
    struct ckpt_writer_config config = {.fs = fs_posix(),
                                        .save = folder,
                                        .run_id = "bench",
                                        .layout = {1, 1, 1},
                                        .group = {.size = 1},
                                        .compression = compression,
                                        .thread_count = threads};
    struct ckpt_save save = {
        .step = 1, .tensors = tensors, .tensor_count = TENSORS, .options = &empty, .state = &empty};

    TRY(st, ckpt_writer_open(&config, &writer), done);
    int64_t begin_ns = clock_monotonic_ns();
    TRY(st, ckpt_save(writer, &save, &result), done);
    double save_s = (double)(clock_monotonic_ns() - begin_ns) * 1e-9;
    TRY(st, ckpt_choose(fs_posix(), folder, UINT64_MAX, false, &config.group, &choice), done);
    begin_ns = clock_monotonic_ns();
    TRY(st, ckpt_load(fs_posix(), &choice, tensors, TENSORS, threads, &config.group), done);
    double load_s = (double)(clock_monotonic_ns() - begin_ns) * 1e-9;
    rates->save_s = save_s < rates->save_s ? save_s : rates->save_s;
    rates->load_s = load_s < rates->load_s ? load_s : rates->load_s;
    rates->file_bytes = result.bytes;
    TRY(st, fs_remove_tree(fs_posix(), choice.path), done);
done:
    ckpt_choice_deinit(&choice);
    ckpt_writer_close(&writer);
    return st;
}

static enum status run(const char *folder, uint64_t bytes, int threads)
{
    static const char *const compressions[] = {"none", "zstd"};
    enum status st = STATUS_OK;
    struct ckpt_tensor tensors[TENSORS] = {0};

    TRY(st, make_tensors(bytes, tensors), done);
    for (size_t c = 0; c < 2; c++) {
        struct rates rates = {1e30, 1e30, 0};
        for (int round = 0; round < ROUNDS; round++) {
            TRY(st, run_round(folder, compressions[c], threads, tensors, &rates), done);
        }
        printf("%s: save %.2f GB/s, load %.2f GB/s, %.3f of the raw size, %d threads\n",
               compressions[c], (double)bytes * 1e-9 / rates.save_s,
               (double)bytes * 1e-9 / rates.load_s, (double)rates.file_bytes / (double)bytes,
               threads);
    }
done:
    for (int i = 0; i < TENSORS; i++) {
        mem_free(&tensors[i].data);
    }
    return st;
}

int main(int argc, char **argv)
{
    log_init(LOG_LEVEL_WARN, "");
    if (argc < 2) {
        (void)fprintf(stderr, "usage: %s FOLDER [MIB] [THREADS]\n", argv[0]);
        return 2;
    }
    uint64_t mib = argc > 2 ? strtoull(argv[2], NULL, 10) : 512;
    int threads = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 2;
    enum status st = run(argv[1], mib << 20, threads);
    if (st != STATUS_OK) {
        status_print("ckpt_bench", true);
    }
    return status_exit_code(st);
}
