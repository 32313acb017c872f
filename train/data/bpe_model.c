/* Loading GPT-2's vocabulary and merges; see bpe_model.h. */
#include "train/data/bpe_model.h"

#include <cjson/cJSON.h>
#include <string.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/hash.h"
#include "ckpt/base/mem.h"

#define FILE_BYTES_MAX ((size_t)64 << 20)
#define VOCAB_MAX (1 << 22)
#define MERGE_LINE_MAX 4096
#define FREE_SLOT UINT64_MAX

/* The tokens as both files spell them, to their ids; needed while loading only. The spellings
 * belong to the JSON tree. */
struct spelling {
    const char *text; /* NULL: a free slot */
    int32_t id;
};

struct loader {
    struct bpe_model *model;
    const char *vocab_path, *merges_path;
    cJSON *vocab;
    struct spelling *spellings; /* [slots]: open addressing */
    size_t slots;               /* a power of two */
};

static size_t slots_for(size_t count)
{
    size_t slots = 1024;

    while (slots < 2 * count) {
        slots *= 2;
    }
    return slots;
}

static struct spelling *find_spelling(const struct loader *loader, const char *text, size_t bytes)
{
    size_t at = hash_bytes64(text, bytes) & (loader->slots - 1);

    for (;; at = (at + 1) & (loader->slots - 1)) {
        struct spelling *spelling = &loader->spellings[at];

        if (spelling->text == NULL ||
            (strncmp(spelling->text, text, bytes) == 0 && spelling->text[bytes] == 0)) {
            return spelling;
        }
    }
}

/* The files spell a byte as one character: printable Latin-1 as itself, the other 68 bytes as
 * U+0100, U+0101 ... in their order. Fills the byte of each character below U+0144, or -1. */
#define SPELLED_CHARACTERS 0x144
static void make_spelled_bytes(int16_t out_bytes[SPELLED_CHARACTERS])
{
    int next = 0x100;

    memset(out_bytes, -1, SPELLED_CHARACTERS * sizeof *out_bytes);
    for (int byte = 0; byte < 256; byte++) {
        bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);

        out_bytes[printable ? byte : next++] = (int16_t)byte;
    }
}

/* Turns a spelling into its bytes (never more than it has); -1 when it spells no bytes. */
static int unspell(const int16_t spelled[SPELLED_CHARACTERS], const char *text, char *out_bytes)
{
    const unsigned char *at = (const unsigned char *)text;
    int count = 0;

    while (*at != 0) {
        unsigned character = *at++;

        if (character >= 0xc2 && character <= 0xc5 && (*at & 0xc0) == 0x80) {
            character = (character & 0x1f) << 6 | (*at++ & 0x3f);
        } else if (character >= 0x80) {
            return -1;
        }
        if (character >= SPELLED_CHARACTERS || spelled[character] < 0) {
            return -1;
        }
        out_bytes[count++] = (char)spelled[character];
    }
    return count;
}

/* Notes every token of the JSON object under its spelling, and its spelling under its id. */
static enum status index_vocab(struct loader *loader, const char **spelling_of)
{
    const cJSON *item = NULL;
    int32_t size = loader->model->vocab_size;

    cJSON_ArrayForEach(item, loader->vocab)
    {
        double id = cJSON_IsNumber(item) ? item->valuedouble : -1;

        if (!(id >= 0 && id < size) || id != (double)(int32_t)id ||
            spelling_of[(int32_t)id] != NULL) {
            return FAIL(STATUS_BAD_DATA,
                        "unusable id of token '%s' in vocabulary '%s': the %d "
                        "tokens must have the ids 0 to %d, each once",
                        item->string, loader->vocab_path, size, size - 1);
        }
        struct spelling *spelling = find_spelling(loader, item->string, strlen(item->string));
        *spelling = (struct spelling){item->string, (int32_t)id};
        spelling_of[(int32_t)id] = item->string;
    }
    return STATUS_OK;
}

static enum status fill_pieces(struct loader *loader, const char *const *spelling_of)
{
    enum status st = STATUS_OK;
    struct bpe_model *model = loader->model;
    int16_t spelled[SPELLED_CHARACTERS];
    size_t room = 0;
    uint32_t used = 0;

    make_spelled_bytes(spelled);
    for (int32_t id = 0; id < model->vocab_size; id++) {
        room += strlen(spelling_of[id]);
    }
    TRY(st, mem_alloc(&model->starts, (size_t)model->vocab_size + 1, sizeof *model->starts), done);
    TRY(st, mem_alloc(&model->bytes, room, 1), done);
    memset(model->byte_ids, -1, sizeof model->byte_ids);
    for (int32_t id = 0; id < model->vocab_size; id++) {
        int count = unspell(spelled, spelling_of[id], model->bytes + used);

        if (count < 0) {
            return FAIL(STATUS_BAD_DATA,
                        "token '%s' in vocabulary '%s' does not spell bytes as "
                        "GPT-2 does",
                        spelling_of[id], loader->vocab_path);
        }
        if (count == 1) {
            model->byte_ids[(unsigned char)model->bytes[used]] = id;
        }
        used += (uint32_t)count;
        model->starts[id + 1] = used;
    }
    for (int byte = 0; byte < 256; byte++) {
        if (model->byte_ids[byte] < 0) {
            return FAIL(STATUS_BAD_DATA, "no token for byte 0x%02x in vocabulary '%s'", byte,
                        loader->vocab_path);
        }
    }
done:
    return st;
}

static enum status load_vocab(struct loader *loader)
{
    enum status st = STATUS_OK;
    char *text = NULL;
    const char **spelling_of = NULL;
    size_t bytes = 0;

    TRY(st, fs_read_file(fs_posix(), loader->vocab_path, FILE_BYTES_MAX, &text, &bytes), done);
    loader->vocab = cJSON_ParseWithLength(text, bytes);
    int count = cJSON_IsObject(loader->vocab) ? cJSON_GetArraySize(loader->vocab) : 0;
    if (count < 1 || count > VOCAB_MAX) {
        st = FAIL(STATUS_BAD_DATA, "no vocabulary in '%s': wanted a JSON object of tokens and ids",
                  loader->vocab_path);
        goto done;
    }
    loader->model->vocab_size = count;
    loader->slots = slots_for((size_t)count);
    TRY(st, mem_alloc(&loader->spellings, loader->slots, sizeof *loader->spellings), done);
    TRY(st, mem_alloc(&spelling_of, (size_t)count, sizeof *spelling_of), done);
    TRY(st, index_vocab(loader, spelling_of), done);
    TRY(st, fill_pieces(loader, spelling_of), done);
    const struct spelling *end = find_spelling(loader, BPE_END_OF_TEXT, strlen(BPE_END_OF_TEXT));
    if (end->text == NULL) {
        st = FAIL(STATUS_BAD_DATA, "no token '" BPE_END_OF_TEXT "' in vocabulary '%s'",
                  loader->vocab_path);
        goto done;
    }
    loader->model->end_of_text = end->id;
done:
    mem_free(&text);
    mem_free(&spelling_of);
    return st;
}

static size_t merge_slot(const struct bpe_model *model, uint64_t pair)
{
    /* Fibonacci hashing, folded so that both halves reach the low bits. */
    uint64_t mixed = pair * 0x9e3779b97f4a7c15u;

    return (size_t)(mixed ^ (mixed >> 32)) & (model->merge_slots - 1);
}

static struct bpe_merge *find_slot(const struct bpe_model *model, uint64_t pair)
{
    size_t at = merge_slot(model, pair);

    while (model->merges[at].pair != pair && model->merges[at].pair != FREE_SLOT) {
        at = (at + 1) & (model->merge_slots - 1);
    }
    return &model->merges[at];
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* One line, "LEFT RIGHT"; both and LEFTRIGHT are tokens. */
static enum status add_merge(struct loader *loader, const char *line, size_t bytes,
                             uint32_t line_number)
{
    const char *space = memchr(line, ' ', bytes);
    char joined[MERGE_LINE_MAX];
    const struct spelling *left = NULL, *right = NULL, *result = NULL;

    if (space != NULL && bytes < sizeof joined) {
        size_t first = (size_t)(space - line), second = bytes - first - 1;

        memcpy(joined, line, first);
        memcpy(joined + first, space + 1, second);
        left = find_spelling(loader, line, first);
        right = find_spelling(loader, space + 1, second);
        result = find_spelling(loader, joined, first + second);
    }
    if (left == NULL || left->text == NULL || right->text == NULL || result->text == NULL) {
        return FAIL(STATUS_BAD_DATA,
                    "unusable merge '%.*s' in '%s' line %u: wanted two tokens of "
                    "'%s' that make a third",
                    bytes < 64 ? (int)bytes : 64, line, loader->merges_path, line_number,
                    loader->vocab_path);
    }
    uint64_t pair = pair_of(left->id, right->id);
    struct bpe_merge *slot = find_slot(loader->model, pair);
    if (slot->pair == FREE_SLOT) {
        *slot = (struct bpe_merge){pair, line_number, result->id};
    }
    return STATUS_OK;
}

static enum status load_merges(struct loader *loader)
{
    enum status st = STATUS_OK;
    struct bpe_model *model = loader->model;
    char *text = NULL;
    size_t bytes = 0, lines = 0;
    uint32_t line_number = 0;

    TRY(st, fs_read_file(fs_posix(), loader->merges_path, FILE_BYTES_MAX, &text, &bytes), done);
    for (size_t i = 0; i < bytes; i++) {
        lines += text[i] == '\n';
    }
    model->merge_slots = slots_for(lines + 1);
    TRY(st, mem_alloc(&model->merges, model->merge_slots, sizeof *model->merges), done);
    for (size_t i = 0; i < model->merge_slots; i++) {
        model->merges[i].pair = FREE_SLOT;
    }
    for (const char *at = text; at < text + bytes;) {
        size_t length = strcspn(at, "\r\n");

        line_number++;
        if (length > 0 && !(line_number == 1 && strncmp(at, "#version", 8) == 0)) {
            TRY(st, add_merge(loader, at, length, line_number), done);
        }
        at += length;
        at += *at == '\r';
        at += 1;
    }
done:
    mem_free(&text);
    return st;
}

enum status bpe_model_load(const char *vocab_path, const char *merges_path,
                           struct bpe_model *out_model)
{
    enum status st = STATUS_OK;
    struct loader loader = {
        .model = out_model, .vocab_path = vocab_path, .merges_path = merges_path};

    *out_model = (struct bpe_model){0};
    TRY(st, load_vocab(&loader), done);
    TRY(st, load_merges(&loader), done);
done:
    mem_free(&loader.spellings);
    cJSON_Delete(loader.vocab);
    if (st != STATUS_OK) {
        bpe_model_deinit(out_model);
    }
    return st;
}

void bpe_model_deinit(struct bpe_model *model)
{
    mem_free(&model->starts);
    mem_free(&model->bytes);
    mem_free(&model->merges);
    *model = (struct bpe_model){0};
}

const struct bpe_merge *bpe_model_find_merge(const struct bpe_model *model, int32_t left,
                                             int32_t right)
{
    uint64_t pair = pair_of(left, right);
    const struct bpe_merge *slot = find_slot(model, pair);

    return slot->pair == pair ? slot : NULL;
}
