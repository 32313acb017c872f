/* GPT-2's byte-level BPE; see tokenizer.h.
 *
 *     text -> (cut at <|endoftext|>) -> words (PCRE2) -> cache, or merges -> ids
 *
 * A word's bytes are merged pair by pair, lowest rank first, leftmost first; pairs wait in a heap
 * so that a word of any length (a run of a million spaces) costs n log n. Most words of a text
 * repeat: a direct-mapped cache of short ones answers nearly all of them.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "ckpt/base/hash.h"
#include "ckpt/base/mem.h"
#include "train/data/bpe_model.h"
#include "train/data/tokenizer.h"

/* GPT-2's pattern, with \s spelled out as Unicode's White_Space: PCRE2's own \s has U+180E too.
 * SPACE stands inside a class. */
#define SPACE "\\t-\\r\\x{85}\\p{Z}"
#define WORD_PATTERN                                                                               \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+"                      \
    "|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"

#define CACHE_ENTRIES ((size_t)1 << 15)
#define CACHE_TEXT_MAX 22
#define CACHE_IDS_MAX 10
#define NO_RANK UINT32_MAX

struct bpe_tokenizer {
    struct tokenizer base;
    struct bpe_model model;
    pcre2_code *words;
};

struct cache_entry { /* one cache line; bytes == 0: empty */
    uint8_t bytes, count;
    char text[CACHE_TEXT_MAX];
    int32_t ids[CACHE_IDS_MAX];
};

struct symbol { /* a part of a word that has been merged so far */
    int32_t id;
    int32_t previous, next; /* -1: none */
    uint32_t rank;          /* of merging with the next one; NO_RANK: never, or gone */
    int32_t merged;         /* what that gives */
};

struct tokenizer_scratch {
    struct cache_entry *cache; /* [CACHE_ENTRIES] */
    struct symbol *symbols;    /* of the word at hand */
    uint64_t *heap;            /* rank << 32 | symbol; some are outdated */
    size_t symbol_capacity, heap_capacity, heap_count;
    pcre2_match_data *match;
};

static void heap_push(struct tokenizer_scratch *scratch, uint64_t entry)
{
    uint64_t *heap = scratch->heap;
    size_t at = scratch->heap_count++;

    for (; at > 0 && heap[(at - 1) / 2] > entry; at = (at - 1) / 2) {
        heap[at] = heap[(at - 1) / 2];
    }
    heap[at] = entry;
}

static uint64_t heap_pop(struct tokenizer_scratch *scratch)
{
    uint64_t *heap = scratch->heap;
    uint64_t top = heap[0], last = heap[--scratch->heap_count];
    size_t at = 0, child = 1;

    for (; child < scratch->heap_count; child = 2 * at + 1) {
        child += child + 1 < scratch->heap_count && heap[child + 1] < heap[child];
        if (heap[child] >= last) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

/* Notes how symbol `at` merges with its right neighbour. */
static void weigh_pair(const struct bpe_model *model, struct tokenizer_scratch *scratch, int32_t at)
{
    struct symbol *symbol = &scratch->symbols[at];

    symbol->rank = NO_RANK;
    if (symbol->next >= 0) {
        const struct bpe_merge *merge =
            bpe_model_find_merge(model, symbol->id, scratch->symbols[symbol->next].id);

        if (merge != NULL) {
            symbol->rank = merge->rank;
            symbol->merged = merge->result;
            heap_push(scratch, (uint64_t)merge->rank << 32 | (uint32_t)at);
        }
    }
}

static void merge_pairs(const struct bpe_model *model, struct tokenizer_scratch *scratch)
{
    struct symbol *symbols = scratch->symbols;

    while (scratch->heap_count > 0) {
        uint64_t entry = heap_pop(scratch);
        int32_t at = (int32_t)(uint32_t)entry;
        struct symbol *symbol = &symbols[at];

        if (symbol->rank != (uint32_t)(entry >> 32)) {
            continue; /* a neighbour has been merged since */
        }
        struct symbol *right = &symbols[symbol->next];
        symbol->id = symbol->merged;
        symbol->next = right->next;
        right->rank = NO_RANK;
        if (symbol->next >= 0) {
            symbols[symbol->next].previous = at;
        }
        weigh_pair(model, scratch, at);
        if (symbol->previous >= 0) {
            weigh_pair(model, scratch, symbol->previous);
        }
    }
}

/* Appends the ids of one word that is not in the cache. */
static enum status merge_word(const struct bpe_model *model, struct tokenizer_scratch *scratch,
                              const char *text, size_t bytes, struct token_buffer *out_tokens)
{
    enum status st = STATUS_OK;
    int32_t count = (int32_t)bytes;

    /* Each byte but the last is pushed once, each merge pushes at most two more. */
    TRY(st,
        mem_grow((void **)&scratch->symbols, &scratch->symbol_capacity, bytes,
                 sizeof *scratch->symbols),
        done);
    TRY(st,
        mem_grow((void **)&scratch->heap, &scratch->heap_capacity, 3 * bytes,
                 sizeof *scratch->heap),
        done);
    for (int32_t i = 0; i < count; i++) {
        scratch->symbols[i] = (struct symbol){
            .id = model->byte_ids[(unsigned char)text[i]],
            .previous = i - 1,
            .next = i + 1 < count ? i + 1 : -1,
        };
    }
    scratch->heap_count = 0;
    for (int32_t i = 0; i < count; i++) {
        weigh_pair(model, scratch, i);
    }
    merge_pairs(model, scratch);
    for (int32_t i = 0; i >= 0; i = scratch->symbols[i].next) {
        TRY(st, token_buffer_append(out_tokens, &scratch->symbols[i].id, 1), done);
    }
done:
    return st;
}

static enum status encode_word(const struct bpe_model *model, struct tokenizer_scratch *scratch,
                               const char *text, size_t bytes, struct token_buffer *out_tokens)
{
    enum status st = STATUS_OK;

    if (bytes > CACHE_TEXT_MAX) {
        return merge_word(model, scratch, text, bytes, out_tokens);
    }
    struct cache_entry *entry = &scratch->cache[hash_bytes64(text, bytes) % CACHE_ENTRIES];
    if (entry->bytes == bytes && memcmp(entry->text, text, bytes) == 0) {
        return token_buffer_append(out_tokens, entry->ids, entry->count);
    }
    size_t before = out_tokens->count;
    TRY(st, merge_word(model, scratch, text, bytes, out_tokens), done);
    size_t count = out_tokens->count - before;
    if (count <= CACHE_IDS_MAX) {
        entry->bytes = (uint8_t)bytes;
        entry->count = (uint8_t)count;
        memcpy(entry->text, text, bytes);
        memcpy(entry->ids, out_tokens->ids + before, count * sizeof *entry->ids);
    }
done:
    return st;
}

/* Text without special tokens. The pattern matches at every position of valid UTF-8. */
static enum status encode_plain(const struct bpe_tokenizer *tokenizer,
                                struct tokenizer_scratch *scratch, const char *text, size_t bytes,
                                struct token_buffer *out_tokens)
{
    enum status st = STATUS_OK;
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(scratch->match);

    for (size_t at = 0; at < bytes; at = ends[1]) {
        int matched = pcre2_match(tokenizer->words, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK,
                                  scratch->match, NULL);

        if (matched < 1) {
            return FAIL(STATUS_FAILED, "cannot cut text into words: pcre2 error %d", matched);
        }
        TRY(st, encode_word(&tokenizer->model, scratch, text + at, ends[1] - at, out_tokens), done);
    }
done:
    return st;
}

static enum status bpe_encode(const struct tokenizer *base, struct tokenizer_scratch *scratch,
                              const char *text, size_t bytes, struct token_buffer *out_tokens)
{
    const struct bpe_tokenizer *tokenizer = (const struct bpe_tokenizer *)base;
    enum status st = STATUS_OK;
    const size_t special = strlen(BPE_END_OF_TEXT);

    if (bytes > INT32_MAX) {
        return FAIL(STATUS_BAD_DATA, "text too long: %zu bytes, at most %d; cut the document",
                    bytes, INT32_MAX);
    }
    for (;;) {
        const char *end = memmem(text, bytes, BPE_END_OF_TEXT, special);
        size_t plain = end == NULL ? bytes : (size_t)(end - text);

        TRY(st, encode_plain(tokenizer, scratch, text, plain, out_tokens), done);
        if (end == NULL) {
            break;
        }
        TRY(st, token_buffer_append(out_tokens, &base->end_of_document, 1), done);
        text += plain + special;
        bytes -= plain + special;
    }
done:
    return st;
}

static const char *bpe_piece(const struct tokenizer *base, int32_t id, size_t *out_bytes)
{
    const struct bpe_model *model = &((const struct bpe_tokenizer *)base)->model;

    *out_bytes = model->starts[id + 1] - model->starts[id];
    return model->bytes + model->starts[id];
}

static void bpe_destroy_scratch(struct tokenizer_scratch *scratch)
{
    mem_free(&scratch->cache);
    mem_free(&scratch->symbols);
    mem_free(&scratch->heap);
    pcre2_match_data_free(scratch->match);
    mem_free(&scratch);
}

static enum status bpe_create_scratch(const struct tokenizer *base,
                                      struct tokenizer_scratch **out_scratch)
{
    const struct bpe_tokenizer *tokenizer = (const struct bpe_tokenizer *)base;
    enum status st = STATUS_OK;
    struct tokenizer_scratch *scratch = NULL;

    TRY(st, mem_alloc(&scratch, 1, sizeof *scratch), done);
    TRY(st, mem_alloc(&scratch->cache, CACHE_ENTRIES, sizeof *scratch->cache), done);
    scratch->match = pcre2_match_data_create_from_pattern(tokenizer->words, NULL);
    if (scratch->match == NULL) {
        st = FAIL(STATUS_NO_MEMORY, "out of memory for the word pattern");
        goto done;
    }
    *out_scratch = scratch;
done:
    if (st != STATUS_OK && scratch != NULL) {
        bpe_destroy_scratch(scratch);
    }
    return st;
}

static void bpe_destroy(struct tokenizer *base)
{
    struct bpe_tokenizer *tokenizer = (struct bpe_tokenizer *)base;

    pcre2_code_free(tokenizer->words);
    bpe_model_deinit(&tokenizer->model);
    mem_free(&tokenizer);
}

enum status tokenizer_bpe_create(const char *vocab_path, const char *merges_path,
                                 struct tokenizer **out_tokenizer)
{
    static const struct tokenizer_ops ops = {bpe_create_scratch, bpe_destroy_scratch, bpe_encode,
                                             bpe_piece, bpe_destroy};
    enum status st = STATUS_OK;
    struct bpe_tokenizer *tokenizer = NULL;
    int error = 0;
    PCRE2_SIZE error_at = 0;

    TRY(st, mem_alloc(&tokenizer, 1, sizeof *tokenizer), done);
    TRY(st, bpe_model_load(vocab_path, merges_path, &tokenizer->model), done);
    tokenizer->base =
        (struct tokenizer){&ops, tokenizer->model.vocab_size, tokenizer->model.end_of_text};
    tokenizer->words =
        pcre2_compile((PCRE2_SPTR)WORD_PATTERN, PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &error_at, NULL);
    if (tokenizer->words == NULL) {
        st = FAIL(STATUS_UNSUPPORTED,
                  "pcre2 cannot compile the word pattern: error %d at %zu "
                  "(it needs Unicode support)",
                  error, (size_t)error_at);
        goto done;
    }
    /* Where there is no JIT, matching is slower and the same. */
    (void)pcre2_jit_compile(tokenizer->words, PCRE2_JIT_COMPLETE);
    *out_tokenizer = &tokenizer->base;
done:
    if (st != STATUS_OK && tokenizer != NULL) {
        bpe_destroy(&tokenizer->base);
    }
    return st;
}
