/* Groups and stages as pure functions of layout and rank. */
#include <criterion/criterion.h>

#include "train/parallel/topology.h"

static const struct layout cube = {.tp = 2, .pp = 3, .dp = 2};

static void expect_group(struct coords coords, enum topology_axis axis, const int *ranks, int count)
{
    int got[16];

    cr_assert_eq(topology_ranks(cube, coords, axis, got), count);
    for (int i = 0; i < count; i++) {
        cr_assert_eq(got[i], ranks[i], "member %d is rank %d, not %d", i, got[i], ranks[i]);
    }
}

Test(topology, groups_are_lines_through_the_cube_in_megatrons_order)
{
    struct coords coords = {.tp = 1, .pp = 2, .dp = 1};

    expect_group(coords, TOPOLOGY_TP, (int[]){10, 11}, 2);
    expect_group(coords, TOPOLOGY_DP, (int[]){9, 11}, 2);
    expect_group(coords, TOPOLOGY_PP, (int[]){3, 7, 11}, 3);
    expect_group(coords, TOPOLOGY_EMBEDDING, (int[]){3, 11}, 2);
}

Test(topology, only_first_and_last_stage_share_an_embedding)
{
    int ranks[16];

    cr_assert_eq(topology_ranks(cube, (struct coords){.pp = 1}, TOPOLOGY_EMBEDDING, ranks), 0);
    cr_assert_eq(
        topology_ranks((struct layout){2, 1, 2}, (struct coords){0}, TOPOLOGY_EMBEDDING, ranks), 0);
}

Test(topology, every_rank_is_in_its_own_groups)
{
    for (int rank = 0; rank < layout_size(cube); rank++) {
        for (int axis = TOPOLOGY_TP; axis <= TOPOLOGY_DP; axis++) {
            int ranks[16], found = 0;
            int count =
                topology_ranks(cube, layout_coords(cube, rank), (enum topology_axis)axis, ranks);
            for (int i = 0; i < count; i++) {
                found += ranks[i] == rank ? 1 : 0;
            }
            cr_assert_eq(found, 1);
        }
    }
}

Test(topology, stages_tile_the_layers_and_the_first_ones_are_longer)
{
    for (int layers = 1; layers <= 13; layers++) {
        for (int stages = 1; stages <= layers; stages++) {
            int expected = 0, before = layers;
            for (int stage = 0; stage < stages; stage++) {
                int begin, end;
                topology_stage_layers(layers, stages, stage, &begin, &end);
                cr_assert_eq(begin, expected);
                cr_assert(end - begin <= before && end - begin >= layers / stages &&
                          end - begin <= layers / stages + 1);
                before = end - begin;
                expected = end;
            }
            cr_assert_eq(expected, layers);
        }
    }
}

Test(topology, five_layers_on_four_stages_are_two_one_one_one)
{
    int begin, end;

    topology_stage_layers(5, 4, 0, &begin, &end);
    cr_assert(begin == 0 && end == 2);
    topology_stage_layers(5, 4, 3, &begin, &end);
    cr_assert(begin == 4 && end == 5);
}
