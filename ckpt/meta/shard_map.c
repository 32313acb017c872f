/* Boxes and the plan that makes one out of many; see shard_map.h. Pure arithmetic: before it the
 * shard indices say what is stored, after it the reader copies the pieces.
 *
 * Invariant of a plan: the pieces lie inside `wanted`, share no element, and have as many elements
 * as it; hence they tile it. Disjointness is checked by a sweep along the dimension in which the
 * pieces start at the most different places, so that 100,000 row slices cost a sort.
 */
#include "ckpt/meta/shard_map.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/mem.h"

#define BOX_TEXT_MAX 200

uint64_t box_count(const struct box *box)
{
    uint64_t count = 1;

    for (int d = 0; d < box->dims; d++) {
        count *= box->extent[d];
    }
    return count;
}

bool box_is_empty(const struct box *box)
{
    for (int d = 0; d < box->dims; d++) {
        if (box->extent[d] == 0) {
            return true;
        }
    }
    return false;
}

bool box_equal(const struct box *a, const struct box *b)
{
    if (a->dims != b->dims) {
        return false;
    }
    for (int d = 0; d < a->dims; d++) {
        if (a->offset[d] != b->offset[d] || a->extent[d] != b->extent[d]) {
            return false;
        }
    }
    return true;
}

struct box box_whole(int dims, const uint64_t *shape)
{
    struct box box = {.dims = dims};

    CHECK(dims >= 1 && dims <= BOX_DIMS_MAX);
    memcpy(box.extent, shape, (size_t)dims * sizeof *shape);
    return box;
}

bool box_fits(const struct box *box, int dims, const uint64_t *shape)
{
    if (box->dims != dims || dims < 1 || dims > BOX_DIMS_MAX) {
        return false;
    }
    for (int d = 0; d < dims; d++) {
        if (box->offset[d] > shape[d] || box->extent[d] > shape[d] - box->offset[d]) {
            return false;
        }
    }
    return true;
}

bool box_intersect(const struct box *a, const struct box *b, struct box *out_box)
{
    struct box shared = {.dims = a->dims};

    CHECK(a->dims == b->dims);
    for (int d = 0; d < a->dims; d++) {
        uint64_t from = a->offset[d] > b->offset[d] ? a->offset[d] : b->offset[d];
        uint64_t a_end = a->offset[d] + a->extent[d];
        uint64_t b_end = b->offset[d] + b->extent[d];
        uint64_t end = a_end < b_end ? a_end : b_end;

        if (end <= from) {
            *out_box = (struct box){.dims = a->dims};
            return false;
        }
        shared.offset[d] = from;
        shared.extent[d] = end - from;
    }
    *out_box = shared;
    return true;
}

void box_format(const struct box *box, char *out_text, size_t bytes)
{
    size_t used = 0;

    CHECK(bytes > 0);
    out_text[0] = '\0';
    for (int d = 0; d < box->dims && used < bytes; d++) {
        int more = snprintf(out_text + used, bytes - used, "%s%" PRIu64 ":%" PRIu64 "%s",
                            d == 0 ? "[" : ", ", box->offset[d], box->offset[d] + box->extent[d],
                            d == box->dims - 1 ? "]" : "");
        used += (size_t)more;
    }
}

/* Elements between a box's first one and the first one of `part` in the box's row-major memory. */
static size_t element_index(const struct box *box, const struct box *part)
{
    size_t index = 0;

    for (int d = 0; d < box->dims; d++) {
        index = index * box->extent[d] + (part->offset[d] - box->offset[d]);
    }
    return index;
}

void box_copy(const struct box *part, size_t element_bytes, const struct box *to, void *to_data,
              const struct box *from, const void *from_data)
{
    uint64_t row = element_bytes; /* bytes copied at once */
    int outer = part->dims - 1;   /* dimensions walked: 0 .. outer - 1 */
    struct box at = *part;

    CHECK(part->dims == to->dims && part->dims == from->dims);
    if (box_is_empty(part)) {
        return;
    }
    for (int d = 0; d < part->dims; d++) {
        CHECK(part->offset[d] >= to->offset[d] && part->offset[d] >= from->offset[d]);
        CHECK(part->offset[d] + part->extent[d] <= to->offset[d] + to->extent[d]);
        CHECK(part->offset[d] + part->extent[d] <= from->offset[d] + from->extent[d]);
    }
    row *= part->extent[outer];
    while (outer > 0 && part->extent[outer] == to->extent[outer] &&
           part->extent[outer] == from->extent[outer]) {
        outer--;
        row *= part->extent[outer];
    }
    for (;;) {
        memcpy((char *)to_data + element_index(to, &at) * element_bytes,
               (const char *)from_data + element_index(from, &at) * element_bytes, row);
        int d = outer - 1;
        while (d >= 0 && ++at.offset[d] == part->offset[d] + part->extent[d]) {
            at.offset[d] = part->offset[d];
            d--;
        }
        if (d < 0) {
            return;
        }
    }
}

/* What the sweep needs of a piece: its box, where it came from, and where it begins. */
struct sweep_entry {
    uint64_t start;
    const struct box *box;
};

static int compare_starts(const void *a, const void *b)
{
    const struct sweep_entry *left = a, *right = b;

    return (left->start > right->start) - (left->start < right->start);
}

static void sort_along(struct sweep_entry *entries, size_t count, int dimension)
{
    for (size_t i = 0; i < count; i++) {
        entries[i].start = entries[i].box->offset[dimension];
    }
    qsort(entries, count, sizeof *entries, compare_starts);
}

/* Sorts by the dimension with the most distinct starts and returns it. */
static int sort_for_sweep(struct sweep_entry *entries, size_t count)
{
    int best = 0;
    size_t best_distinct = 0;

    for (int d = 0; d < entries[0].box->dims; d++) {
        size_t distinct = 1;

        sort_along(entries, count, d);
        for (size_t i = 1; i < count; i++) {
            distinct += entries[i].start != entries[i - 1].start;
        }
        if (distinct > best_distinct) {
            best = d;
            best_distinct = distinct;
        }
    }
    sort_along(entries, count, best);
    return best;
}

/* Two pieces overlap only if the later one begins before the earlier one ends, in any dimension;
 * entries[active .. i - 1] are compacted to those that still reach entry i. */
static enum status check_disjoint(const char *tensor_name, const struct shard_map_piece *pieces,
                                  size_t count)
{
    enum status st = STATUS_OK;
    struct sweep_entry *entries = NULL;
    size_t active = 0;
    struct box shared;

    if (count < 2) {
        return STATUS_OK;
    }
    TRY(st, mem_alloc(&entries, count, sizeof *entries), done);
    for (size_t i = 0; i < count; i++) {
        entries[i].box = &pieces[i].part;
    }
    int dimension = sort_for_sweep(entries, count);

    for (size_t i = 0; i < count; i++) {
        struct sweep_entry entry = entries[i];
        size_t still = 0;

        for (size_t j = 0; j < active; j++) {
            const struct box *other = entries[j].box;

            if (other->offset[dimension] + other->extent[dimension] <= entry.start) {
                continue;
            }
            if (box_intersect(other, entry.box, &shared)) {
                char text[BOX_TEXT_MAX];
                box_format(&shared, text, sizeof text);
                st = FAIL(STATUS_CORRUPT, "part %s of tensor '%s' is stored twice", text,
                          tensor_name);
                goto done;
            }
            entries[still++] = entries[j];
        }
        entries[still] = entry; /* still <= active <= i: never ahead of what is read */
        active = still + 1;
    }
done:
    mem_free(&entries);
    return st;
}

/* Two passes over `stored`: count, then fill; plain and without growing. */
static size_t collect_pieces(const struct box *wanted, const struct shard_map_stored *stored,
                             size_t stored_count, struct shard_map_piece *pieces)
{
    size_t count = 0;
    struct box part;

    for (size_t i = 0; i < stored_count; i++) {
        if (!box_intersect(&stored[i].box, wanted, &part)) {
            continue;
        }
        if (pieces != NULL) {
            pieces[count] = (struct shard_map_piece){.stored = i, .part = part};
        }
        count++;
    }
    return count;
}

enum status shard_map_plan(const char *tensor_name, const struct box *wanted,
                           const struct shard_map_stored *stored, size_t stored_count,
                           struct shard_map_piece **out_pieces, size_t *out_count)
{
    enum status st = STATUS_OK;
    struct shard_map_piece *pieces = NULL;
    uint64_t covered = 0;
    char text[BOX_TEXT_MAX];

    *out_pieces = NULL;
    *out_count = 0;
    CHECK(wanted->dims >= 1 && wanted->dims <= BOX_DIMS_MAX);
    if (box_is_empty(wanted)) {
        return STATUS_OK;
    }
    for (size_t i = 0; i < stored_count; i++) {
        if (stored[i].box.dims != wanted->dims) {
            return FAIL(STATUS_CORRUPT, "tensor '%s' has %d dimensions, but a stored box has %d",
                        tensor_name, wanted->dims, stored[i].box.dims);
        }
    }
    size_t count = collect_pieces(wanted, stored, stored_count, NULL);
    TRY(st, mem_alloc(&pieces, count, sizeof *pieces), done);
    (void)collect_pieces(wanted, stored, stored_count, pieces);
    TRY(st, check_disjoint(tensor_name, pieces, count), done);
    for (size_t i = 0; i < count; i++) {
        covered += box_count(&pieces[i].part);
    }
    if (covered != box_count(wanted)) {
        box_format(wanted, text, sizeof text);
        st = FAIL(STATUS_CORRUPT,
                  "part %s of tensor '%s' is stored only in part: %" PRIu64 " of %" PRIu64
                  " elements",
                  text, tensor_name, covered, box_count(wanted));
        goto done;
    }
    *out_pieces = pieces;
    *out_count = count;
    pieces = NULL;
done:
    mem_free(&pieces);
    return st;
}
