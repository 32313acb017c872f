/* libsentencepiece behind a C interface; see sentencepiece_model.h. */
#include <sentencepiece_processor.h>

#include <exception>
#include <memory>
#include <new>
#include <vector>

extern "C" {
#include "train/data/sentencepiece_model.h"
}

struct sentencepiece_model {
    sentencepiece::SentencePieceProcessor processor;
};

enum status sentencepiece_model_create(const char *bytes, size_t count, const char *path,
                                       struct sentencepiece_model **out_model)
try {
    auto model = std::make_unique<sentencepiece_model>();
    auto loaded = model->processor.LoadFromSerializedProto({bytes, count});

    if (!loaded.ok()) {
        return FAIL(STATUS_BAD_DATA, "unusable SentencePiece model '%s': %s", path,
                    loaded.error_message());
    }
    *out_model = model.release();
    return STATUS_OK;
} catch (const std::bad_alloc &) {
    return FAIL(STATUS_NO_MEMORY, "out of memory for the SentencePiece model '%s'", path);
} catch (const std::exception &error) {
    return FAIL(STATUS_BAD_DATA, "unusable SentencePiece model '%s': %s", path, error.what());
}

void sentencepiece_model_destroy(struct sentencepiece_model *model)
{
    delete model;
}

int32_t sentencepiece_model_count(const struct sentencepiece_model *model)
{
    return model->processor.GetPieceSize();
}

int32_t sentencepiece_model_bos(const struct sentencepiece_model *model)
{
    return model->processor.bos_id();
}

int32_t sentencepiece_model_eos(const struct sentencepiece_model *model)
{
    return model->processor.eos_id();
}

int32_t sentencepiece_model_pad(const struct sentencepiece_model *model)
{
    return model->processor.pad_id();
}

enum sentencepiece_kind sentencepiece_model_kind(const struct sentencepiece_model *model,
                                                 int32_t id)
{
    return model->processor.IsByte(id)      ? SENTENCEPIECE_BYTE
           : model->processor.IsControl(id) ? SENTENCEPIECE_CONTROL
           : model->processor.IsUnknown(id) ? SENTENCEPIECE_UNKNOWN
                                            : SENTENCEPIECE_TEXT;
}

const char *sentencepiece_model_piece(const struct sentencepiece_model *model, int32_t id)
{
    return model->processor.IdToPiece(id).c_str();
}

/* The library answers with the id of the unknown piece for what it does not have. */
int32_t sentencepiece_model_find(const struct sentencepiece_model *model, const char *piece)
{
    int32_t id = model->processor.PieceToId(piece);

    return model->processor.IdToPiece(id) == piece ? id : -1;
}

enum status sentencepiece_model_encode(const struct sentencepiece_model *model, const char *text,
                                       size_t bytes, struct token_buffer *out_tokens)
try {
    std::vector<int> ids;
    auto encoded = model->processor.Encode({text, bytes}, &ids);

    if (!encoded.ok()) {
        return FAIL(STATUS_FAILED, "SentencePiece cannot encode a text of %zu bytes: %s", bytes,
                    encoded.error_message());
    }
    return token_buffer_append(out_tokens, ids.data(), ids.size());
} catch (const std::bad_alloc &) {
    return FAIL(STATUS_NO_MEMORY, "out of memory for the pieces of a text of %zu bytes", bytes);
} catch (const std::exception &error) {
    return FAIL(STATUS_FAILED, "SentencePiece cannot encode a text of %zu bytes: %s", bytes,
                error.what());
}
