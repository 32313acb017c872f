/* The hash of a rank's owned boxes, in parallel; see state_hash.h. */
#include "ckpt/state_hash.h"

#include <string.h>

#include "ckpt/base/hash.h"
#include "ckpt/base/mem.h"

#define PIECE_BYTES ((uint64_t)1 << 20)

struct piece { /* some rows of one tensor's owned box */
    const struct ckpt_tensor *tensor;
    uint64_t first_row, rows;
    uint64_t sum;
};

/* Two-byte elements are widened; eight-byte ones are twice as many words in the last dimension. */
enum status state_hash_box(const char *name, enum manifest_type type, int dims,
                           const uint64_t *shape, const struct box *box, const void *data,
                           uint64_t *out_sum)
{
    enum status st = STATUS_OK;
    size_t bytes = manifest_type_bytes(type);
    uint64_t wide[3][BOX_DIMS_MAX];
    uint32_t *words = NULL;

    memcpy(wide[0], shape, sizeof wide[0]);
    memcpy(wide[1], box->offset, sizeof wide[1]);
    memcpy(wide[2], box->extent, sizeof wide[2]);
    if (bytes == 8) {
        for (int i = 0; i < 3; i++) {
            wide[i][dims - 1] *= 2;
        }
    } else if (bytes == 2) {
        uint64_t count = box_count(box);
        TRY(st, mem_alloc(&words, (size_t)count, sizeof *words), done);
        for (uint64_t i = 0; i < count; i++) {
            words[i] = ((const uint16_t *)data)[i];
        }
        data = words;
    }
    *out_sum = hash_state_box(name, dims, wide[0], wide[1], wide[2], data);
done:
    mem_free(&words);
    return st;
}

static enum status hash_piece(void *context, size_t index)
{
    struct piece *piece = (struct piece *)context + index;
    const struct ckpt_tensor *tensor = piece->tensor;
    struct box box = tensor->owned;
    uint64_t row_bytes =
        box_count(&tensor->box) / tensor->box.extent[0] * manifest_type_bytes(tensor->type);
    uint64_t skip = tensor->owned.offset[0] - tensor->box.offset[0] + piece->first_row;

    box.offset[0] += piece->first_row;
    box.extent[0] = piece->rows;
    return state_hash_box(tensor->name, tensor->type, tensor->dims, tensor->shape, &box,
                          (const char *)tensor->data + skip * row_bytes, &piece->sum);
}

static enum status cut(const struct ckpt_tensor *tensors, size_t count, struct piece **pieces,
                       size_t *out_count)
{
    enum status st = STATUS_OK;
    size_t capacity = 0;

    *out_count = 0;
    for (size_t i = 0; i < count; i++) {
        const struct ckpt_tensor *tensor = &tensors[i];
        if (box_is_empty(&tensor->owned)) {
            continue;
        }
        uint64_t rows = tensor->owned.extent[0];
        uint64_t row_bytes = box_count(&tensor->owned) / rows * manifest_type_bytes(tensor->type);
        uint64_t most = PIECE_BYTES / row_bytes > 0 ? PIECE_BYTES / row_bytes : 1;
        for (uint64_t first = 0; first < rows; first += most) {
            uint64_t left = rows - first;
            TRY(st, mem_grow((void **)pieces, &capacity, *out_count + 1, sizeof **pieces), done);
            (*pieces)[(*out_count)++] = (struct piece){tensor, first, left < most ? left : most, 0};
        }
    }
done:
    return st;
}

enum status state_hash_owned(const struct ckpt_tensor *tensors, size_t count,
                             struct thread_pool *pool, uint64_t *out_sum)
{
    enum status st = STATUS_OK;
    struct piece *pieces = NULL;
    size_t piece_count = 0;

    *out_sum = 0;
    TRY(st, cut(tensors, count, &pieces, &piece_count), done);
    TRY(st, thread_pool_run(pool, hash_piece, pieces, piece_count), done);
    for (size_t i = 0; i < piece_count; i++) {
        *out_sum = hash_state_add(*out_sum, pieces[i].sum);
    }
done:
    mem_free(&pieces);
    return st;
}
