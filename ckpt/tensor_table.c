/* The union of the ranks' tensors; see tensor_table.h. */
#include "ckpt/tensor_table.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/agree.h"
#include "ckpt/base/mem.h"

/* One tensor of one rank, as it travels between ranks of one build. */
struct row {
    char name[MANIFEST_TENSOR_NAME_MAX];
    int32_t type, dims;
    uint64_t shape[BOX_DIMS_MAX];
    uint64_t owned_count;
};

static void make_rows(const struct ckpt_tensor *tensors, size_t count, struct row *rows)
{
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(tensors[i].name);
        CHECK(length < MANIFEST_TENSOR_NAME_MAX);
        memcpy(rows[i].name, tensors[i].name, length + 1);
        rows[i].type = (int32_t)tensors[i].type;
        rows[i].dims = tensors[i].dims;
        memcpy(rows[i].shape, tensors[i].shape, sizeof rows[i].shape);
        rows[i].owned_count = box_count(&tensors[i].owned);
    }
}

static int compare_rows(const void *a, const void *b)
{
    return strcmp(((const struct row *)a)->name, ((const struct row *)b)->name);
}

static bool is_same_tensor(const struct row *a, const struct row *b)
{
    return a->type == b->type && a->dims == b->dims &&
           memcmp(a->shape, b->shape, (size_t)a->dims * sizeof *a->shape) == 0;
}

/* `rows` are sorted by name: a tensor's stand together. */
static enum status merge(const struct row *rows, size_t count, struct manifest *manifest)
{
    enum status st = STATUS_OK;

    for (size_t i = 0; i < count;) {
        const struct row *first = &rows[i];
        struct box whole = box_whole(first->dims, first->shape);
        uint64_t owned = 0;
        for (; i < count && strcmp(rows[i].name, first->name) == 0; i++) {
            if (!is_same_tensor(first, &rows[i])) {
                return FAIL(STATUS_FAILED, "two ranks hold '%s' in different shapes or types",
                            first->name);
            }
            owned += rows[i].owned_count;
        }
        if (owned != box_count(&whole)) {
            return FAIL(STATUS_FAILED, "the ranks own %llu elements of '%s', it has %llu",
                        (unsigned long long)owned, first->name,
                        (unsigned long long)box_count(&whole));
        }
        TRY(st,
            manifest_add_tensor(manifest, first->name, (enum manifest_type)first->type, first->dims,
                                first->shape),
            done);
    }
done:
    return st;
}

/* Rank 0's part: closes up the ranks' lists, which lie row_max apart, and merges them. */
static enum status merge_lists(struct row *all, uint64_t row_max, const uint64_t *counts,
                               int rank_count, struct manifest *manifest)
{
    size_t total = 0;

    for (int rank = 0; rank < rank_count; rank++) {
        memmove(&all[total], &all[row_max * (uint64_t)rank], (size_t)counts[rank] * sizeof *all);
        total += (size_t)counts[rank];
    }
    if (total > 0) {
        qsort(all, total, sizeof *all, compare_rows);
    }
    return merge(all, total, manifest);
}

/* Memory is agreed on before each exchange, so that a rank without any leaves no other waiting. */
enum status tensor_table_gather(const struct ckpt_group *group, const struct ckpt_tensor *tensors,
                                size_t count, struct manifest *manifest)
{
    enum status st = STATUS_OK;
    uint64_t own_count = count, row_max = 1;
    uint64_t *counts = NULL;
    struct row *mine = NULL, *all = NULL;

    TRY(st, agree(group, mem_alloc(&counts, (size_t)group->size, sizeof *counts)), done);
    TRY(st, agree_gather(group, &own_count, sizeof own_count, counts), done);
    for (int rank = 0; rank < group->size; rank++) {
        row_max = counts[rank] > row_max ? counts[rank] : row_max;
    }
    st = mem_alloc(&mine, (size_t)row_max, sizeof *mine);
    st = st == STATUS_OK ? mem_alloc(&all, (size_t)row_max * (size_t)group->size, sizeof *all) : st;
    TRY(st, agree(group, st), done);
    make_rows(tensors, count, mine);
    TRY(st, agree_gather(group, mine, (size_t)row_max * sizeof *mine, all), done);
    if (group->rank == 0) {
        TRY(st, merge_lists(all, row_max, counts, group->size, manifest), done);
    }
done:
    mem_free(&all);
    mem_free(&mine);
    mem_free(&counts);
    return st;
}
