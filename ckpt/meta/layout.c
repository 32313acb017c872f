/* Layouts, coordinates and names; see layout.h. Pure functions, no state.
 *
 * Names are read more freely than they are written: a number may have any count of digits, so that
 * runs of more than 100 ranks a dimension or 10 million steps need no new format.
 */
#include "ckpt/meta/layout.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define STEP_PREFIX "step_"
#define STEP_DIGITS_MIN 7
#define SHARD_SUFFIX ".h5"

static bool layout_is_valid(struct layout layout)
{
    return layout.tp >= 1 && layout.pp >= 1 && layout.dp >= 1 && layout.tp <= LAYOUT_RANKS_MAX &&
           layout.pp <= LAYOUT_RANKS_MAX && layout.dp <= LAYOUT_RANKS_MAX &&
           (int64_t)layout.tp * layout.pp * layout.dp <= LAYOUT_RANKS_MAX;
}

int layout_size(struct layout layout)
{
    CHECK(layout_is_valid(layout));
    return layout.tp * layout.pp * layout.dp;
}

int layout_rank(struct layout layout, struct coords coords)
{
    CHECK(layout_is_valid(layout));
    CHECK(coords.tp >= 0 && coords.tp < layout.tp);
    CHECK(coords.pp >= 0 && coords.pp < layout.pp);
    CHECK(coords.dp >= 0 && coords.dp < layout.dp);
    return coords.tp + layout.tp * (coords.dp + layout.dp * coords.pp);
}

struct coords layout_coords(struct layout layout, int rank)
{
    CHECK(rank >= 0 && rank < layout_size(layout));
    return (struct coords){
        .tp = rank % layout.tp,
        .pp = rank / layout.tp / layout.dp,
        .dp = rank / layout.tp % layout.dp,
    };
}

void layout_format(struct layout layout, char out_text[LAYOUT_NAME_MAX])
{
    (void)snprintf(out_text, LAYOUT_NAME_MAX, "TP %d x PP %d x DP %d", layout.tp, layout.pp,
                   layout.dp);
}

/* Reads the digits at *text and moves *text behind them; false when there are fewer than
 * digits_min or the number is above `max`. */
static bool parse_digits(const char **text, size_t digits_min, uint64_t max, uint64_t *out_value)
{
    uint64_t value = 0;
    size_t count = 0;

    for (; **text >= '0' && **text <= '9'; (*text)++, count++) {
        uint64_t digit = (uint64_t)(**text - '0');
        if (digit > max || value > (max - digit) / 10) {
            return false;
        }
        value = value * 10 + digit;
    }
    *out_value = value;
    return count >= digits_min;
}

static bool skip_text(const char **text, const char *expected)
{
    size_t length = strlen(expected);

    if (strncmp(*text, expected, length) != 0) {
        return false;
    }
    *text += length;
    return true;
}

void layout_step_name(uint64_t step, char out_name[LAYOUT_NAME_MAX])
{
    (void)snprintf(out_name, LAYOUT_NAME_MAX, STEP_PREFIX "%0*" PRIu64, STEP_DIGITS_MIN, step);
}

bool layout_parse_step_name(const char *name, uint64_t *out_step)
{
    uint64_t step;

    if (!skip_text(&name, STEP_PREFIX) ||
        !parse_digits(&name, STEP_DIGITS_MIN, UINT64_MAX, &step) || *name != '\0') {
        return false;
    }
    *out_step = step;
    return true;
}

void layout_shard_name(struct coords coords, char out_name[LAYOUT_NAME_MAX])
{
    (void)snprintf(out_name, LAYOUT_NAME_MAX, "tp%02d_pp%02d_dp%02d" SHARD_SUFFIX, coords.tp,
                   coords.pp, coords.dp);
}

bool layout_parse_shard_name(const char *name, struct coords *out_coords)
{
    uint64_t tp, pp, dp;
    const uint64_t max = LAYOUT_RANKS_MAX - 1;

    if (strlen(name) >= LAYOUT_NAME_MAX || !skip_text(&name, "tp") ||
        !parse_digits(&name, 1, max, &tp) || !skip_text(&name, "_pp") ||
        !parse_digits(&name, 1, max, &pp) || !skip_text(&name, "_dp") ||
        !parse_digits(&name, 1, max, &dp) || strcmp(name, SHARD_SUFFIX) != 0) {
        return false;
    }
    *out_coords = (struct coords){.tp = (int)tp, .pp = (int)pp, .dp = (int)dp};
    return true;
}
