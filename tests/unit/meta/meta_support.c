/* What the tests of ckpt/meta share; see meta_support.h. */
#include "tests/unit/meta/meta_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/meta/commit.h"

void support_make_folder(char out_path[FS_PATH_MAX])
{
    const char *root = getenv("TMPDIR");

    (void)snprintf(out_path, FS_PATH_MAX, "%s/holdfast-test-XXXXXX", root != NULL ? root : "/tmp");
    cr_assert(mkdtemp(out_path) != NULL);
}

void support_remove_folder(const char *path)
{
    assert_ok(fs_remove_tree(fs_posix(), path));
}

uint64_t support_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ULL;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

const char *support_path(const char *directory, const char *name)
{
    static char paths[2][FS_PATH_MAX];
    static int turn;

    turn = !turn;
    assert_ok(fs_join(paths[turn], directory, name));
    return paths[turn];
}

static void fill_shard(uint64_t step, int tp, char out_bytes[SUPPORT_SHARD_BYTES])
{
    uint64_t state = step * 1000 + (uint64_t)tp;

    for (int i = 0; i < SUPPORT_SHARD_BYTES; i++) {
        out_bytes[i] = (char)support_random(&state);
    }
}

void support_fill_manifest(struct manifest *manifest, uint64_t step)
{
    assert_ok(manifest_init(manifest));
    manifest->step = step;
    manifest->epoch = 1;
    manifest->parent_step = 0;
    (void)snprintf(manifest->run_id, sizeof manifest->run_id, "run-a");
    (void)snprintf(manifest->compression, sizeof manifest->compression, "none");
    manifest->layout = (struct layout){.tp = 2, .pp = 1, .dp = 1};
    manifest->created_wall_ns = 1764560659123456789;
    manifest->state_hash = 0xfedcba9876543210;
    cr_assert(cJSON_AddNumberToObject(manifest->options, "lr", 0.1) != NULL);
    cr_assert(cJSON_AddNumberToObject(manifest->state, "consumed_samples", 4096) != NULL);
    assert_ok(manifest_add_tensor(manifest, "param/b", MANIFEST_F32, 1, (uint64_t[]){12}));
    assert_ok(manifest_add_tensor(manifest, "param/a", MANIFEST_BF16, 3, (uint64_t[]){4, 2, 8}));
}

void support_add_file(struct manifest *manifest, int tp)
{
    struct manifest_file file = {.coords = {.tp = tp}};
    char bytes[SUPPORT_SHARD_BYTES];

    fill_shard(manifest->step, tp, bytes);
    layout_shard_name(file.coords, file.name);
    file.bytes = SUPPORT_SHARD_BYTES;
    file.hash = hash_bytes128(bytes, sizeof bytes);
    file.index_offset = SUPPORT_SHARD_BYTES - 40;
    file.index_bytes = 40;
    file.index_hash = hash_bytes128(bytes + file.index_offset, 40);
    assert_ok(manifest_add_file(manifest, &file));
}

enum status support_write_shard(struct fs *fs, const char *directory, uint64_t step, int tp)
{
    enum status st = STATUS_OK;
    char name[LAYOUT_NAME_MAX], path[FS_PATH_MAX], bytes[SUPPORT_SHARD_BYTES];
    struct fs_file *file = NULL;
    const size_t half = SUPPORT_SHARD_BYTES / 2;

    layout_shard_name((struct coords){.tp = tp}, name);
    TRY(st, fs_join(path, directory, name), done);
    fill_shard(step, tp, bytes);
    TRY(st, fs_open(fs, path, FS_CREATE_NEW, &file), done);
    TRY(st, fs_pwrite(file, bytes, half, 0), done);
    TRY(st, fs_pwrite(file, bytes + half, sizeof bytes - half, half), done);
    TRY(st, fs_sync(file), done);
done:
    fs_close(&file);
    return st;
}

void support_plant(struct fs *fs, const char *save, uint64_t step)
{
    struct manifest manifest;
    char name[LAYOUT_NAME_MAX], path[FS_PATH_MAX];

    layout_step_name(step, name);
    assert_ok(fs_join(path, save, name));
    assert_ok(fs_mkdir(fs, path));
    support_fill_manifest(&manifest, step);
    for (int tp = 0; tp < 2; tp++) {
        support_add_file(&manifest, tp);
        assert_ok(support_write_shard(fs, path, step, tp));
    }
    assert_ok(manifest_write(&manifest, fs, path));
    manifest_deinit(&manifest);
}

enum status support_commit(struct fs *fs, const char *save, struct lease *lease, uint64_t step)
{
    enum status st = STATUS_OK;
    struct manifest manifest;
    char staging[FS_PATH_MAX];
    bool begun = false;

    support_fill_manifest(&manifest, step);
    TRY(st, commit_begin(fs, lease, step, staging), done);
    begun = true;
    for (int tp = 0; tp < 2; tp++) {
        support_add_file(&manifest, tp);
        TRY(st, support_write_shard(fs, staging, step, tp), done);
    }
    TRY(st, commit_publish(fs, save, lease, &manifest, staging), done);
done:
    if (st != STATUS_OK && begun) {
        commit_discard(fs, staging);
    }
    manifest_deinit(&manifest);
    return st;
}

bool support_is_whole(struct fs *fs, const char *save, uint64_t step)
{
    struct manifest manifest;
    char name[LAYOUT_NAME_MAX], path[FS_PATH_MAX], bytes[SUPPORT_SHARD_BYTES];
    bool whole;

    layout_step_name(step, name);
    assert_ok(fs_join(path, save, name));
    if (manifest_read(fs, path, &manifest) != STATUS_OK) {
        return false;
    }
    whole = manifest.step == step && manifest.file_count == 2;
    for (int tp = 0; tp < 2 && whole; tp++) {
        fill_shard(step, tp, bytes);
        struct hash128 hash = hash_bytes128(bytes, sizeof bytes);
        whole = manifest_check_file_hash(&manifest.files[tp], fs, path) == STATUS_OK &&
                hash.low == manifest.files[tp].hash.low;
    }
    manifest_deinit(&manifest);
    return whole;
}

void support_write_text(struct fs *fs, const char *directory, const char *name, const char *text)
{
    struct fs_file *file = NULL;

    assert_ok(fs_open(fs, support_path(directory, name), FS_CREATE, &file));
    assert_ok(fs_pwrite(file, text, strlen(text), 0));
    fs_close(&file);
}
