/* Claims of verify and load about damage: a flipped bit, a cut or a missing file is noticed. */
#include <stdio.h>
#include <string.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/shard_index.h"
#include "tests/unit/ckpt/small_world.h"
#include "tests/unit/meta/meta_support.h"

#define FLIPS 400

static void quiet(void)
{
    log_init(LOG_LEVEL_ERROR, "");
}

TestSuite(verify, .init = quiet, .timeout = 100);

/* A checkpoint of step 1 in a folder of its own, and the world that loads it. */
struct scene {
    char save[FS_PATH_MAX], checkpoint[FS_PATH_MAX];
    struct small_model model;
    struct small_world world;
    struct manifest manifest;
};

static void scene_init(struct scene *scene, const char *compression, struct layout layout)
{
    support_make_folder(scene->save);
    assert_ok(fs_join(scene->checkpoint, scene->save, "step_0000001"));
    /* Large enough that the embedding is compressed, in several chunks when it is not cut. */
    small_model_init(&scene->model,
                     (struct small_model_shape){.vocab = 4099, .hidden = 8, .layers = 1});
    small_world_init(&scene->world, &scene->model, layout, scene->save);
    scene->world.compression = compression;
    small_world_fill(&scene->world);
    small_world_save_well(&scene->world, 1);
    assert_ok(manifest_read(fs_posix(), scene->checkpoint, &scene->manifest));
    assert_ok(ckpt_verify(fs_posix(), scene->checkpoint, CKPT_VERIFY_DEEP, 2));
}

static void scene_deinit(struct scene *scene)
{
    manifest_deinit(&scene->manifest);
    small_world_deinit(&scene->world);
    small_model_deinit(&scene->model);
    support_remove_folder(scene->save);
}

static void flip(const char *path, uint64_t at, int bit)
{
    struct fs_file *file = NULL;
    unsigned char byte;

    assert_ok(fs_open(fs_posix(), path, FS_UPDATE, &file));
    assert_ok(fs_pread(file, &byte, 1, at));
    byte ^= (unsigned char)(1 << bit);
    assert_ok(fs_pwrite(file, &byte, 1, at));
    fs_close(&file);
}

/* Whether a load reads this byte: a chunk's or the index's. */
static bool is_read_by_load(const struct scene *scene, size_t number, uint64_t at)
{
    const struct manifest_file *file = &scene->manifest.files[number];
    struct shard_index index;
    bool is_read = at >= file->index_offset && at < file->index_offset + file->index_bytes;

    assert_ok(shard_index_read(fs_posix(), support_path(scene->checkpoint, file->name),
                               &scene->manifest, file, &index));
    for (size_t b = 0; b < index.count; b++) {
        for (size_t c = 0; c < index.boxes[b].chunk_count; c++) {
            const struct shard_chunk *chunk = &index.boxes[b].chunks[c];
            is_read = is_read || (at >= chunk->offset && at < chunk->offset + chunk->bytes);
        }
    }
    shard_index_deinit(&index);
    return is_read;
}

static void load_all(struct scene *scene, uint64_t at, bool must_fail)
{
    struct status_record records[RANK_THREADS_MAX];
    const char *name = "";

    small_world_clear(&scene->world);
    small_world_load(&scene->world, records);
    for (int r = 0; r < layout_size(scene->world.layout); r++) {
        if (must_fail) {
            cr_assert(records[r].code == STATUS_CORRUPT, "byte %llu: %s", (unsigned long long)at,
                      status_name(records[r].code));
        } else {
            cr_assert(records[r].code == STATUS_OK, "byte %llu: %s", (unsigned long long)at,
                      records[r].message);
            cr_assert(small_part_is_right(&scene->world.parts[r], &scene->model, &name),
                      "byte %llu: '%s'", (unsigned long long)at, name);
        }
    }
}

static void flip_many(const char *compression, uint64_t seed)
{
    struct scene scene;
    int read = 0, structure = 0;

    scene_init(&scene, compression, (struct layout){2, 1, 1});
    for (int i = 0; i < FLIPS; i++) {
        size_t number = support_random(&seed) % scene.manifest.file_count;
        const struct manifest_file *file = &scene.manifest.files[number];
        const char *path = support_path(scene.checkpoint, file->name);
        uint64_t at = support_random(&seed) % file->bytes;
        switch (i % 3) { /* payload is most of a file; give index and structure their share */
        case 0:
            at = file->index_offset + at % file->index_bytes;
            break;
        case 1:
            at %= 4096;
            break;
        }
        bool is_read = is_read_by_load(&scene, number, at);
        int bit = (int)(support_random(&seed) % 8);
        flip(path, at, bit);
        assert_status(ckpt_verify(fs_posix(), scene.checkpoint, CKPT_VERIFY_FULL, 1),
                      STATUS_CORRUPT);
        load_all(&scene, at, is_read);
        flip(support_path(scene.checkpoint, file->name), at, bit);
        *(is_read ? &read : &structure) += 1;
    }
    assert_ok(ckpt_verify(fs_posix(), scene.checkpoint, CKPT_VERIFY_DEEP, 1));
    cr_log_info("%s: %d flips in chunks and index, %d in the structure", compression, read,
                structure);
    cr_assert(read > 50 && structure > 50);
    scene_deinit(&scene);
}

Test(verify, a_flipped_bit_anywhere_is_found_by_full_and_in_chunks_and_index_by_a_load)
{
    uint64_t seed = (uint64_t)clock_wall_ns();

    cr_log_info("seed %llu", (unsigned long long)seed);
    flip_many("none", seed);
    flip_many("zstd", seed + 1);
}

Test(verify, a_flipped_bit_of_the_manifest_is_found_by_every_level)
{
    struct scene scene;
    struct fs_stat stat;
    uint64_t seed = (uint64_t)clock_wall_ns();

    cr_log_info("seed %llu", (unsigned long long)seed);
    scene_init(&scene, "none", (struct layout){1, 1, 1});
    const char *path = support_path(scene.checkpoint, MANIFEST_FILE);
    assert_ok(fs_stat(fs_posix(), path, &stat));
    for (int i = 0; i < 500; i++) {
        uint64_t at = support_random(&seed) % stat.size;
        int bit = (int)(support_random(&seed) % 8);
        flip(path, at, bit);
        assert_status(ckpt_verify(fs_posix(), scene.checkpoint, CKPT_VERIFY_QUICK, 1),
                      STATUS_CORRUPT);
        flip(path, at, bit);
    }
    scene_deinit(&scene);
}

Test(verify, a_cut_grown_or_missing_shard_is_found_by_quick_and_never_chosen)
{
    struct scene scene;
    struct fs_file *file = NULL;
    struct ckpt_group alone = {.size = 1};
    struct ckpt_choice choice;

    scene_init(&scene, "none", (struct layout){2, 1, 1});
    const char *path = support_path(scene.checkpoint, scene.manifest.files[1].name);
    uint64_t bytes = scene.manifest.files[1].bytes;
    const uint64_t sizes[] = {0, 1, bytes / 2, bytes - 1, bytes + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_ok(fs_open(fs_posix(), path, FS_UPDATE, &file));
        assert_ok(fs_truncate(file, sizes[i]));
        fs_close(&file);
        assert_status(ckpt_verify(fs_posix(), scene.checkpoint, CKPT_VERIFY_QUICK, 1),
                      STATUS_CORRUPT);
        assert_status(ckpt_choose(fs_posix(), scene.save, UINT64_MAX, false, &alone, &choice),
                      STATUS_NO_CHECKPOINT);
    }
    assert_ok(fs_unlink(fs_posix(), path));
    assert_status(ckpt_verify(fs_posix(), scene.checkpoint, CKPT_VERIFY_QUICK, 1), STATUS_CORRUPT);
    assert_status(ckpt_choose(fs_posix(), scene.save, UINT64_MAX, false, &alone, &choice),
                  STATUS_NO_CHECKPOINT);
    scene_deinit(&scene);
}

/* The real file system, but for its n-th open: before that the checkpoint is renamed away, as
 * retention does. */
static struct {
    const char *from, *to;
    int opens_left; /* 0: never */
} deletion;

static enum status open_or_delete(struct fs *fs, const char *path, enum fs_open_mode mode,
                                  struct fs_file **out_file)
{
    (void)fs;
    if (deletion.opens_left > 0 && --deletion.opens_left == 0) {
        assert_ok(fs_rename(fs_posix(), deletion.from, deletion.to));
    }
    return fs_posix()->ops->open(fs_posix(), path, mode, out_file);
}

Test(verify, a_checkpoint_deleted_at_any_moment_is_gone_and_not_damaged)
{
    struct scene scene;
    struct fs_ops ops = *fs_posix()->ops;
    struct fs fs = {&ops};
    char trash[FS_PATH_MAX];
    int n = 1;

    ops.open = open_or_delete;
    scene_init(&scene, "zstd", (struct layout){2, 1, 1});
    assert_ok(fs_join(trash, scene.save, ".trash-x"));
    for (;; n++) {
        deletion.from = scene.checkpoint;
        deletion.to = trash;
        deletion.opens_left = n;
        enum status st = ckpt_verify(&fs, scene.checkpoint, CKPT_VERIFY_DEEP, 1);
        if (deletion.opens_left > 0) {
            assert_ok(st);
            break;
        }
        cr_assert(st == STATUS_NOT_FOUND, "open %d: %s", n, status_last()->message);
        cr_assert(strstr(status_last()->message, "any more") != NULL);
        assert_ok(fs_rename(fs_posix(), trash, scene.checkpoint));
    }
    cr_assert(n > 10);
    assert_ok(fs_unlink(fs_posix(), support_path(scene.checkpoint, MANIFEST_FILE)));
    assert_status(ckpt_verify(fs_posix(), scene.checkpoint, CKPT_VERIFY_QUICK, 1), STATUS_CORRUPT);
    scene_deinit(&scene);
}

Test(verify, a_whole_shard_of_another_step_is_found_by_full_and_by_a_load)
{
    struct scene scene;
    char *bytes = NULL, other[FS_PATH_MAX];
    size_t count = 0;
    struct fs_file *file = NULL;

    scene_init(&scene, "none", (struct layout){2, 1, 1});
    const char *name = scene.manifest.files[0].name;
    ((float *)scene.world.parts[0].tensors[0].data)[0] += 1;
    small_world_save_well(&scene.world, 2);
    assert_ok(fs_join(other, scene.save, "step_0000002"));
    assert_ok(fs_read_file(fs_posix(), support_path(other, name), (size_t)1 << 30, &bytes, &count));
    assert_ok(fs_remove_tree(fs_posix(), other));
    assert_ok(fs_open(fs_posix(), support_path(scene.checkpoint, name), FS_UPDATE, &file));
    cr_assert(count == scene.manifest.files[0].bytes);
    assert_ok(fs_pwrite(file, bytes, count, 0));
    fs_close(&file);
    mem_free(&bytes);
    assert_ok(ckpt_verify(fs_posix(), scene.checkpoint, CKPT_VERIFY_QUICK, 1));
    assert_status(ckpt_verify(fs_posix(), scene.checkpoint, CKPT_VERIFY_FULL, 1), STATUS_CORRUPT);
    load_all(&scene, 0, true);
    scene_deinit(&scene);
}
