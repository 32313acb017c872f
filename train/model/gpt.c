/* One stage's life: sizes, memory, initial weights, and small lookups for forward and backward. */
#include "train/model/gpt.h"

#include <math.h>
#include <string.h>

#include "ckpt/base/mem.h"
#include "train/model/gpt_state.h"
#include "train/model/rng.h"

/* Rows of logits at a time: about this many numbers, so that they are still in cache when they are
 * used up, within bounds that keep the matrix products efficient. */
#define CHUNK_ELEMENTS (2 << 20)
#define CHUNK_ROWS_MIN 128
#define CHUNK_ROWS_MAX 512
#define ROW_UNIT 64

/* Rows whose length is a multiple of this (2 KiB) are laid further apart: else the same column of
 * many rows falls into few lines of the cache, and oneDNN's transposed products lose a fifth. */
#define STRIDE_UNLUCKY 512
#define STRIDE_EXTRA 16

/* Hands out parts of one block; without a block it only counts. */
struct arena {
    char *base;
    size_t used;
};

static void *take(struct arena *arena, size_t count, size_t size)
{
    size_t at = arena->used;

    arena->used += (count * size + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN;
    return arena->base != NULL ? arena->base + at : NULL;
}

static float *take_floats(struct arena *arena, int rows, int columns)
{
    return take(arena, (size_t)rows * (size_t)columns, sizeof(float));
}

static int row_stride(int length)
{
    return length % STRIDE_UNLUCKY == 0 ? length + STRIDE_EXTRA : length;
}

static enum status check_config(const struct gpt_config *c, const struct gpt_stage *s)
{
    if (c->hidden < 1 || c->heads < 1 || c->hidden % c->heads != 0) {
        return FAIL(STATUS_USAGE, "hidden size %d is not a multiple of %d attention heads",
                    c->hidden, c->heads);
    }
    if (s->tp_size < 1 || c->heads % s->tp_size != 0 || c->ffn_hidden % s->tp_size != 0) {
        return FAIL(STATUS_USAGE,
                    "%d attention heads and an ffn hidden size of %d cannot be cut into %d tensor "
                    "parallel parts",
                    c->heads, c->ffn_hidden, s->tp_size);
    }
    if (c->sequence < 1 || c->sequence > c->max_positions) {
        return FAIL(STATUS_USAGE, "sequence length %d is not in 1 .. %d (max position embeddings)",
                    c->sequence, c->max_positions);
    }
    if (c->sequence_parallel && c->sequence % s->tp_size != 0) {
        return FAIL(STATUS_USAGE,
                    "sequence length %d cannot be cut into %d parts for sequence parallelism",
                    c->sequence, s->tp_size);
    }
    if (c->micro_batch < 1 || c->vocab < 1 || c->vocab_divisor < 1 || c->ffn_hidden < 1 ||
        (int64_t)c->micro_batch * c->sequence * c->hidden > INT32_MAX ||
        c->vocab + (int64_t)c->vocab_divisor * s->tp_size > INT32_MAX) {
        return FAIL(STATUS_USAGE,
                    "micro batch size %d, sequence length %d, vocabulary %lld or ffn hidden size "
                    "%d is out of range",
                    c->micro_batch, c->sequence, (long long)c->vocab, c->ffn_hidden);
    }
    if (!(c->attention_dropout >= 0.0f && c->attention_dropout < 1.0f) ||
        !(c->hidden_dropout >= 0.0f && c->hidden_dropout < 1.0f)) {
        return FAIL(STATUS_USAGE, "dropout must be at least 0 and less than 1");
    }
    if ((c->recompute == GPT_RECOMPUTE_UNIFORM || c->recompute == GPT_RECOMPUTE_BLOCK) &&
        c->recompute_layers < 1) {
        return FAIL(STATUS_USAGE, "%d layers cannot be recomputed at a time: at least 1",
                    c->recompute_layers);
    }
    return STATUS_OK;
}

static struct gpt_sizes sizes_of(const struct gpt_config *c, const struct gpt_stage *s)
{
    int64_t unit = (int64_t)c->vocab_divisor * s->tp_size;
    int64_t part = (c->vocab + unit - 1) / unit * unit / s->tp_size;
    int64_t begin = part * s->tp_rank;
    int64_t valid = c->vocab - begin < part ? c->vocab - begin : part;
    int rows = c->micro_batch * c->sequence;
    int positions = c->sequence_parallel ? c->sequence / s->tp_size : c->sequence;
    int layers = s->layer_end - s->layer_begin;
    int most = c->recompute_layers < layers ? c->recompute_layers : layers;
    bool uniform = c->recompute == GPT_RECOMPUTE_UNIFORM && layers > 0;
    int64_t chunk = CHUNK_ELEMENTS / part / ROW_UNIT * ROW_UNIT;

    chunk = chunk < CHUNK_ROWS_MIN ? CHUNK_ROWS_MIN : chunk;
    chunk = chunk > CHUNK_ROWS_MAX ? CHUNK_ROWS_MAX : chunk;
    return (struct gpt_sizes){
        .B = c->micro_batch,
        .T = c->sequence,
        .R = rows,
        .T_part = positions,
        .S = c->micro_batch * positions,
        .C = c->hidden,
        .D = c->hidden / c->heads,
        .layers = layers,
        .chunks = s->chunks > 1 ? s->chunks : 1,
        .C_part = c->hidden / s->tp_size,
        .F_part = c->ffn_hidden / s->tp_size,
        .F_stride = row_stride(c->ffn_hidden / s->tp_size),
        .H_part = c->heads / s->tp_size,
        .V_part = (int)part,
        .V_stride = row_stride((int)part),
        .valid = valid > 0 ? (int)valid : 0,
        .vocab_begin = begin,
        .chunk = chunk < rows ? (int)chunk : rows,
        .again = uniform                               ? layers
                 : c->recompute == GPT_RECOMPUTE_BLOCK ? most
                                                       : 0,
        .group = uniform ? most : 1,
    };
}

/* What is not laid out here stays NULL. */
static struct gpt_layer_acts lay_out_layer(const struct gpt_sizes *n, struct arena *arena,
                                           bool has_attention, bool has_output)
{
    return (struct gpt_layer_acts){
        .norm1 = take_floats(arena, n->S, n->C),
        .mean1 = take_floats(arena, n->S, 1),
        .rstd1 = take_floats(arena, n->S, 1),
        .qkv = take_floats(arena, n->R, 3 * n->C_part),
        .stats = has_attention ? take_floats(arena, n->R, n->H_part) : NULL,
        .attention = has_attention ? take_floats(arena, n->R, n->C_part) : NULL,
        .middle = take_floats(arena, n->S, n->C),
        .norm2 = take_floats(arena, n->S, n->C),
        .mean2 = take_floats(arena, n->S, 1),
        .rstd2 = take_floats(arena, n->S, 1),
        .fc1 = take_floats(arena, n->R, n->F_stride),
        .gelu = take_floats(arena, n->R, n->F_stride),
        .output = has_output ? take_floats(arena, n->S, n->C) : NULL,
    };
}

/* `slot->layers` is set by the caller; NULL when only counting. */
static void lay_out_slot(const struct gpt *gpt, struct arena *arena, struct gpt_slot *slot)
{
    const struct gpt_sizes *n = &gpt->sizes;

    slot->input = take_floats(arena, n->S, n->C);
    for (int layer = 0; layer < n->layers; layer++) {
        struct gpt_layer_acts acts = {NULL};

        if (layer >= n->again) {
            bool keeps_attention = gpt->config.recompute != GPT_RECOMPUTE_SELECTIVE;
            acts = lay_out_layer(n, arena, keeps_attention, true);
        } else if (gpt_ends_group(n, layer)) {
            acts.output = take_floats(arena, n->S, n->C);
        }
        for (int chunk = 0; chunk < n->chunks && slot->layers != NULL; chunk++) {
            slot->layers[chunk * n->layers + layer] = acts;
        }
    }
    if (gpt->stage.is_first) {
        slot->tokens = take(arena, (size_t)n->R, sizeof(int32_t));
        slot->position_starts = take(arena, (size_t)n->R, sizeof(int32_t));
    }
    slot->attention_starts = take(arena, (size_t)n->R, sizeof(int32_t));
    if (gpt->stage.is_last) {
        slot->labels = take(arena, (size_t)n->R, sizeof(int32_t));
        slot->mask = take_floats(arena, n->R, 1);
        slot->norm = take_floats(arena, n->S, n->C);
        slot->mean = take_floats(arena, n->S, 1);
        slot->rstd = take_floats(arena, n->S, 1);
        slot->losses = take_floats(arena, n->R, 1);
        slot->dnorm = take_floats(arena, n->S, n->C);
    }
}

/* `gpt->again` is set by the caller; NULL when only counting. */
static void lay_out_scratch(struct gpt *gpt, struct arena *arena)
{
    const struct gpt_sizes *n = &gpt->sizes;

    gpt->branch = take_floats(arena, n->R, n->C);
    gpt->gathered = n->S < n->R ? take_floats(arena, n->R, n->C) : NULL;
    gpt->dresidual = take_floats(arena, n->S, n->C);
    gpt->dinput = take_floats(arena, n->R, n->C);
    gpt->dattention = take_floats(arena, n->R, n->C_part);
    gpt->wide = take_floats(arena, n->R, 3 * n->C_part > n->F_stride ? 3 * n->C_part : n->F_stride);
    if (gpt->stage.is_last) {
        gpt->logits = take_floats(arena, n->chunk, n->V_stride);
        gpt->row_max = take_floats(arena, n->chunk, 1);
        gpt->sums = take_floats(arena, n->chunk, 2);
    }
    for (int i = 0; i < n->group; i++) {
        struct gpt_layer_acts acts = {NULL};

        if (n->again > 0) {
            acts = lay_out_layer(n, arena, true, i < n->group - 1);
        } else if (gpt->config.recompute == GPT_RECOMPUTE_SELECTIVE) {
            acts.stats = take_floats(arena, n->R, n->H_part);
            acts.attention = take_floats(arena, n->R, n->C_part);
        }
        if (gpt->again != NULL) {
            gpt->again[i] = acts;
        }
    }
}

/* What a slot does not have of its own it shares. */
static void share_again(const struct gpt *gpt, struct gpt_slot *slot)
{
    const struct gpt_sizes *n = &gpt->sizes;

    for (int layer = 0; layer < n->chunks * n->layers; layer++) {
        struct gpt_layer_acts *acts = &slot->layers[layer];
        int place = layer % n->layers;

        if (place < n->again) {
            float *output = acts->output;
            *acts = gpt->again[place % n->group];
            acts->output = output != NULL ? output : acts->output;
        } else if (gpt->config.recompute == GPT_RECOMPUTE_SELECTIVE) {
            acts->stats = gpt->again[0].stats;
            acts->attention = gpt->again[0].attention;
        }
    }
}

static size_t arena_bytes(const struct gpt_config *config, const struct gpt_stage *stage, int slots)
{
    struct arena count = {0};
    struct gpt unused = {.config = *config, .stage = *stage, .sizes = sizes_of(config, stage)};

    lay_out_scratch(&unused, &count);
    for (int i = 0; i < slots; i++) {
        struct gpt_slot unused_slot = {.layers = NULL};
        lay_out_slot(&unused, &count, &unused_slot);
    }
    return count.used;
}

uint64_t gpt_memory_bytes(const struct gpt_config *config, const struct gpt_stage *stage, int slots)
{
    struct gpt_table table;

    if (check_config(config, stage) != STATUS_OK ||
        gpt_table_build(config, stage, &table) != STATUS_OK) {
        return 0;
    }
    uint64_t flat_bytes = 2 * (uint64_t)table.flat_count * sizeof(float);
    gpt_table_deinit(&table);
    return flat_bytes + arena_bytes(config, stage, slots);
}

static enum status allocate(struct gpt *gpt)
{
    const struct gpt_sizes *n = &gpt->sizes;
    const struct device_ops *ops = gpt->device->ops;
    size_t flat_bytes = gpt->table.flat_count * sizeof(float);
    size_t bytes = arena_bytes(&gpt->config, &gpt->stage, gpt->slot_count);
    enum status st = STATUS_OK;

    TRY(st, ops->alloc(gpt->device, (void **)&gpt->params, flat_bytes), done);
    TRY(st, ops->alloc(gpt->device, (void **)&gpt->grads, flat_bytes), done);
    TRY(st, ops->alloc(gpt->device, (void **)&gpt->arena, bytes), done);
    TRY(st, mem_alloc(&gpt->host_losses, (size_t)n->R, sizeof(float)), done);
    TRY(st, mem_alloc(&gpt->part_counts, (size_t)gpt->stage.tp_size, sizeof(size_t)), done);
    TRY(st, mem_alloc(&gpt->part_bytes, (size_t)gpt->stage.tp_size, sizeof(size_t)), done);
    for (int rank = 0; rank < gpt->stage.tp_size; rank++) {
        gpt->part_counts[rank] = (size_t)n->T_part * (size_t)n->C;
        gpt->part_bytes[rank] = gpt->part_counts[rank] * sizeof(float);
    }
    TRY(st, mem_alloc(&gpt->slots, (size_t)gpt->slot_count, sizeof(*gpt->slots)), done);
    TRY(st, mem_alloc(&gpt->again, (size_t)n->group, sizeof(*gpt->again)), done);
    struct arena arena = {.base = gpt->arena};
    lay_out_scratch(gpt, &arena);
    for (int i = 0; i < gpt->slot_count; i++) {
        struct gpt_slot *slot = &gpt->slots[i];

        TRY(st, mem_alloc(&slot->layers, (size_t)(n->chunks * n->layers), sizeof(*slot->layers)),
            done);
        lay_out_slot(gpt, &arena, slot);
        share_again(gpt, slot);
    }
    CHECK(arena.used == bytes);
done:
    return st;
}

enum status gpt_create(const struct gpt_config *config, const struct gpt_stage *stage,
                       struct device *device, int slots, struct gpt **out_gpt)
{
    struct gpt *gpt = NULL;
    enum status st = STATUS_OK;

    CHECK(slots >= 1 && (stage->tp_size == 1 || stage->tp != NULL));
    CHECK(stage->tp_rank >= 0 && stage->tp_rank < stage->tp_size);
    CHECK(stage->layer_begin >= 0 && stage->layer_begin <= stage->layer_end &&
          stage->layer_end <= config->layers);
    CHECK(stage->chunks <= 1 ||
          (stage->layer_begin < stage->layer_end &&
           stage->layer_end - stage->layer_begin <= stage->chunk_stride &&
           stage->layer_end + (stage->chunks - 1) * stage->chunk_stride <= config->layers));
    TRY(st, check_config(config, stage), done);
    TRY(st, mem_alloc(&gpt, 1, sizeof(*gpt)), done);
    gpt->config = *config;
    gpt->stage = *stage;
    gpt->sizes = sizes_of(config, stage);
    gpt->device = device;
    gpt->slot_count = slots;
    TRY(st, gpt_table_build(config, stage, &gpt->table), done);
    TRY(st, allocate(gpt), done);
    *out_gpt = gpt;
    gpt = NULL;
done:
    gpt_destroy(&gpt);
    return st;
}

void gpt_destroy(struct gpt **gpt_pointer)
{
    struct gpt *gpt = *gpt_pointer;

    if (gpt == NULL) {
        return;
    }
    for (int i = 0; gpt->slots != NULL && i < gpt->slot_count; i++) {
        mem_free(&gpt->slots[i].layers);
    }
    mem_free(&gpt->slots);
    mem_free(&gpt->again);
    mem_free(&gpt->host_losses);
    mem_free(&gpt->part_counts);
    mem_free(&gpt->part_bytes);
    gpt->device->ops->free(gpt->device, gpt->arena);
    gpt->device->ops->free(gpt->device, gpt->grads);
    gpt->device->ops->free(gpt->device, gpt->params);
    gpt_table_deinit(&gpt->table);
    mem_free(gpt_pointer);
}

size_t gpt_param_count(const struct gpt *gpt)
{
    return gpt->table.count;
}

const struct gpt_param *gpt_params(const struct gpt *gpt)
{
    return gpt->table.params;
}

float *gpt_param_data(struct gpt *gpt)
{
    return gpt->params;
}

float *gpt_grad_data(struct gpt *gpt)
{
    return gpt->grads;
}

size_t gpt_flat_count(const struct gpt *gpt)
{
    return gpt->table.flat_count;
}

size_t gpt_activation_bytes(const struct gpt *gpt)
{
    return (size_t)gpt->sizes.S * (size_t)gpt->sizes.C * sizeof(float);
}

void gpt_vocab_part(const struct gpt *gpt, int64_t *out_begin, int64_t *out_end)
{
    *out_begin = gpt->sizes.vocab_begin;
    *out_end = gpt->sizes.vocab_begin + gpt->sizes.valid;
}

/* The box's rows one after the other into host memory laid out as the tensor's local memory. */
static void fill_initial(const struct gpt_config *config, const struct gpt_param *param,
                         float *values)
{
    size_t columns = param->columns;
    uint64_t row_length = param->dims == 2 ? param->shape[1] : 1;
    uint64_t first_column = param->dims == 2 ? param->box.offset[1] : 0;
    float std = config->init_std;

    if (param->init == GPT_INIT_NORMAL_SCALED) {
        std = (float)((double)std / sqrt(2.0 * config->layers));
    }
#pragma omp parallel for schedule(static)
    for (size_t row = 0; row < (size_t)param->box.extent[0]; row++) {
        float *to = values + row * columns;

        if (param->init == GPT_INIT_ONE) {
            for (size_t c = 0; c < columns; c++) {
                to[c] = 1.0f;
            }
        } else if (param->init != GPT_INIT_ZERO) {
            rng_fill_normal(config->seed, param->name,
                            (param->box.offset[0] + row) * row_length + first_column, columns, std,
                            to);
        }
    }
}

enum status gpt_init_params(struct gpt *gpt)
{
    const struct device_ops *ops = gpt->device->ops;
    float *values = NULL;
    enum status st = STATUS_OK;

    for (size_t i = 0; i < gpt->table.count; i++) {
        const struct gpt_param *param = &gpt->table.params[i];
        size_t count = param->rows * param->columns;

        TRY(st, mem_alloc(&values, count, sizeof(float)), done);
        fill_initial(&gpt->config, param, values);
        TRY(st,
            ops->copy_in(gpt->device, gpt->params + param->begin, values, count * sizeof(float)),
            done);
        mem_free(&values);
    }
done:
    mem_free(&values);
    return st;
}

static size_t begin_of(const struct gpt *gpt, enum gpt_tensor tensor, int layer)
{
    return gpt->table.begin[tensor] + (size_t)layer * gpt->table.layer_stride;
}

float *gpt_param_of(const struct gpt *gpt, enum gpt_tensor tensor, int layer)
{
    return gpt->params + begin_of(gpt, tensor, layer);
}

float *gpt_grad_of(const struct gpt *gpt, enum gpt_tensor tensor, int layer)
{
    return gpt->grads + begin_of(gpt, tensor, layer);
}

enum gpt_tensor gpt_output_tensor(const struct gpt *gpt)
{
    return gpt->config.untied ? GPT_OUTPUT : GPT_WORD;
}

bool gpt_begins(const struct gpt *gpt, int chunk)
{
    return gpt->stage.is_first && chunk == 0;
}

bool gpt_ends(const struct gpt *gpt, int chunk)
{
    return gpt->stage.is_last && chunk == gpt->sizes.chunks - 1;
}

bool gpt_ends_group(const struct gpt_sizes *sizes, int layer)
{
    int place = layer % sizes->layers;

    return place < sizes->again && (place + 1 == sizes->again || (place + 1) % sizes->group == 0);
}

const float *gpt_layer_input(const struct gpt *gpt, const struct gpt_slot *slot, int layer)
{
    return layer % gpt->sizes.layers == 0 ? slot->input : slot->layers[layer - 1].output;
}

const float *gpt_chunk_output(const struct gpt *gpt, const struct gpt_slot *slot, int chunk)
{
    int layers = gpt->sizes.layers;

    return layers == 0 ? slot->input : slot->layers[chunk * layers + layers - 1].output;
}

/* The global number of a layer; 0 for the embedding of a stage without layers. */
static int global_layer(const struct gpt *gpt, int layer)
{
    int layers = gpt->sizes.layers;

    return gpt->stage.layer_begin +
           (layers == 0 ? 0 : layer / layers * gpt->stage.chunk_stride + layer % layers);
}

struct device_dropout gpt_dropout(const struct gpt *gpt, const struct gpt_batch *batch, int layer,
                                  enum gpt_site site)
{
    float probability = site == GPT_SITE_ATTENTION_PROBABILITY ? gpt->config.attention_dropout
                                                               : gpt->config.hidden_dropout;

    return (struct device_dropout){
        .probability = batch->is_training ? probability : 0.0f,
        .seed = gpt->config.seed,
        .step = batch->step,
        .layer = (uint32_t)global_layer(gpt, layer),
        .site = (uint32_t)site,
        .first_sample = batch->first_sample,
        .T = gpt->sizes.T_part,
        .position =
            gpt->sizes.S < gpt->sizes.R ? (uint32_t)(gpt->stage.tp_rank * gpt->sizes.T_part) : 0,
        .head_offset = (uint32_t)(gpt->stage.tp_rank * gpt->sizes.H_part),
    };
}
