/* make_checkpoint SAVE STEP RUN_ID BYTES: a checkpoint of TP 2 with a valid manifest and two files
 * of BYTES bytes that follow from step and run id; for the command-line tests of backup. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/hash.h"
#include "ckpt/base/mem.h"
#include "ckpt/meta/manifest.h"

static enum status add_shard(struct manifest *manifest, const char *folder, int tp, size_t bytes)
{
    enum status st = STATUS_OK;
    struct manifest_file file = {.coords = {tp, 0, 0}, .bytes = bytes, .index_bytes = 1};
    struct fs_file *shard = NULL;
    unsigned char *data = NULL;
    char path[FS_PATH_MAX];
    uint64_t state = hash_bytes64(manifest->run_id, strlen(manifest->run_id)) + manifest->step;

    TRY(st, mem_alloc(&data, bytes, 1), done);
    for (size_t i = 0; i < bytes; i++) {
        state =
            state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407) + (uint64_t)tp;
        data[i] = (unsigned char)(state >> 56);
    }
    layout_shard_name(file.coords, file.name);
    file.hash = hash_bytes128(data, bytes);
    TRY(st, fs_join(path, folder, file.name), done);
    TRY(st, fs_open(fs_posix(), path, FS_CREATE, &shard), done);
    TRY(st, fs_pwrite(shard, data, bytes, 0), done);
    TRY(st, manifest_add_file(manifest, &file), done);
done:
    fs_close(&shard);
    mem_free(&data);
    return st;
}

static enum status make(const char *save, uint64_t step, const char *run_id, size_t bytes)
{
    enum status st = STATUS_OK;
    struct manifest manifest;
    char name[LAYOUT_NAME_MAX], folder[FS_PATH_MAX];
    uint64_t shape[] = {4};

    TRY(st, manifest_init(&manifest), done);
    manifest.step = manifest.parent_step = step;
    manifest.epoch = 1;
    manifest.layout = (struct layout){2, 1, 1};
    manifest.created_wall_ns = 1764560000000000000;
    (void)snprintf(manifest.run_id, sizeof manifest.run_id, "%s", run_id);
    (void)snprintf(manifest.compression, sizeof manifest.compression, "none");
    layout_step_name(step, name);
    TRY(st, fs_join(folder, save, name), done);
    TRY(st, fs_make_dirs(fs_posix(), folder), done);
    TRY(st, manifest_add_tensor(&manifest, "param/t", MANIFEST_F32, 1, shape), done);
    TRY(st, add_shard(&manifest, folder, 0, bytes), done);
    TRY(st, add_shard(&manifest, folder, 1, bytes), done);
    TRY(st, manifest_write(&manifest, fs_posix(), folder), done);
done:
    manifest_deinit(&manifest);
    return st;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        (void)fprintf(stderr, "usage: make_checkpoint SAVE STEP RUN_ID BYTES\n");
        return 2;
    }
    enum status st =
        make(argv[1], strtoull(argv[2], NULL, 10), argv[3], strtoull(argv[4], NULL, 10));
    if (st != STATUS_OK) {
        status_print("make_checkpoint", true);
    }
    return status_exit_code(st);
}
