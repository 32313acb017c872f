/* Claims of layout.h: ranks and coordinates, names of steps and shards. */
#include <stdio.h>
#include <string.h>

#include "ckpt/meta/layout.h"
#include "tests/unit/meta/meta_support.h"

Test(layout, ranks_and_coordinates_are_inverse_with_tp_fastest_then_dp)
{
    const struct layout layout = {.tp = 3, .pp = 4, .dp = 5};

    cr_assert(layout_size(layout) == 60);
    cr_assert(layout_rank(layout, (struct coords){.tp = 1}) == 1);
    cr_assert(layout_rank(layout, (struct coords){.dp = 1}) == 3);
    cr_assert(layout_rank(layout, (struct coords){.pp = 1}) == 15);
    for (int rank = 0; rank < 60; rank++) {
        cr_assert(layout_rank(layout, layout_coords(layout, rank)) == rank);
    }
}

Test(layout, format_names_sizes_in_the_order_tp_pp_dp)
{
    char text[LAYOUT_NAME_MAX];

    layout_format((struct layout){.tp = 2, .pp = 1, .dp = 4}, text);
    cr_assert_str_eq(text, "TP 2 x PP 1 x DP 4");
}

Test(layout, step_names_of_any_width_are_read_back)
{
    const uint64_t steps[] = {0, 1, 500, 9999999, 10000000, 123456789012345, UINT64_MAX};
    char name[LAYOUT_NAME_MAX];
    uint64_t step;

    layout_step_name(500, name);
    cr_assert_str_eq(name, "step_0000500");
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        layout_step_name(steps[i], name);
        cr_assert(layout_parse_step_name(name, &step) && step == steps[i], "%s", name);
    }
    cr_assert(layout_parse_step_name("step_000000000000000000000000000500", &step) && step == 500);
}

Test(layout, what_is_no_step_name_is_refused)
{
    const char *const names[] = {"",
                                 "step_",
                                 "step_000500",
                                 "step_0000500x",
                                 "step_-000500",
                                 "step_+0000500",
                                 "step_ 0000500",
                                 "Step_0000500",
                                 "step_18446744073709551616",
                                 "step_99999999999999999999999",
                                 "rejected-step_0000500-2",
                                 ".step_0000500"};
    uint64_t step;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        cr_assert(!layout_parse_step_name(names[i], &step), "%s", names[i]);
    }
}

Test(layout, shard_names_of_any_width_are_read_back)
{
    const int numbers[] = {0, 7, 99, 100, 65535};
    char name[LAYOUT_NAME_MAX];
    struct coords coords;

    layout_shard_name((struct coords){.tp = 0, .pp = 1, .dp = 2}, name);
    cr_assert_str_eq(name, "tp00_pp01_dp02.h5");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        layout_shard_name((struct coords){.tp = numbers[i], .pp = 3, .dp = numbers[i]}, name);
        cr_assert(layout_parse_shard_name(name, &coords), "%s", name);
        cr_assert(coords.tp == numbers[i] && coords.pp == 3 && coords.dp == numbers[i]);
    }
    cr_assert(layout_parse_shard_name("tp0_pp000_dp0000001.h5", &coords) && coords.dp == 1);
}

Test(layout, what_is_no_shard_name_is_refused)
{
    const char *const names[] = {"",
                                 "tp00_pp00_dp00",
                                 "tp00_pp00_dp00.h5.tmp",
                                 "tp00_pp00_dp.h5",
                                 "tp00_dp00_pp00.h5",
                                 "../tp00_pp00_dp00.h5",
                                 "tp00_pp00_dp65536.h5",
                                 "tp00_pp00_dp99999999999999999999.h5",
                                 "tp-1_pp00_dp00.h5"};
    struct coords coords;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        cr_assert(!layout_parse_shard_name(names[i], &coords), "%s", names[i]);
    }
}
