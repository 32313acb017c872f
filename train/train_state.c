/* The table of what survives. Before it: optimizer and model; after it: ckpt.h (see the header). */
#include "train/train_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/hash.h"
#include "ckpt/base/json.h"
#include "ckpt/base/mem.h"

enum kind { KIND_PARAM, KIND_EXP_AVG, KIND_EXP_AVG_SQ, KIND_COUNT };

static const char *const kind_names[KIND_COUNT] = {"param", "exp_avg", "exp_avg_sq"};

/* Which other ranks hold the same values. */
struct train_state_item {
    char name[GPT_PARAM_NAME_MAX + 16];
    bool equal_over_dp, equal_over_tp, equal_over_embedding;
};

/* --- the tensors -------------------------------------------------------------------------- */

/* `segment` NULL: this rank's slices have no row of the tensor. */
static struct box rows_of(const struct gpt_param *param, const struct grads_segment *segment)
{
    struct box box = param->box;
    uint64_t begin = segment == NULL ? 0 : segment->row_begin;
    uint64_t end = segment == NULL ? 0 : segment->row_end;

    begin = begin < param->box.extent[0] ? begin : param->box.extent[0];
    end = end < param->box.extent[0] ? end : param->box.extent[0];
    box.offset[0] = param->box.offset[0] + begin;
    box.extent[0] = end - begin;
    return box;
}

static void add_tensor(struct train_state *state, struct optimizer *optimizer, enum kind kind,
                       size_t index, const struct grads_segment *segment)
{
    struct gpt *gpt = optimizer->grads->gpt;
    const struct gpt_param *param = &gpt_params(gpt)[index];
    struct ckpt_tensor *tensor = &state->tensors[state->count];
    struct train_state_item *item = &state->items[state->count];
    float *moments = kind == KIND_EXP_AVG ? optimizer->exp_avg : optimizer->exp_avg_sq;
    bool is_param = kind == KIND_PARAM;

    tensor->box = is_param ? param->box : rows_of(param, segment);
    if (box_is_empty(&tensor->box)) {
        return; /* only vocabulary padding, or another DP rank's moments */
    }
    state->count++;
    snprintf(item->name, sizeof(item->name), "%s/%s", kind_names[kind], param->name);
    item->equal_over_dp = is_param;
    item->equal_over_tp = param->tp_replicated;
    item->equal_over_embedding = strcmp(param->name, GRADS_EMBEDDING) == 0;
    tensor->name = item->name;
    tensor->type = MANIFEST_F32;
    tensor->dims = param->dims;
    memcpy(tensor->shape, param->shape, sizeof(tensor->shape));
    tensor->data = is_param ? gpt_param_data(gpt) + param->begin : moments + segment->moment_begin;
    bool another_answers =
        param->tied_copy || (param->tp_replicated && state->topology->coords.tp > 0);
    tensor->owned = rows_of(param, another_answers ? NULL : segment);
}

enum status train_state_init(struct train_state *state, struct optimizer *optimizer)
{
    enum status st = STATUS_OK;
    const struct grads_plan *plan = &optimizer->grads->plan;
    size_t params = gpt_param_count(optimizer->grads->gpt);

    memset(state, 0, sizeof(*state));
    state->topology = optimizer->grads->topology;
    TRY(st, mem_alloc(&state->tensors, params * KIND_COUNT, sizeof(*state->tensors)), done);
    TRY(st, mem_alloc(&state->items, params * KIND_COUNT, sizeof(*state->items)), done);
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        size_t next = 0; /* segments are in the order of the tensors */
        for (size_t i = 0; i < params; i++) {
            bool has_rows = next < plan->segment_count && plan->segments[next].param == i;
            add_tensor(state, optimizer, (enum kind)kind, i,
                       has_rows ? &plan->segments[next] : NULL);
            next += has_rows ? 1 : 0;
        }
        if (kind == KIND_PARAM) {
            state->param_count = state->count;
        }
    }
done:
    if (st != STATUS_OK) {
        train_state_deinit(state);
    }
    return st;
}

void train_state_deinit(struct train_state *state)
{
    mem_free(&state->tensors);
    mem_free(&state->items);
    state->count = 0;
}

/* --- the scalars -------------------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t offset;
} scalar_rows[] = {
#define TRAIN_STATE_ROW(name) {#name, offsetof(struct train_scalars, name)},
    TRAIN_STATE_SCALARS(TRAIN_STATE_ROW)
#undef TRAIN_STATE_ROW
};

#define SCALAR_COUNT (sizeof(scalar_rows) / sizeof(scalar_rows[0]))

enum status train_state_to_json(const struct train_state *state, cJSON **out_object)
{
    enum status st = STATUS_OK;
    cJSON *object = NULL;

    TRY(st, json_new_object(&object), done);
    for (size_t i = 0; i < SCALAR_COUNT; i++) {
        const char *field = (const char *)&state->scalars + scalar_rows[i].offset;
        TRY(st, json_add_u64(object, scalar_rows[i].name, *(const uint64_t *)field), done);
    }
    *out_object = object;
    object = NULL;
done:
    cJSON_Delete(object);
    return st;
}

enum status train_state_from_json(struct train_state *state, const cJSON *object, uint64_t step,
                                  const char *where)
{
    enum status st = STATUS_OK;
    struct train_scalars scalars = state->scalars;

    for (size_t i = 0; i < SCALAR_COUNT; i++) {
        if (step == 0 && !cJSON_HasObjectItem(object, scalar_rows[i].name)) {
            continue;
        }
        char *field = (char *)&scalars + scalar_rows[i].offset;
        TRY(st, json_get_u64(object, where, scalar_rows[i].name, (uint64_t *)field), done);
    }
    state->scalars = scalars;
done:
    return st;
}

/* --- the hash and the replicas ------------------------------------------------------------ */

/* Every member's `count` words, one member after the other; freed by mem_free. */
static enum status gather(struct comm *group, const uint64_t *mine, size_t count,
                          uint64_t **out_all)
{
    enum status st = STATUS_OK;
    size_t size = (size_t)comm_size(group);
    size_t *byte_counts = NULL;
    uint64_t *all = NULL;

    TRY(st, mem_alloc(&byte_counts, size, sizeof(*byte_counts)), done);
    TRY(st, mem_alloc(&all, size * count, sizeof(*all)), done);
    for (size_t i = 0; i < size; i++) {
        byte_counts[i] = count * sizeof(*all);
    }
    memcpy(all + (size_t)comm_rank(group) * count, mine, count * sizeof(*all));
    TRY(st, comm_all_gather(group, all, byte_counts), done);
    *out_all = all;
    all = NULL;
done:
    mem_free(&byte_counts);
    mem_free(&all);
    return st;
}

static uint64_t hash_owned(const struct ckpt_tensor *tensor)
{
    uint64_t columns = tensor->dims == 2 ? tensor->box.extent[1] : 1;
    uint64_t skipped = (tensor->owned.offset[0] - tensor->box.offset[0]) * columns;

    return hash_state_box(tensor->name, tensor->dims, tensor->shape, tensor->owned.offset,
                          tensor->owned.extent, (const uint32_t *)tensor->data + skipped);
}

enum status train_state_hash(const struct train_state *state, uint64_t *out_hash)
{
    enum status st = STATUS_OK;
    uint64_t sum = 0;
    uint64_t *all = NULL;

    for (size_t i = 0; i < state->count; i++) {
        if (!box_is_empty(&state->tensors[i].owned)) {
            sum = hash_state_add(sum, hash_owned(&state->tensors[i]));
        }
    }
    TRY(st, gather(state->topology->world, &sum, 1, &all), done);
    sum = 0;
    for (int rank = 0; rank < comm_size(state->topology->world); rank++) {
        sum = hash_state_add(sum, all[rank]);
    }
    *out_hash = hash_state_finish(sum, state->scalars.step);
done:
    mem_free(&all);
    return st;
}

static bool is_equal_over(const struct train_state_item *item, enum topology_axis axis)
{
    return axis == TOPOLOGY_DP   ? item->equal_over_dp
           : axis == TOPOLOGY_TP ? item->equal_over_tp
                                 : item->equal_over_embedding;
}

/* The members of a group list their tensors in the same order, so the n-th hash of each belongs to
 * the same tensor. */
static enum status check_group(const struct train_state *state, struct comm *group,
                               enum topology_axis axis)
{
    enum status st = STATUS_OK;
    const struct topology *topology = state->topology;
    uint64_t *mine = NULL, *all = NULL;
    size_t *indices = NULL;
    int *ranks = NULL;
    size_t count = 0;

    TRY(st, mem_alloc(&mine, state->count, sizeof(*mine)), done);
    TRY(st, mem_alloc(&indices, state->count, sizeof(*indices)), done);
    TRY(st, mem_alloc(&ranks, (size_t)layout_size(topology->layout) + 1, sizeof(*ranks)), done);
    topology_ranks(topology->layout, topology->coords, axis, ranks);
    for (size_t i = 0; i < state->count; i++) {
        if (is_equal_over(&state->items[i], axis)) {
            const struct ckpt_tensor *tensor = &state->tensors[i];
            indices[count] = i;
            mine[count++] = hash_bytes64(tensor->data, box_count(&tensor->box) * sizeof(float));
        }
    }
    TRY(st, gather(group, mine, count, &all), done);
    for (size_t i = 0; i < count * (size_t)comm_size(group); i++) {
        if (all[i] != all[i % count]) {
            st = FAIL(STATUS_NUMERIC,
                      "the copies of '%s' on ranks %d and %d differ at step %" PRIu64
                      ": a faulty processor or memory; resume from the last checkpoint",
                      state->items[indices[i % count]].name, ranks[0], ranks[i / count],
                      state->scalars.step);
            goto done;
        }
    }
done:
    mem_free(&mine);
    mem_free(&all);
    mem_free(&indices);
    mem_free(&ranks);
    return st;
}

enum status train_state_check_replicas(const struct train_state *state)
{
    enum status st = STATUS_OK;
    const struct topology *topology = state->topology;

    if (topology->layout.dp > 1) {
        TRY(st, check_group(state, topology->dp, TOPOLOGY_DP), done);
    }
    if (topology->layout.tp > 1) {
        TRY(st, check_group(state, topology->tp, TOPOLOGY_TP), done);
    }
    if (topology->embedding != NULL) {
        TRY(st, check_group(state, topology->embedding, TOPOLOGY_EMBEDDING), done);
    }
done:
    return st;
}
