/* Compares two checkpoints; see diff.h. */
#include "ckpt/diff.h"

#include <math.h>
#include <string.h>

#include "ckpt/base/json.h"
#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"
#include "ckpt/box_reader.h"

struct diff {
    const struct diff_side *sides;
    struct box_reader *readers[2];
    void *slabs[2];
    size_t slab_bytes[2];
    diff_report_fn report;
    void *context;
    struct diff_totals totals;
};

static enum status report_setting(struct diff *diff, const char *name, const cJSON *a,
                                  const cJSON *b)
{
    struct diff_finding finding = {.kind = DIFF_SETTING, .name = name, .value = {a, b}};

    diff->totals.settings++;
    return diff->report(diff->context, &finding);
}

/* What counts of a member: an option's value; nothing of one that only says how ranks are laid
 * out; else the member itself. */
static const cJSON *get_counting(const cJSON *member, bool is_option)
{
    const cJSON *class = cJSON_GetObjectItemCaseSensitive(member, "class");

    if (!is_option) {
        return member;
    }
    if (cJSON_IsString(class) && strcmp(class->valuestring, "RESHARD") == 0) {
        return NULL;
    }
    return cJSON_GetObjectItemCaseSensitive(member, "value");
}

/* Members of both in a's order, then those that only b has. */
static enum status compare_members(struct diff *diff, const cJSON *a, const cJSON *b,
                                   bool are_options)
{
    enum status st = STATUS_OK;
    const cJSON *member = NULL;

    cJSON_ArrayForEach(member, a)
    {
        const cJSON *other = cJSON_GetObjectItemCaseSensitive(b, member->string);
        const cJSON *ours = get_counting(member, are_options);
        const cJSON *theirs = get_counting(other, are_options);

        if ((ours != NULL || theirs != NULL) && !cJSON_Compare(ours, theirs, true)) {
            TRY(st, report_setting(diff, member->string, ours, theirs), done);
        }
    }
    cJSON_ArrayForEach(member, b)
    {
        const cJSON *theirs = get_counting(member, are_options);

        if (theirs != NULL && cJSON_GetObjectItemCaseSensitive(a, member->string) == NULL) {
            TRY(st, report_setting(diff, member->string, NULL, theirs), done);
        }
    }
done:
    return st;
}

static enum status compare_settings(struct diff *diff)
{
    enum status st = STATUS_OK;
    const struct manifest *a = diff->sides[0].manifest, *b = diff->sides[1].manifest;
    cJSON *steps = NULL;

    TRY(st, json_new_array(&steps), done);
    if (a->step != b->step) {
        TRY(st, json_append(steps, cJSON_CreateNumber((double)a->step)), done);
        TRY(st, json_append(steps, cJSON_CreateNumber((double)b->step)), done);
        TRY(st, report_setting(diff, "step", steps->child, steps->child->next), done);
    }
    TRY(st, compare_members(diff, a->state, b->state, false), done);
    TRY(st, compare_members(diff, a->options, b->options, true), done);
done:
    cJSON_Delete(steps);
    return st;
}

static double half_value(uint16_t half)
{
    int exponent = half >> 10 & 31, part = half & 1023;
    double value = exponent == 31  ? (part == 0 ? INFINITY : NAN)
                   : exponent == 0 ? ldexp(part, -24)
                                   : ldexp(part + 1024, exponent - 25);

    return (half & 0x8000) != 0 ? -value : value;
}

static double element_value(enum manifest_type type, const void *elements, uint64_t index)
{
    float value = 0;
    uint32_t bits = 0;

    switch (type) {
    case MANIFEST_F32:
        return ((const float *)elements)[index];
    case MANIFEST_BF16:
        bits = (uint32_t)((const uint16_t *)elements)[index] << 16;
        memcpy(&value, &bits, sizeof value);
        return value;
    case MANIFEST_F16:
        return half_value(((const uint16_t *)elements)[index]);
    case MANIFEST_I64:
        return (double)((const int64_t *)elements)[index];
    case MANIFEST_TYPE_COUNT:
        break;
    }
    CHECK(false);
    return 0;
}

static void add_difference(double a, double b, struct diff_values *values)
{
    double larger = fmax(fabs(a), fabs(b)), gap = fabs(a - b);

    if (!isfinite(a) || !isfinite(b)) {
        values->max_abs = values->max_relative = INFINITY;
    } else if (gap > 0) {
        values->max_abs = fmax(values->max_abs, gap);
        values->max_relative = fmax(values->max_relative, gap / larger);
    }
}

/* Elements `from` ... of the tensor. */
static void compare_slab(enum manifest_type type, const void *a, const void *b, uint64_t from,
                         uint64_t count, struct diff_values *values)
{
    size_t bytes = manifest_type_bytes(type);

    if (memcmp(a, b, (size_t)count * bytes) == 0) {
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        if (memcmp((const char *)a + i * bytes, (const char *)b + i * bytes, bytes) != 0) {
            values->first = values->differing == 0 ? from + i : values->first;
            values->differing++;
            add_difference(element_value(type, a, i), element_value(type, b, i), values);
        }
    }
}

static enum status compare_values(struct diff *diff, const struct manifest_tensor *tensor,
                                  struct diff_values *out_values)
{
    enum status st = STATUS_OK;
    struct box whole = box_whole(tensor->dims, tensor->shape), slab = whole;

    *out_values = (struct diff_values){.elements = box_count(&whole)};
    if (box_is_empty(&whole)) {
        return STATUS_OK;
    }
    uint64_t row = box_count(&whole) / whole.extent[0];
    uint64_t row_bytes = row * manifest_type_bytes(tensor->type);
    uint64_t rows = DIFF_SLAB_BYTES > row_bytes ? DIFF_SLAB_BYTES / row_bytes : 1;
    for (uint64_t at = 0; at < whole.extent[0]; at += rows) {
        slab.offset[0] = at;
        slab.extent[0] = rows < whole.extent[0] - at ? rows : whole.extent[0] - at;
        for (int side = 0; side < 2; side++) {
            TRY(st,
                mem_reserve(&diff->slabs[side], &diff->slab_bytes[side],
                            (size_t)(slab.extent[0] * row_bytes)),
                done);
            struct box_target target = {tensor->name, slab, diff->slabs[side]};
            TRY(st, box_reader_read(diff->readers[side], &target, 1), done);
        }
        compare_slab(tensor->type, diff->slabs[0], diff->slabs[1], at * row, slab.extent[0] * row,
                     out_values);
    }
done:
    return st;
}

static bool is_same_shape(const struct manifest_tensor *a, const struct manifest_tensor *b)
{
    return a->type == b->type && a->dims == b->dims &&
           memcmp(a->shape, b->shape, (size_t)a->dims * sizeof *a->shape) == 0;
}

/* One name, that at least one of them has. */
static enum status compare_tensor(struct diff *diff, const struct manifest_tensor *a,
                                  const struct manifest_tensor *b)
{
    enum status st = STATUS_OK;
    struct diff_finding finding = {
        .kind = DIFF_SHAPE, .name = a != NULL ? a->name : b->name, .tensor = {a, b}};
    bool is_equal = false;

    if (a != NULL && b != NULL && is_same_shape(a, b)) {
        finding.kind = DIFF_VALUES;
        TRY(st, compare_values(diff, a, &finding.values), done);
        is_equal = finding.values.differing == 0;
        diff->totals.tensors_compared++;
    }
    if (!is_equal) {
        diff->totals.tensors++;
        TRY(st, diff->report(diff->context, &finding), done);
    }
done:
    return st;
}

/* Both lists are sorted by name. */
static enum status compare_tensors(struct diff *diff)
{
    enum status st = STATUS_OK;
    const struct manifest *a = diff->sides[0].manifest, *b = diff->sides[1].manifest;
    size_t i = 0, j = 0;

    while (i < a->tensor_count || j < b->tensor_count) {
        const struct manifest_tensor *ours = i < a->tensor_count ? &a->tensors[i] : NULL;
        const struct manifest_tensor *theirs = j < b->tensor_count ? &b->tensors[j] : NULL;
        int order = ours == NULL ? 1 : theirs == NULL ? -1 : strcmp(ours->name, theirs->name);

        TRY(st, compare_tensor(diff, order <= 0 ? ours : NULL, order >= 0 ? theirs : NULL), done);
        i += order <= 0;
        j += order >= 0;
    }
done:
    return st;
}

enum status diff_run(struct fs *fs, const struct diff_side sides[2], int thread_count,
                     diff_report_fn report, void *context, struct diff_totals *out_totals)
{
    enum status st = STATUS_OK;
    struct diff diff = {.sides = sides, .report = report, .context = context};
    struct thread_pool *pool = NULL;

    TRY(st, thread_pool_create(thread_count, &pool), done);
    for (int side = 0; side < 2; side++) {
        TRY(st,
            box_reader_open(fs, sides[side].path, sides[side].manifest, pool, &diff.readers[side]),
            done);
    }
    TRY(st, compare_settings(&diff), done);
    TRY(st, compare_tensors(&diff), done);
    *out_totals = diff.totals;
done:
    for (int side = 0; side < 2; side++) {
        box_reader_close(&diff.readers[side]);
        mem_free(&diff.slabs[side]);
    }
    thread_pool_destroy(pool);
    return st;
}
