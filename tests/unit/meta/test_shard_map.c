/* Claims of shard_map.h: boxes, and that any tiling can be made of any other. */
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/mem.h"
#include "ckpt/meta/shard_map.h"
#include "tests/unit/meta/meta_support.h"

#define TILES_MAX 256

struct tiling {
    struct shard_map_stored tiles[TILES_MAX];
    uint32_t *data[TILES_MAX];
    size_t count;
};

/* Cuts `box` in two at a random place, again and again, so that tilings are no grids. */
static void cut(struct tiling *tiling, struct box box, int depth, uint64_t *random)
{
    int d = (int)(support_random(random) % (uint64_t)box.dims);

    if (depth == 0 || box.extent[d] < 2 || support_random(random) % 8 == 0) {
        tiling->tiles[tiling->count] = (struct shard_map_stored){box, tiling->count};
        tiling->count++;
        return;
    }
    uint64_t at = 1 + support_random(random) % (box.extent[d] - 1);
    struct box left = box, right = box;
    left.extent[d] = at;
    right.offset[d] += at;
    right.extent[d] -= at;
    cut(tiling, left, depth - 1, random);
    cut(tiling, right, depth - 1, random);
}

static void make_tiling(struct tiling *tiling, struct box whole, uint64_t *random)
{
    memset(tiling, 0, sizeof *tiling);
    cut(tiling, whole, (int)(support_random(random) % 7), random);
    for (size_t i = 0; i < tiling->count; i++) {
        size_t bytes = box_count(&tiling->tiles[i].box) * sizeof(uint32_t);
        tiling->data[i] = calloc(1, bytes);
        cr_assert(tiling->data[i] != NULL);
    }
}

static void free_tiling(struct tiling *tiling)
{
    for (size_t i = 0; i < tiling->count; i++) {
        free(tiling->data[i]);
    }
}

/* Fills `to` from `from` through plans, as a load does. */
static void reshard(struct tiling *to, const struct tiling *from)
{
    for (size_t t = 0; t < to->count; t++) {
        struct shard_map_piece *pieces = NULL;
        size_t count;

        assert_ok(
            shard_map_plan("t", &to->tiles[t].box, from->tiles, from->count, &pieces, &count));
        for (size_t p = 0; p < count; p++) {
            size_t source = from->tiles[pieces[p].stored].source;
            box_copy(&pieces[p].part, sizeof(uint32_t), &to->tiles[t].box, to->data[t],
                     &from->tiles[source].box, from->data[source]);
        }
        mem_free(&pieces);
    }
}

Test(shard_map, any_random_tiling_is_made_of_any_other_bit_for_bit)
{
    uint64_t seed = (uint64_t)clock_wall_ns(), random = seed;
    static struct tiling whole, a, b, again;

    cr_log_info("seed %llu", (unsigned long long)seed);
    for (int round = 0; round < 300; round++) {
        int dims = 1 + (int)(support_random(&random) % BOX_DIMS_MAX);
        uint64_t shape[BOX_DIMS_MAX];

        for (int d = 0; d < dims; d++) {
            shape[d] = 1 + support_random(&random) % (dims == 1 ? 500 : 12);
        }
        struct box all = box_whole(dims, shape);
        memset(&whole, 0, sizeof whole);
        memset(&again, 0, sizeof again);
        cut(&whole, all, 0, &random);
        cut(&again, all, 0, &random);
        size_t elements = box_count(&all);
        whole.data[0] = calloc(elements, sizeof(uint32_t));
        again.data[0] = calloc(elements, sizeof(uint32_t));
        for (size_t i = 0; i < elements; i++) {
            whole.data[0][i] = (uint32_t)(i + 1);
        }
        make_tiling(&a, all, &random);
        make_tiling(&b, all, &random);
        reshard(&a, &whole);
        reshard(&b, &a);
        reshard(&again, &b);
        cr_assert(memcmp(whole.data[0], again.data[0], elements * sizeof(uint32_t)) == 0,
                  "seed %llu, round %d", (unsigned long long)seed, round);
        free_tiling(&whole);
        free_tiling(&again);
        free_tiling(&a);
        free_tiling(&b);
    }
}

Test(shard_map, a_missing_or_doubled_tile_is_refused_whatever_the_tiling)
{
    uint64_t seed = (uint64_t)clock_wall_ns(), random = seed;
    static struct tiling tiling;
    struct shard_map_piece *pieces = NULL;
    size_t count;

    for (int round = 0; round < 300; round++) {
        const struct box all = box_whole(3, (uint64_t[]){9, 7, 11});

        memset(&tiling, 0, sizeof tiling);
        cut(&tiling, all, 5, &random);
        size_t one = support_random(&random) % tiling.count;
        struct shard_map_stored kept = tiling.tiles[one];
        tiling.tiles[one].box.extent[0] = 0;
        assert_status(shard_map_plan("t", &all, tiling.tiles, tiling.count, &pieces, &count),
                      STATUS_CORRUPT);
        tiling.tiles[one] = kept;
        tiling.tiles[tiling.count] = kept;
        assert_status(shard_map_plan("t", &all, tiling.tiles, tiling.count + 1, &pieces, &count),
                      STATUS_CORRUPT);
        cr_assert(pieces == NULL && count == 0, "seed %llu", (unsigned long long)seed);
    }
}

Test(shard_map, an_overlap_that_makes_up_for_a_gap_in_number_is_refused)
{
    const struct box wanted = box_whole(2, (uint64_t[]){4, 4});
    const struct shard_map_stored stored[] = {
        {{.dims = 2, .offset = {0, 0}, .extent = {4, 2}}, 0},
        {{.dims = 2, .offset = {0, 1}, .extent = {4, 2}}, 1},
    };
    struct shard_map_piece *pieces;
    size_t count;

    assert_status(shard_map_plan("param/x", &wanted, stored, 2, &pieces, &count), STATUS_CORRUPT);
    cr_assert(strstr(status_last()->message, "param/x") != NULL);
    cr_assert(strstr(status_last()->message, "[0:4, 1:2]") != NULL, "%s", status_last()->message);
}

Test(shard_map, a_gap_is_named_by_tensor_and_box)
{
    const struct box wanted = {.dims = 1, .offset = {5}, .extent = {10}};
    const struct shard_map_stored stored[] = {{{.dims = 1, .offset = {0}, .extent = {12}}, 0}};
    struct shard_map_piece *pieces;
    size_t count;

    assert_status(shard_map_plan("param/x", &wanted, stored, 1, &pieces, &count), STATUS_CORRUPT);
    cr_assert(strstr(status_last()->message, "[5:15]") != NULL, "%s", status_last()->message);
    assert_status(shard_map_plan("param/x", &wanted, NULL, 0, &pieces, &count), STATUS_CORRUPT);
}

Test(shard_map, boxes_of_other_dimensions_are_refused)
{
    const struct box wanted = box_whole(2, (uint64_t[]){4, 4});
    const struct shard_map_stored stored[] = {{{.dims = 1, .offset = {0}, .extent = {16}}, 0}};
    struct shard_map_piece *pieces;
    size_t count;

    assert_status(shard_map_plan("t", &wanted, stored, 1, &pieces, &count), STATUS_CORRUPT);
}

Test(shard_map, an_empty_box_needs_nothing)
{
    const struct box wanted = {.dims = 2, .offset = {3, 0}, .extent = {0, 8}};
    struct shard_map_piece *pieces;
    size_t count = 7;

    assert_ok(shard_map_plan("t", &wanted, NULL, 0, &pieces, &count));
    cr_assert(count == 0);
    mem_free(&pieces);
}

Test(shard_map, a_hundred_thousand_boxes_are_planned_in_little_time)
{
    const size_t rows = 320, columns = 320;
    struct shard_map_stored *stored = calloc(rows * columns, sizeof *stored);
    const struct box wanted = box_whole(2, (uint64_t[]){rows * 3, columns * 5});
    struct shard_map_piece *pieces;
    size_t count;

    for (size_t i = 0; i < rows * columns; i++) {
        stored[i].box =
            (struct box){.dims = 2, .offset = {i / columns * 3, i % columns * 5}, .extent = {3, 5}};
    }
    int64_t start_ns = clock_monotonic_ns();
    assert_ok(shard_map_plan("t", &wanted, stored, rows * columns, &pieces, &count));
    int64_t took_ns = clock_monotonic_ns() - start_ns;
    cr_assert(count == rows * columns);
    cr_log_info("%lld ms", (long long)(took_ns / 1000000));
    cr_assert(took_ns < 5000000000, "%lld ns", (long long)took_ns);
    mem_free(&pieces);
    free(stored);
}

Test(shard_map, fits_does_not_overflow)
{
    const uint64_t shape[] = {10, 10};
    struct box box = {.dims = 2, .offset = {UINT64_MAX, 0}, .extent = {11, 10}};

    cr_assert(!box_fits(&box, 2, shape));
    box.offset[0] = 1;
    box.extent[0] = UINT64_MAX;
    cr_assert(!box_fits(&box, 2, shape));
    box.extent[0] = 9;
    cr_assert(box_fits(&box, 2, shape));
    cr_assert(!box_fits(&box, 1, shape));
}

Test(shard_map, a_format_longer_than_its_buffer_is_cut)
{
    const struct box box = {.dims = 2, .offset = {0, 128}, .extent = {4, 128}};
    char text[64], cut_text[8];

    box_format(&box, text, sizeof text);
    cr_assert_str_eq(text, "[0:4, 128:256]");
    box_format(&box, cut_text, sizeof cut_text);
    cr_assert_str_eq(cut_text, "[0:4, 1");
}
