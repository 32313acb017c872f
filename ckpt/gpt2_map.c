/* The names, shapes and orders of GPT-2's tensors; see gpt2_map.h. */
#include "ckpt/gpt2_map.h"

#include <stdio.h>
#include <string.h>

const struct gpt2_mapping gpt2_outer[GPT2_OUTER_COUNT] = {
    {"wte.weight", "embedding.word_embeddings.weight", 'V', 'H', GPT2_TURN_NONE},
    {"wpe.weight", "embedding.position_embeddings.weight", 'P', 'H', GPT2_TURN_NONE},
    {"ln_f.weight", "decoder.final_layernorm.weight", 'H', '1', GPT2_TURN_NONE},
    {"ln_f.bias", "decoder.final_layernorm.bias", 'H', '1', GPT2_TURN_NONE},
};

const struct gpt2_mapping gpt2_lm_head = {"lm_head.weight", "output_layer.weight", 'V', 'H',
                                          GPT2_TURN_NONE};

#define LAYER(theirs, ours, rows, columns, turn)                                                   \
    {                                                                                              \
        GPT2_LAYER_PATTERN theirs, "decoder.layers.%d." ours, rows, columns, turn                  \
    }

const struct gpt2_mapping gpt2_inner[GPT2_INNER_COUNT] = {
    LAYER("ln_1.weight", "input_layernorm.weight", 'H', '1', GPT2_TURN_NONE),
    LAYER("ln_1.bias", "input_layernorm.bias", 'H', '1', GPT2_TURN_NONE),
    LAYER("attn.c_attn.weight", "self_attention.linear_qkv.weight", 'Q', 'H',
          GPT2_TURN_QKV_TRANSPOSE),
    LAYER("attn.c_attn.bias", "self_attention.linear_qkv.bias", 'Q', '1', GPT2_TURN_QKV),
    LAYER("attn.c_proj.weight", "self_attention.linear_proj.weight", 'H', 'H', GPT2_TURN_TRANSPOSE),
    LAYER("attn.c_proj.bias", "self_attention.linear_proj.bias", 'H', '1', GPT2_TURN_NONE),
    LAYER("ln_2.weight", "pre_mlp_layernorm.weight", 'H', '1', GPT2_TURN_NONE),
    LAYER("ln_2.bias", "pre_mlp_layernorm.bias", 'H', '1', GPT2_TURN_NONE),
    LAYER("mlp.c_fc.weight", "mlp.linear_fc1.weight", 'F', 'H', GPT2_TURN_TRANSPOSE),
    LAYER("mlp.c_fc.bias", "mlp.linear_fc1.bias", 'F', '1', GPT2_TURN_NONE),
    LAYER("mlp.c_proj.weight", "mlp.linear_fc2.weight", 'H', 'F', GPT2_TURN_TRANSPOSE),
    LAYER("mlp.c_proj.bias", "mlp.linear_fc2.bias", 'H', '1', GPT2_TURN_NONE),
};

static uint64_t size_of(const struct gpt2_config *config, char letter)
{
    switch (letter) {
    case 'H':
        return config->hidden;
    case 'Q':
        return 3 * config->hidden;
    case 'F':
        return config->ffn;
    case 'V':
        return config->vocab;
    case 'P':
        return config->positions;
    default:
        return 1;
    }
}

/* Our row of the fused QKV as a row of theirs. */
static uint64_t qkv_source_row(const struct gpt2_config *config, uint64_t row)
{
    uint64_t head_size = config->hidden / config->heads;
    uint64_t head = row / (3 * head_size), kind = row / head_size % 3, at = row % head_size;

    return kind * config->hidden + head * head_size + at;
}

static bool is_turned(const struct gpt2_mapping *mapping)
{
    return mapping->turn == GPT2_TURN_TRANSPOSE || mapping->turn == GPT2_TURN_QKV_TRANSPOSE;
}

int gpt2_our_shape(const struct gpt2_config *config, const struct gpt2_mapping *mapping,
                   uint64_t out_shape[2])
{
    out_shape[0] = size_of(config, mapping->rows);
    out_shape[1] = size_of(config, mapping->columns);
    return mapping->columns == '1' ? 1 : 2;
}

int gpt2_their_shape(const struct gpt2_config *config, const struct gpt2_mapping *mapping,
                     uint64_t out_shape[2])
{
    uint64_t ours[2];
    int dims = gpt2_our_shape(config, mapping, ours);

    out_shape[0] = ours[is_turned(mapping) ? 1 : 0];
    out_shape[1] = ours[is_turned(mapping) ? 0 : 1];
    return dims;
}

void gpt2_name(char out_name[GPT2_NAME_MAX], const char *pattern, int layer)
{
    const char *hole = strstr(pattern, "%d");

    if (hole == NULL) {
        (void)snprintf(out_name, GPT2_NAME_MAX, "%s", pattern);
    } else {
        (void)snprintf(out_name, GPT2_NAME_MAX, "%.*s%d%s", (int)(hole - pattern), pattern, layer,
                       hole + 2);
    }
}

/* Where element (r, c) of our tensor is in theirs. */
static uint64_t place_in_theirs(const struct gpt2_config *config,
                                const struct gpt2_mapping *mapping, const uint64_t ours[2],
                                uint64_t r, uint64_t c)
{
    bool is_qkv = mapping->turn == GPT2_TURN_QKV || mapping->turn == GPT2_TURN_QKV_TRANSPOSE;
    uint64_t row = is_qkv ? qkv_source_row(config, r) : r;

    return is_turned(mapping) ? c * ours[0] + row : row * ours[1] + c;
}

void gpt2_turn_to_ours(const struct gpt2_config *config, const struct gpt2_mapping *mapping,
                       const float *theirs, float *out_ours)
{
    uint64_t shape[2];

    (void)gpt2_our_shape(config, mapping, shape);
    for (uint64_t r = 0; r < shape[0]; r++) {
        for (uint64_t c = 0; c < shape[1]; c++) {
            out_ours[r * shape[1] + c] = theirs[place_in_theirs(config, mapping, shape, r, c)];
        }
    }
}

void gpt2_turn_to_theirs(const struct gpt2_config *config, const struct gpt2_mapping *mapping,
                         const float *ours, float *out_theirs)
{
    uint64_t shape[2];

    (void)gpt2_our_shape(config, mapping, shape);
    for (uint64_t r = 0; r < shape[0]; r++) {
        for (uint64_t c = 0; c < shape[1]; c++) {
            out_theirs[place_in_theirs(config, mapping, shape, r, c)] = ours[r * shape[1] + c];
        }
    }
}
