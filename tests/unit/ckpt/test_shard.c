/* Claims of shard.h, shard_index.h and box_reader.h: what is written lies where the index says, and
 * a false index with a right hash is refused before it is used. */
#include "ckpt/shard.h"

#include <stdio.h>
#include <string.h>

#include "ckpt/base/json.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/box_reader.h"
#include "ckpt/codec.h"
#include "ckpt/shard_index.h"
#include "tests/support/fs_sim.h"
#include "tests/unit/meta/meta_support.h"

#define ROWS 1500 /* three chunks of 2 MiB */
#define COLUMNS 1000

static void quiet(void)
{
    log_init(LOG_LEVEL_ERROR, "");
}

TestSuite(shard, .init = quiet);

/* One shard in a folder: a large tensor (rows 100 to 1500 are there), a small one, an i64. */
struct scene {
    char folder[FS_PATH_MAX], path[FS_PATH_MAX];
    struct thread_pool *pool;
    float *large;
    float small[7];
    int64_t whole[3];
    struct manifest manifest;
};

static const struct shard_identity identity = {
    .step = 3, .epoch = 2, .layout = {1, 1, 1}, .run_id = "run-a"};

static void write(struct scene *scene, bool compress)
{
    struct shard_box boxes[] = {
        {"param/large",
         MANIFEST_F32,
         2,
         {1600, COLUMNS},
         {2, {100, 0}, {ROWS, COLUMNS}},
         scene->large},
        {"param/small", MANIFEST_F32, 1, {7}, {1, {0}, {7}}, scene->small},
        {"count", MANIFEST_I64, 1, {3}, {1, {0}, {3}}, scene->whole},
    };
    struct manifest_file file = {.bytes = 0};

    assert_ok(
        shard_write(fs_posix(), scene->path, &identity, boxes, 3, compress, scene->pool, &file));
    layout_shard_name(file.coords, file.name);
    assert_ok(manifest_add_file(&scene->manifest, &file));
    for (size_t i = 0; i < 3; i++) {
        assert_ok(manifest_add_tensor(&scene->manifest, boxes[i].tensor, boxes[i].type,
                                      boxes[i].dims, boxes[i].shape));
    }
}

static void scene_init(struct scene *scene, bool compress)
{
    uint64_t random = 5;

    *scene = (struct scene){.whole = {-1, INT64_MAX, INT64_MIN}};
    support_make_folder(scene->folder);
    assert_ok(fs_join(scene->path, scene->folder, "tp00_pp00_dp00.h5"));
    assert_ok(thread_pool_create(3, &scene->pool));
    assert_ok(mem_alloc(&scene->large, (size_t)ROWS * COLUMNS, sizeof *scene->large));
    for (size_t i = 0; i < (size_t)ROWS * COLUMNS; i++) {
        scene->large[i] = (float)(support_random(&random) % 1000) * 0.001F;
    }
    for (int i = 0; i < 7; i++) {
        scene->small[i] = (float)i;
    }
    assert_ok(manifest_init(&scene->manifest));
    scene->manifest.step = 3;
    scene->manifest.layout = (struct layout){1, 1, 1};
    write(scene, compress);
}

static void scene_deinit(struct scene *scene)
{
    manifest_deinit(&scene->manifest);
    mem_free(&scene->large);
    thread_pool_destroy(scene->pool);
    support_remove_folder(scene->folder);
}

static enum status read_box(struct scene *scene, const char *tensor, struct box box, void *data)
{
    enum status st = STATUS_OK;
    struct box_reader *reader = NULL;
    struct box_target target = {tensor, box, data};

    TRY(st, box_reader_open(fs_posix(), scene->folder, &scene->manifest, scene->pool, &reader),
        done);
    TRY(st, box_reader_read(reader, &target, 1), done);
done:
    box_reader_close(&reader);
    return st;
}

static void read_everything(bool compress)
{
    struct scene scene;
    uint64_t random = 6;
    float *got = NULL;
    int64_t whole[3];

    scene_init(&scene, compress);
    assert_ok(mem_alloc(&got, (size_t)ROWS * COLUMNS, sizeof *got));
    for (int i = 0; i < 50; i++) {
        uint64_t row = support_random(&random) % ROWS, column = support_random(&random) % COLUMNS;
        struct box box = {2,
                          {100 + row, column},
                          {1 + support_random(&random) % (ROWS - row),
                           1 + support_random(&random) % (COLUMNS - column)}};
        assert_ok(read_box(&scene, "param/large", box, got));
        for (uint64_t r = 0; r < box.extent[0]; r++) {
            cr_assert(memcmp(got + r * box.extent[1], scene.large + (row + r) * COLUMNS + column,
                             box.extent[1] * sizeof *got) == 0);
        }
    }
    assert_ok(read_box(&scene, "param/small", (struct box){1, {2}, {4}}, got));
    cr_assert(memcmp(got, scene.small + 2, 4 * sizeof *got) == 0);
    assert_ok(read_box(&scene, "count", (struct box){1, {0}, {3}}, whole));
    cr_assert(memcmp(whole, scene.whole, sizeof whole) == 0);
    /* Rows 0 to 99 are in no shard. */
    assert_status(read_box(&scene, "param/large", (struct box){2, {99, 0}, {2, 1}}, got),
                  STATUS_CORRUPT);
    mem_free(&got);
    scene_deinit(&scene);
}

Test(shard, any_part_of_a_box_is_read_back_raw_and_compressed_and_a_gap_is_told)
{
    read_everything(false);
    read_everything(true);
}

Test(shard, raw_payload_lies_on_page_borders_where_the_index_says_and_small_boxes_stay_raw)
{
    struct scene scene;
    struct shard_index index;

    for (int compress = 0; compress < 2; compress++) {
        scene_init(&scene, compress != 0);
        assert_ok(shard_index_read(fs_posix(), scene.path, &scene.manifest,
                                   &scene.manifest.files[0], &index));
        cr_assert(index.count == 3);
        cr_assert(index.boxes[0].encoding == (compress != 0 ? SHARD_SHUFFLE_ZSTD : SHARD_RAW));
        cr_assert(index.boxes[1].encoding == SHARD_RAW && index.boxes[2].encoding == SHARD_RAW);
        cr_assert(index.boxes[0].chunk_count == 3);
        cr_assert(index.boxes[0].chunks[0].offset % SHARD_ALIGN == 0);
        shard_index_deinit(&index);
        scene_deinit(&scene);
    }
}

/* Rows in the target's own width go straight into it: no byte beside them may change. */
static void read_whole_rows(bool compress)
{
    struct scene scene;
    uint64_t random = 7;
    float *got = NULL;

    scene_init(&scene, compress);
    assert_ok(mem_alloc(&got, (size_t)(ROWS + 2) * COLUMNS, sizeof *got));
    for (int i = 0; i < 20; i++) {
        uint64_t row = i == 0 ? 0 : support_random(&random) % ROWS;
        uint64_t rows = i == 0 ? ROWS : 1 + support_random(&random) % (ROWS - row);
        for (size_t c = 0; c < COLUMNS; c++) {
            got[c] = got[(rows + 1) * COLUMNS + c] = -7;
        }
        assert_ok(read_box(&scene, "param/large", (struct box){2, {100 + row, 0}, {rows, COLUMNS}},
                           got + COLUMNS));
        cr_assert(
            memcmp(got + COLUMNS, scene.large + row * COLUMNS, rows * COLUMNS * sizeof *got) == 0);
        for (size_t c = 0; c < COLUMNS; c++) {
            cr_assert(got[c] == -7 && got[(rows + 1) * COLUMNS + c] == -7);
        }
    }
    mem_free(&got);
    scene_deinit(&scene);
}

Test(shard, whole_rows_are_read_and_nothing_beside_them_is_touched)
{
    read_whole_rows(false);
    read_whole_rows(true);
}

/* The last chunk of `box`, decoded: its rows, then zeros. */
static void check_padding(const struct scene *scene, const struct shard_index_box *box)
{
    size_t last = box->chunk_count - 1;
    size_t row = (size_t)shard_index_row_bytes(box), whole = (size_t)box->chunk_rows * row;
    size_t held = (size_t)shard_index_chunk_rows(box, last) * row;
    const struct shard_chunk *chunk = &box->chunks[last];
    struct fs_file *file = NULL;
    struct codec *codec = NULL;
    unsigned char *stored = NULL, *raw = NULL;

    cr_assert(box->encoding == SHARD_SHUFFLE_ZSTD && held < whole);
    assert_ok(mem_alloc(&stored, (size_t)chunk->bytes, 1));
    assert_ok(mem_alloc(&raw, whole, 1));
    assert_ok(fs_open(fs_posix(), scene->path, FS_READ, &file));
    assert_ok(fs_pread(file, stored, (size_t)chunk->bytes, chunk->offset));
    fs_close(&file);
    assert_ok(codec_create(&codec));
    assert_ok(codec_decode(codec, stored, (size_t)chunk->bytes, sizeof(float), raw, whole));
    codec_destroy(&codec);
    cr_assert(memcmp(raw, scene->large + last * box->chunk_rows * COLUMNS, held) == 0);
    for (size_t i = held; i < whole; i++) {
        cr_assert(raw[i] == 0, "byte %zu of the padding of '%s'", i - held, box->tensor);
    }
    mem_free(&raw);
    mem_free(&stored);
}

/* A whole padded box into memory of its own size: the padding has no place there. */
static void read_padded(struct scene *scene, const struct shard_index_box *box)
{
    size_t count = (size_t)box_count(&box->box);
    float *got = NULL;

    assert_ok(mem_alloc(&got, count + 4 * COLUMNS, sizeof *got));
    for (size_t c = 0; c < 4 * COLUMNS; c++) {
        got[count + c] = -7;
    }
    assert_ok(read_box(scene, box->tensor, box->box, got));
    cr_assert(memcmp(got, scene->large, count * sizeof *got) == 0);
    for (size_t c = 0; c < 4 * COLUMNS; c++) {
        cr_assert(got[count + c] == -7, "element %zu behind the box", c);
    }
    mem_free(&got);
}

/* Both boxes end in the same place of a batch, the second with fewer rows. */
Test(shard, a_last_chunk_is_padded_with_zeros_that_no_reader_sees)
{
    struct scene scene;
    struct manifest_file file = {.bytes = 0};
    struct shard_index index;

    scene_init(&scene, false);
    for (size_t i = 0; i < (size_t)ROWS * COLUMNS; i++) {
        scene.large[i] += 1;
    }
    assert_ok(fs_unlink(fs_posix(), scene.path));
    const struct shard_box boxes[] = {
        {"a", MANIFEST_F32, 2, {1499, COLUMNS}, {2, {0}, {1499, COLUMNS}}, scene.large},
        {"b", MANIFEST_F32, 2, {1498, COLUMNS}, {2, {0}, {1498, COLUMNS}}, scene.large},
    };
    assert_ok(shard_write(fs_posix(), scene.path, &identity, boxes, 2, true, scene.pool, &file));
    layout_shard_name(file.coords, file.name);
    manifest_deinit(&scene.manifest);
    assert_ok(manifest_init(&scene.manifest));
    scene.manifest.layout = (struct layout){1, 1, 1};
    assert_ok(manifest_add_file(&scene.manifest, &file));
    for (size_t i = 0; i < 2; i++) {
        assert_ok(manifest_add_tensor(&scene.manifest, boxes[i].tensor, boxes[i].type,
                                      boxes[i].dims, boxes[i].shape));
    }
    assert_ok(shard_index_read(fs_posix(), scene.path, &scene.manifest, &file, &index));
    cr_assert(index.count == 2);
    for (size_t i = 0; i < 2; i++) {
        check_padding(&scene, &index.boxes[i]);
        read_padded(&scene, &index.boxes[i]);
    }
    shard_index_deinit(&index);
    scene_deinit(&scene);
}

Test(shard, a_file_that_is_there_is_not_written_over)
{
    struct scene scene;
    struct manifest_file file;

    scene_init(&scene, false);
    assert_status(shard_write(fs_posix(), scene.path, &identity, NULL, 0, false, scene.pool, &file),
                  STATUS_EXISTS);
    scene_deinit(&scene);
}

Test(shard, a_rank_that_owns_nothing_writes_a_shard_without_boxes)
{
    struct scene scene;
    struct manifest_file file = {.bytes = 0};
    struct shard_index index;
    char path[FS_PATH_MAX];

    scene_init(&scene, false);
    assert_ok(fs_join(path, scene.folder, "tp01_pp00_dp00.h5"));
    assert_ok(shard_write(fs_posix(), path, &identity, NULL, 0, true, scene.pool, &file));
    assert_ok(shard_index_read(fs_posix(), path, &scene.manifest, &file, &index));
    cr_assert(index.count == 0);
    shard_index_deinit(&index);
    scene_deinit(&scene);
}

/* No state hash stands behind a read of one tensor. */
Test(shard, a_flipped_bit_of_a_chunk_is_noticed_and_the_tensor_named)
{
    struct scene scene;
    struct shard_index index;
    struct fs_file *file = NULL;
    float got[7];
    unsigned char byte;

    scene_init(&scene, false);
    assert_ok(shard_index_read(fs_posix(), scene.path, &scene.manifest, &scene.manifest.files[0],
                               &index));
    uint64_t at = index.boxes[1].chunks[0].offset + 9;
    assert_ok(fs_open(fs_posix(), scene.path, FS_UPDATE, &file));
    assert_ok(fs_pread(file, &byte, 1, at));
    byte ^= 4;
    assert_ok(fs_pwrite(file, &byte, 1, at));
    fs_close(&file);
    assert_status(read_box(&scene, "param/small", (struct box){1, {0}, {7}}, got), STATUS_CORRUPT);
    cr_assert(strstr(status_last()->message, "'param/small'") != NULL);
    shard_index_deinit(&index);
    scene_deinit(&scene);
}

/* HDF5's own writes are among them: what it swallows must come out again. */
Test(shard, each_call_of_a_write_that_fails_fails_the_write)
{
    struct scene scene;

    scene_init(&scene, false);
    for (int compress = 0; compress < 2; compress++) {
        enum status st = STATUS_IO;
        uint64_t n = 0;
        while (st == STATUS_IO) {
            struct fs_sim *sim = fs_sim_create();
            struct shard_box box = {
                "param/large", MANIFEST_F32, 2, {1600, COLUMNS}, {2, {100, 0}, {100, COLUMNS}},
                scene.large};
            struct manifest_file file;
            fs_sim_fail_at(sim, ++n, STATUS_IO);
            st = shard_write(fs_sim_fs(sim), "/shard", &identity, &box, 1, compress != 0,
                             scene.pool, &file);
            cr_assert((st == STATUS_OK) == (fs_sim_calls(sim) < n), "call %d of %d: %s", (int)n,
                      (int)fs_sim_calls(sim), status_name(st));
            fs_sim_destroy(sim);
        }
        cr_assert(n > 10);
    }
    scene_deinit(&scene);
}

/* ---- false indexes ---- */

/* Writes `text` as a whole file and reads it as the index of a file of 1000 bytes. */
static enum status read_text(struct scene *scene, const char *text)
{
    struct shard_index index;
    struct manifest_file file = {.bytes = 1000, .index_bytes = strlen(text)};

    file.index_hash = hash_bytes128(text, strlen(text));
    support_write_text(fs_posix(), scene->folder, "false", text);
    enum status st = shard_index_read(fs_posix(), support_path(scene->folder, "false"),
                                      &scene->manifest, &file, &index);
    shard_index_deinit(&index);
    return st;
}

#define BOX(tensor, type, offset, extent, encoding, rows, chunks)                                  \
    "{\"boxes\":[{\"tensor\":\"" tensor "\",\"type\":\"" type "\",\"offset\":" offset              \
    ",\"extent\":" extent ",\"encoding\":\"" encoding "\",\"chunk_rows\":" rows                    \
    ",\"chunks\":" chunks "}]}"
#define CHUNK(at, bytes) "{\"at\":" at ",\"bytes\":" bytes ",\"hash\":\"0x0000000000000000\"}"
#define SMALL(offset, extent, rows, chunks)                                                        \
    BOX("param/small", "f32", offset, extent, "raw", rows, chunks)

Test(shard, a_false_index_with_a_right_hash_is_refused)
{
    static const char *const corrupt[] = {
        "",
        "[]",
        "{}",
        "{\"boxes\":{}}",
        "{\"boxes\":[3]}",
        "{\"boxes\":[{}]}",
        BOX("param/none", "f32", "[0]", "[7]", "raw", "7", "[" CHUNK("0", "28") "]"),
        BOX("param/small", "i64", "[0]", "[7]", "raw", "7", "[" CHUNK("0", "28") "]"),
        SMALL("[0,0]", "[7,1]", "7", "[" CHUNK("0", "28") "]"),
        SMALL("[1]", "[7]", "7", "[" CHUNK("0", "28") "]"),
        SMALL("[-1]", "[7]", "7", "[" CHUNK("0", "28") "]"),
        SMALL("[9007199254740992]", "[7]", "7", "[" CHUNK("0", "28") "]"),
        SMALL("[0]", "[0]", "7", "[]"),
        SMALL("[0]", "[1.5]", "1", "[" CHUNK("0", "4") "]"),
        SMALL("[0]", "[7]", "0", "[" CHUNK("0", "28") "]"),
        SMALL("[0]", "[7]", "8", "[" CHUNK("0", "28") "]"),
        SMALL("[0]", "[7]", "7", "[]"),
        SMALL("[0]", "[7]", "7", "[" CHUNK("0", "28") "," CHUNK("28", "28") "]"),
        SMALL("[0]", "[7]", "7", "[" CHUNK("0", "24") "]"),
        SMALL("[0]", "[7]", "7", "[" CHUNK("973", "28") "]"),
        SMALL("[0]", "[7]", "7", "[" CHUNK("9007199254740992", "28") "]"),
        SMALL("[0]", "[7]", "7", "[" CHUNK("-1", "28") "]"),
        SMALL("[0]", "[7]", "7", "[{\"at\":0,\"bytes\":28,\"hash\":0}]"),
        BOX("param/small", "f32", "[0]", "[7]", "shuffle+zstd", "7", "[" CHUNK("0", "0") "]"),
        BOX("param/small", "f32", "[0]", "[7]", "shuffle+zstd", "7", "[" CHUNK("0", "1001") "]"),
    };
    struct scene scene;

    scene_init(&scene, false);
    for (size_t i = 0; i < sizeof corrupt / sizeof *corrupt; i++) {
        enum status st = read_text(&scene, corrupt[i]);
        cr_assert(st == STATUS_CORRUPT, "%s: %s (%s)", corrupt[i], status_name(st),
                  status_last()->message);
    }
    assert_status(read_text(&scene, BOX("param/small", "f32", "[0]", "[7]", "zip", "7",
                                        "[" CHUNK("0", "28") "]")),
                  STATUS_UNSUPPORTED);
    assert_ok(read_text(&scene, SMALL("[0]", "[7]", "7", "[" CHUNK("0", "28") "]")));
    assert_ok(
        read_text(&scene, SMALL("[2]", "[4]", "3", "[" CHUNK("0", "12") "," CHUNK("99", "4") "]")));
    scene_deinit(&scene);
}
