/* Reading token files: mapping, validation, and what to say when they are not there; see
 * token_file.h. The index begins with 34 bytes, so that none of its arrays is aligned: every
 * element is read by memcpy. */
#include "train/data/token_file.h"

#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/mem.h"
#include "train/data/token_format.h"

enum token_type token_type_for_vocab(int64_t vocab_size)
{
    return vocab_size < 65500 ? TOKEN_UINT16 : TOKEN_INT32;
}

size_t token_type_bytes(enum token_type type)
{
    switch (type) {
    case TOKEN_UINT8:
    case TOKEN_INT8:
        return 1;
    case TOKEN_INT16:
    case TOKEN_UINT16:
        return 2;
    case TOKEN_INT32:
        return 4;
    case TOKEN_INT64:
        return 8;
    }
    return 0;
}

static bool has_suffix(const char *text, const char *suffix)
{
    size_t length = strlen(text), tail = strlen(suffix);

    return length >= tail && strcmp(text + length - tail, suffix) == 0;
}

/* Looks in `directory` for "STEM...SUFFIX.idx" and gives the prefix that names it, or NULL. */
static char *find_prefix(const char *directory, const char *stem)
{
    struct fs_names names = {0};
    char *found = NULL;

    if (fs_list(fs_posix(), directory, &names) != STATUS_OK) {
        return NULL;
    }
    for (size_t i = 0; i < names.count && found == NULL; i++) {
        const char *name = names.names[i];

        if (strncmp(name, stem, strlen(stem)) == 0 && has_suffix(name, ".idx") &&
            mem_format(&found, "%s/%.*s", directory, (int)(strlen(name) - 4), name) != STATUS_OK) {
            break;
        }
    }
    fs_names_deinit(&names);
    return found;
}

/* What the user may have meant by a prefix without a pair: " (...)", or "" freed by mem_free. */
static enum status make_hint(const char *prefix, char **out_hint)
{
    enum status st = STATUS_OK;
    struct stat info;
    char directory[FS_PATH_MAX];
    char *found = NULL;
    const char *slash = strrchr(prefix, '/');

    if (stat(prefix, &info) == 0 && S_ISDIR(info.st_mode)) {
        found = find_prefix(prefix, "");
        st = found == NULL ? mem_format(out_hint,
                                        "; '%s' is a folder: give the common prefix of "
                                        "the two files",
                                        prefix)
                           : mem_format(out_hint,
                                        "; '%s' is a folder: give the common prefix of "
                                        "the two files, for example '%s'",
                                        prefix, found);
    } else if (has_suffix(prefix, ".bin") || has_suffix(prefix, ".idx")) {
        st = mem_format(out_hint, "; give the prefix without '%s'", prefix + strlen(prefix) - 4);
    } else {
        fs_parent(directory, prefix);
        found = find_prefix(directory, slash == NULL ? prefix : slash + 1);
        st = found == NULL ? mem_copy_string(out_hint, "")
                           : mem_format(out_hint, "; did you mean '%s'?", found);
    }
    mem_free(&found);
    return st;
}

static enum status fail_missing(const char *prefix, bool has_index, bool has_tokens)
{
    enum status st = STATUS_OK;
    char *hint = NULL;

    if (has_index || has_tokens) {
        return FAIL(STATUS_NOT_FOUND,
                    "only half of a token file: '%s.%s' is there, '%s.%s' is "
                    "not; both are needed",
                    prefix, has_index ? "idx" : "bin", prefix, has_index ? "bin" : "idx");
    }
    TRY(st, make_hint(prefix, &hint), done);
    st = FAIL(STATUS_NOT_FOUND, "no token file: looked for '%s.idx' and '%s.bin'%s", prefix, prefix,
              hint);
done:
    mem_free(&hint);
    return st;
}

/* Reads the 34 bytes at the start and holds the counts against the size of the file. */
static enum status check_header(struct token_file *file)
{
    const unsigned char *at = file->index.bytes;
    uint64_t version = 0, sequences = 0, entries = 0;
    uint64_t bytes = file->index.count;

    if (bytes < TOKEN_HEADER_BYTES) {
        return FAIL(STATUS_BAD_DATA,
                    "no token index: '%s.idx' has %llu bytes, an index at least "
                    "%d",
                    file->prefix, (unsigned long long)bytes, TOKEN_HEADER_BYTES);
    }
    if (memcmp(at, TOKEN_MAGIC, TOKEN_MAGIC_BYTES) != 0) {
        return FAIL(STATUS_BAD_DATA,
                    "no token index: '%s.idx' begins with bytes %02x %02x %02x "
                    "%02x, wanted \"MMIDIDX\" (Megatron's format, version 1)",
                    file->prefix, at[0], at[1], at[2], at[3]);
    }
    memcpy(&version, at + TOKEN_VERSION_AT, sizeof version);
    if (version != TOKEN_VERSION) {
        return FAIL(STATUS_BAD_DATA, "unknown version %llu of the token index '%s.idx', wanted %d",
                    (unsigned long long)version, file->prefix, TOKEN_VERSION);
    }
    file->type = at[TOKEN_TYPE_AT];
    if (token_type_bytes(file->type) == 0) {
        return FAIL(STATUS_BAD_DATA,
                    "unusable type code %d in '%s.idx', wanted 1 (uint8), "
                    "2 (int8), 3 (int16), 4 (int32), 5 (int64) or 8 (uint16)",
                    at[TOKEN_TYPE_AT], file->prefix);
    }
    memcpy(&sequences, at + TOKEN_COUNTS_AT, sizeof sequences);
    memcpy(&entries, at + TOKEN_COUNTS_AT + 8, sizeof entries);
    uint64_t room = bytes - TOKEN_HEADER_BYTES;
    bool possible = sequences <= room / 12 && entries >= 1 && entries <= room / 8;
    uint64_t wanted = possible ? 12 * sequences + 8 * entries : 0;
    if (!possible || (room != wanted && room != wanted + sequences)) {
        return FAIL(STATUS_BAD_DATA,
                    "damaged token index '%s.idx': its %llu bytes do not fit "
                    "its %llu sequences and %llu document entries",
                    file->prefix, (unsigned long long)bytes, (unsigned long long)sequences,
                    (unsigned long long)entries);
    }
    file->sequence_count = sequences;
    file->document_count = entries - 1;
    return STATUS_OK;
}

static int64_t load_i64(const unsigned char *at)
{
    int64_t value;

    memcpy(&value, at, sizeof value);
    return value;
}

static enum status check_sequences(struct token_file *file)
{
    const unsigned char *offsets =
        file->index.bytes + TOKEN_HEADER_BYTES + 4 * file->sequence_count;
    uint64_t size = token_type_bytes(file->type), total = 0;

    for (uint64_t i = 0; i < file->sequence_count; i++) {
        int32_t length = token_file_length(file, i);
        int64_t offset = load_i64(offsets + 8 * i);

        if (length < 0) {
            return FAIL(STATUS_BAD_DATA,
                        "damaged token index '%s.idx': sequence %llu has length "
                        "%d",
                        file->prefix, (unsigned long long)i, length);
        }
        if (offset < 0 || (uint64_t)offset != total * size) {
            return FAIL(STATUS_BAD_DATA,
                        "damaged token index '%s.idx': sequence %llu starts at "
                        "byte %lld, the lengths before it give %llu",
                        file->prefix, (unsigned long long)i, (long long)offset,
                        (unsigned long long)(total * size));
        }
        total += (uint64_t)length;
    }
    if (file->tokens.count != total * size) {
        return FAIL(STATUS_BAD_DATA,
                    "token files do not fit each other: '%s.bin' has %llu bytes, "
                    "'%s.idx' counts %llu tokens = %llu bytes",
                    file->prefix, (unsigned long long)file->tokens.count, file->prefix,
                    (unsigned long long)total, (unsigned long long)(total * size));
    }
    file->token_count = total;
    return STATUS_OK;
}

static enum status check_documents(const struct token_file *file)
{
    uint64_t before = 0;

    for (uint64_t i = 0; i <= file->document_count; i++) {
        uint64_t entry = token_file_document(file, i);

        if (i == 0 && entry != 0) {
            return FAIL(STATUS_BAD_DATA,
                        "damaged token index '%s.idx': the first document starts "
                        "at sequence %lld, wanted 0",
                        file->prefix, (long long)entry);
        }
        if (entry < before || entry > file->sequence_count) {
            return FAIL(STATUS_BAD_DATA,
                        "damaged token index '%s.idx': document entry %llu is "
                        "%lld, wanted %llu to %llu",
                        file->prefix, (unsigned long long)i, (long long)entry,
                        (unsigned long long)before, (unsigned long long)file->sequence_count);
        }
        before = entry;
    }
    if (before != file->sequence_count) {
        return FAIL(STATUS_BAD_DATA,
                    "damaged token index '%s.idx': the last document entry is "
                    "%llu, the number of sequences %llu",
                    file->prefix, (unsigned long long)before,
                    (unsigned long long)file->sequence_count);
    }
    return STATUS_OK;
}

static bool is_file(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0;
}

enum status token_file_open(const char *prefix, struct token_file *out_file)
{
    enum status st = STATUS_OK;
    char *index_path = NULL, *tokens_path = NULL;

    *out_file = (struct token_file){0};
    TRY(st, mem_copy_string(&out_file->prefix, prefix), done);
    TRY(st, mem_format(&index_path, "%s.idx", prefix), done);
    TRY(st, mem_format(&tokens_path, "%s.bin", prefix), done);
    if (!is_file(index_path) || !is_file(tokens_path)) {
        TRY(st, fail_missing(prefix, is_file(index_path), is_file(tokens_path)), done);
    }
    TRY(st, map_file_open(index_path, &out_file->index), done);
    TRY(st, check_header(out_file), done);
    TRY(st, map_file_open(tokens_path, &out_file->tokens), done);
    TRY(st, check_sequences(out_file), done);
    TRY(st, check_documents(out_file), done);
done:
    mem_free(&index_path);
    mem_free(&tokens_path);
    if (st != STATUS_OK) {
        token_file_close(out_file);
    }
    return st;
}

void token_file_close(struct token_file *file)
{
    map_file_close(&file->index);
    map_file_close(&file->tokens);
    mem_free(&file->prefix);
    *file = (struct token_file){0};
}

int32_t token_file_length(const struct token_file *file, uint64_t sequence)
{
    int32_t length;

    memcpy(&length, file->index.bytes + TOKEN_HEADER_BYTES + 4 * sequence, sizeof length);
    return length;
}

uint64_t token_file_start(const struct token_file *file, uint64_t sequence)
{
    const unsigned char *offsets =
        file->index.bytes + TOKEN_HEADER_BYTES + 4 * file->sequence_count;

    if (sequence == file->sequence_count) {
        return file->token_count;
    }
    return (uint64_t)load_i64(offsets + 8 * sequence) / token_type_bytes(file->type);
}

uint64_t token_file_document(const struct token_file *file, uint64_t document)
{
    return (uint64_t)load_i64(file->index.bytes + TOKEN_HEADER_BYTES + 12 * file->sequence_count +
                              8 * document);
}

/* Runs `body` with `id` as each of `count` tokens from `first` on, of C type `type`. The tokens
 * start on a page, so that they are aligned. */
#define FOR_TOKENS(type, body)                                                                     \
    do {                                                                                           \
        const type *ids = (const type *)(const void *)file->tokens.bytes + first;                  \
        for (uint64_t i = 0; i < count; i++) {                                                     \
            type id = ids[i];                                                                      \
            body;                                                                                  \
        }                                                                                          \
    } while (0)

#define FOR_TOKENS_OF_ANY_TYPE(body)                                                               \
    switch (file->type) {                                                                          \
    case TOKEN_UINT8:                                                                              \
        FOR_TOKENS(uint8_t, body);                                                                 \
        break;                                                                                     \
    case TOKEN_INT8:                                                                               \
        FOR_TOKENS(int8_t, body);                                                                  \
        break;                                                                                     \
    case TOKEN_INT16:                                                                              \
        FOR_TOKENS(int16_t, body);                                                                 \
        break;                                                                                     \
    case TOKEN_INT32:                                                                              \
        FOR_TOKENS(int32_t, body);                                                                 \
        break;                                                                                     \
    case TOKEN_INT64:                                                                              \
        FOR_TOKENS(int64_t, body);                                                                 \
        break;                                                                                     \
    case TOKEN_UINT16:                                                                             \
        FOR_TOKENS(uint16_t, body);                                                                \
        break;                                                                                     \
    }

void token_file_copy(const struct token_file *file, uint64_t first, size_t count,
                     int32_t *out_tokens)
{
    CHECK(first <= file->token_count && count <= file->token_count - first);
    FOR_TOKENS_OF_ANY_TYPE(out_tokens[i] = (int32_t)id)
}

void token_file_range(const struct token_file *file, uint64_t first, uint64_t count,
                      int64_t *out_min, int64_t *out_max)
{
    int64_t min = INT64_MAX, max = INT64_MIN;

    CHECK(first <= file->token_count && count <= file->token_count - first);
    FOR_TOKENS_OF_ANY_TYPE({
        min = id < min ? id : min;
        max = id > max ? id : max;
    })
    *out_min = min;
    *out_max = max;
}
