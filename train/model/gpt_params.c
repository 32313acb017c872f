/* The table of tensors: name, shape, cut, initial values. Everything else that walks the tensors
 * (init, gradients, optimizer, checkpoints, export) walks what this file builds.
 *
 * Order of the flat arrays: the word embedding first (on the last stage of several its tied copy),
 * so that it can be a bucket of its own; then positions, layers, final norm, output.
 */
#include <stdio.h>
#include <string.h>

#include "ckpt/base/mem.h"
#include "train/model/gpt_state.h"

enum extent { HIDDEN, HIDDEN_3, FFN, VOCAB, POSITIONS, NONE };
enum cut { WHOLE, ROWS, COLUMNS }; /* between TP ranks */
enum place { FIRST_STAGE, WORD_STAGES, EACH_LAYER, LAST_STAGE, LAST_STAGE_UNTIED };

static const struct {
    const char *name; /* of a layer's: after "decoder.layers.N." */
    enum place place;
    enum extent rows, columns;
    enum cut cut;
    enum gpt_init init;
} tensors[GPT_TENSOR_COUNT] = {
    [GPT_WORD] = {"embedding.word_embeddings.weight", WORD_STAGES, VOCAB, HIDDEN, ROWS,
                  GPT_INIT_NORMAL},
    [GPT_POSITION] = {"embedding.position_embeddings.weight", FIRST_STAGE, POSITIONS, HIDDEN, WHOLE,
                      GPT_INIT_NORMAL},
    [GPT_NORM1_WEIGHT] = {"input_layernorm.weight", EACH_LAYER, HIDDEN, NONE, WHOLE, GPT_INIT_ONE},
    [GPT_NORM1_BIAS] = {"input_layernorm.bias", EACH_LAYER, HIDDEN, NONE, WHOLE, GPT_INIT_ZERO},
    [GPT_QKV_WEIGHT] = {"self_attention.linear_qkv.weight", EACH_LAYER, HIDDEN_3, HIDDEN, ROWS,
                        GPT_INIT_NORMAL},
    [GPT_QKV_BIAS] = {"self_attention.linear_qkv.bias", EACH_LAYER, HIDDEN_3, NONE, ROWS,
                      GPT_INIT_ZERO},
    [GPT_PROJ_WEIGHT] = {"self_attention.linear_proj.weight", EACH_LAYER, HIDDEN, HIDDEN, COLUMNS,
                         GPT_INIT_NORMAL_SCALED},
    [GPT_PROJ_BIAS] = {"self_attention.linear_proj.bias", EACH_LAYER, HIDDEN, NONE, WHOLE,
                       GPT_INIT_ZERO},
    [GPT_NORM2_WEIGHT] = {"pre_mlp_layernorm.weight", EACH_LAYER, HIDDEN, NONE, WHOLE,
                          GPT_INIT_ONE},
    [GPT_NORM2_BIAS] = {"pre_mlp_layernorm.bias", EACH_LAYER, HIDDEN, NONE, WHOLE, GPT_INIT_ZERO},
    [GPT_FC1_WEIGHT] = {"mlp.linear_fc1.weight", EACH_LAYER, FFN, HIDDEN, ROWS, GPT_INIT_NORMAL},
    [GPT_FC1_BIAS] = {"mlp.linear_fc1.bias", EACH_LAYER, FFN, NONE, ROWS, GPT_INIT_ZERO},
    [GPT_FC2_WEIGHT] = {"mlp.linear_fc2.weight", EACH_LAYER, HIDDEN, FFN, COLUMNS,
                        GPT_INIT_NORMAL_SCALED},
    [GPT_FC2_BIAS] = {"mlp.linear_fc2.bias", EACH_LAYER, HIDDEN, NONE, WHOLE, GPT_INIT_ZERO},
    [GPT_NORM_WEIGHT] = {"decoder.final_layernorm.weight", LAST_STAGE, HIDDEN, NONE, WHOLE,
                         GPT_INIT_ONE},
    [GPT_NORM_BIAS] = {"decoder.final_layernorm.bias", LAST_STAGE, HIDDEN, NONE, WHOLE,
                       GPT_INIT_ZERO},
    [GPT_OUTPUT] = {"output_layer.weight", LAST_STAGE_UNTIED, VOCAB, HIDDEN, ROWS, GPT_INIT_NORMAL},
};

static uint64_t extent_of(const struct gpt_config *config, enum extent extent)
{
    switch (extent) {
    case HIDDEN:
        return (uint64_t)config->hidden;
    case HIDDEN_3:
        return 3 * (uint64_t)config->hidden;
    case FFN:
        return (uint64_t)config->ffn_hidden;
    case VOCAB:
        return (uint64_t)config->vocab;
    case POSITIONS:
        return (uint64_t)config->max_positions;
    case NONE:
        break;
    }
    return 1;
}

static bool is_here(const struct gpt_config *config, const struct gpt_stage *stage,
                    enum place place)
{
    switch (place) {
    case FIRST_STAGE:
        return stage->is_first;
    case WORD_STAGES:
        return stage->is_first || (stage->is_last && !config->untied);
    case LAST_STAGE:
        return stage->is_last;
    case LAST_STAGE_UNTIED:
        return stage->is_last && config->untied;
    case EACH_LAYER:
        break;
    }
    return true;
}

/* Memory rows of the vocabulary, padded to a multiple of (divisor x TP), are cut evenly; the box
 * leaves the padding out. Other dimensions divide by TP. */
static void cut_rows(const struct gpt_config *config, const struct gpt_stage *stage, bool is_vocab,
                     struct gpt_param *param)
{
    uint64_t tp = (uint64_t)stage->tp_size, rows = param->shape[0];
    uint64_t part = rows / tp;

    if (is_vocab) {
        uint64_t unit = (uint64_t)config->vocab_divisor * tp;
        part = (rows + unit - 1) / unit * unit / tp;
    }
    uint64_t begin = part * (uint64_t)stage->tp_rank;
    uint64_t end = begin + part < rows ? begin + part : rows;
    param->rows = part;
    param->box.offset[0] = begin < rows ? begin : rows;
    param->box.extent[0] = begin < end ? end - begin : 0;
}

static void fill_param(const struct gpt_config *config, const struct gpt_stage *stage,
                       enum gpt_tensor tensor, int layer, struct gpt_param *param)
{
    bool in_layer = tensors[tensor].place == EACH_LAYER;

    if (in_layer) {
        snprintf(param->name, sizeof(param->name), "decoder.layers.%d.%s", layer,
                 tensors[tensor].name);
    } else {
        snprintf(param->name, sizeof(param->name), "%s", tensors[tensor].name);
    }
    param->dims = tensors[tensor].columns == NONE ? 1 : 2;
    param->shape[0] = extent_of(config, tensors[tensor].rows);
    param->shape[1] = param->dims == 2 ? extent_of(config, tensors[tensor].columns) : 0;
    param->box = box_whole(param->dims, param->shape);
    param->rows = param->shape[0];
    param->columns = param->dims == 2 ? param->shape[1] : 1;
    if (tensors[tensor].cut == ROWS) {
        cut_rows(config, stage, tensors[tensor].rows == VOCAB, param);
    } else if (tensors[tensor].cut == COLUMNS) {
        param->columns = param->shape[1] / (uint64_t)stage->tp_size;
        param->box.offset[1] = param->columns * (uint64_t)stage->tp_rank;
        param->box.extent[1] = param->columns;
    }
    param->init = tensors[tensor].init;
    param->decay = param->dims == 2;
    param->tp_replicated = tensors[tensor].cut == WHOLE;
    param->tied_copy = tensor == GPT_WORD && !stage->is_first;
}

static void append(struct gpt_table *table, const struct gpt_config *config,
                   const struct gpt_stage *stage, enum gpt_tensor tensor, int layer)
{
    struct gpt_param *param = &table->params[table->count++];

    fill_param(config, stage, tensor, layer, param);
    param->begin = table->flat_count;
    if (layer == stage->layer_begin) {
        table->begin[tensor] = param->begin;
    }
    table->flat_count +=
        (param->rows * param->columns + GPT_PARAM_ALIGN - 1) / GPT_PARAM_ALIGN * GPT_PARAM_ALIGN;
}

enum status gpt_table_build(const struct gpt_config *config, const struct gpt_stage *stage,
                            struct gpt_table *out_table)
{
    struct gpt_table table = {0};
    int chunks = stage->chunks > 1 ? stage->chunks : 1;
    size_t layers = (size_t)(chunks * (stage->layer_end - stage->layer_begin));
    enum status st = STATUS_OK;

    TRY(st, mem_alloc(&table.params, (layers + 1) * GPT_TENSOR_COUNT, sizeof(*table.params)), done);
    for (int tensor = 0; tensor < GPT_NORM1_WEIGHT; tensor++) {
        if (is_here(config, stage, tensors[tensor].place)) {
            append(&table, config, stage, (enum gpt_tensor)tensor, stage->layer_begin);
        }
    }
    size_t layers_begin = table.flat_count;
    for (int chunk = 0; chunk < chunks; chunk++) {
        int first = chunk * stage->chunk_stride;
        for (int layer = stage->layer_begin; layer < stage->layer_end; layer++) {
            for (int tensor = GPT_NORM1_WEIGHT; tensor < GPT_NORM_WEIGHT; tensor++) {
                append(&table, config, stage, (enum gpt_tensor)tensor, first + layer);
            }
        }
    }
    table.layer_stride = layers > 0 ? (table.flat_count - layers_begin) / layers : 0;
    for (int tensor = GPT_NORM_WEIGHT; tensor < GPT_TENSOR_COUNT; tensor++) {
        if (is_here(config, stage, tensors[tensor].place)) {
            append(&table, config, stage, (enum gpt_tensor)tensor, stage->layer_begin);
        }
    }
    *out_table = table;
done:
    return st;
}

void gpt_table_deinit(struct gpt_table *table)
{
    mem_free(&table->params);
}
