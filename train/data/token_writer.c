/* Writing token files; see token_file.h. Before it: preprocess. After it: token_file.c.
 *
 *     create -> add_sequence, end_document ... -> finish -> publish -> destroy
 *
 * Tokens are streamed through one buffer into the temporary .bin; lengths and document entries
 * (12 bytes a sequence at most) wait in memory until finish writes the index.
 */
#include "train/data/token_file.h"

#include <string.h>
#include <unistd.h>

#include "ckpt/base/mem.h"
#include "train/data/token_format.h"

#define BUFFER_BYTES ((size_t)1 << 20)

/* A temporary file that is filled front to back. */
struct output {
    char *path, *final_path;
    struct fs_file *file;
    unsigned char *buffer;
    size_t buffered;
    uint64_t written;
};

struct token_writer {
    struct fs *fs;
    char *prefix;
    enum token_type type;
    struct output tokens, index;
    int32_t *lengths;   /* [sequence_count] */
    int64_t *documents; /* [document_count]: one past the last sequence of each */
    size_t sequence_count, sequence_capacity;
    size_t document_count, document_capacity;
    uint64_t token_count;
};

static enum status output_open(struct output *output, struct fs *fs, const char *prefix,
                               const char *suffix)
{
    enum status st = STATUS_OK;

    TRY(st, mem_format(&output->final_path, "%s%s", prefix, suffix), done);
    TRY(st, mem_format(&output->path, "%s%s.%ld.partial", prefix, suffix, (long)getpid()), done);
    TRY(st, mem_alloc(&output->buffer, BUFFER_BYTES, 1), done);
    TRY(st, fs_open(fs, output->path, FS_CREATE_NEW, &output->file), done);
done:
    return st;
}

static enum status output_flush(struct output *output)
{
    enum status st = STATUS_OK;

    TRY(st, fs_pwrite(output->file, output->buffer, output->buffered, output->written), done);
    output->written += output->buffered;
    output->buffered = 0;
done:
    return st;
}

static enum status output_write(struct output *output, const void *bytes, size_t count)
{
    enum status st = STATUS_OK;
    const unsigned char *from = bytes;

    while (count > 0) {
        size_t part = BUFFER_BYTES - output->buffered;

        part = count < part ? count : part;
        memcpy(output->buffer + output->buffered, from, part);
        output->buffered += part;
        from += part;
        count -= part;
        if (output->buffered == BUFFER_BYTES) {
            TRY(st, output_flush(output), done);
        }
    }
done:
    return st;
}

static enum status output_finish(struct output *output)
{
    enum status st = STATUS_OK;

    TRY(st, output_flush(output), done);
    TRY(st, fs_sync(output->file), done);
done:
    return st;
}

/* Removes the temporary file unless it has got its final name (path is NULL then). */
static void output_close(struct output *output, struct fs *fs)
{
    if (output->file != NULL) {
        fs_close(&output->file);
        if (output->path != NULL && fs_unlink(fs, output->path) != STATUS_OK) {
            /* The caller reports the first error; the left-over's name says what it is. */
        }
    }
    mem_free(&output->path);
    mem_free(&output->final_path);
    mem_free(&output->buffer);
}

enum status token_writer_create(struct fs *fs, const char *prefix, enum token_type type,
                                struct token_writer **out_writer)
{
    enum status st = STATUS_OK;
    struct token_writer *writer = NULL;

    CHECK(token_type_bytes(type) != 0);
    *out_writer = NULL;
    TRY(st, mem_alloc(&writer, 1, sizeof *writer), done);
    writer->fs = fs;
    writer->type = type;
    TRY(st, mem_copy_string(&writer->prefix, prefix), done);
    TRY(st, output_open(&writer->tokens, fs, prefix, ".bin"), done);
    TRY(st, output_open(&writer->index, fs, prefix, ".idx"), done);
    *out_writer = writer;
done:
    if (st != STATUS_OK) {
        struct status_record record;

        status_take(&record);
        token_writer_destroy(writer);
        st = status_give(&record);
    }
    return st;
}

/* The first of `count` ids that the type cannot hold; `count` when it holds all. */
static size_t find_misfit(enum token_type type, const int32_t *ids, size_t count)
{
    static const struct {
        int32_t min, max;
    } bounds[] = {
        [TOKEN_UINT8] = {0, UINT8_MAX},         [TOKEN_INT8] = {INT8_MIN, INT8_MAX},
        [TOKEN_INT16] = {INT16_MIN, INT16_MAX}, [TOKEN_INT32] = {INT32_MIN, INT32_MAX},
        [TOKEN_INT64] = {INT32_MIN, INT32_MAX}, [TOKEN_UINT16] = {0, UINT16_MAX},
    };
    int32_t min = bounds[type].min, max = bounds[type].max;
    size_t i = 0;

    while (i < count && ids[i] >= min && ids[i] <= max) {
        i++;
    }
    return i;
}

/* Stores ids that fit as little-endian numbers of `size` bytes. */
static void pack(const int32_t *ids, size_t count, size_t size, unsigned char *out)
{
    for (size_t i = 0; i < count; i++) {
        int64_t wide = ids[i];

        switch (size) {
        case 1:
            memcpy(out + i, &wide, 1);
            break;
        case 2:
            memcpy(out + 2 * i, &wide, 2);
            break;
        case 4:
            memcpy(out + 4 * i, &wide, 4);
            break;
        default:
            memcpy(out + 8 * i, &wide, 8);
            break;
        }
    }
}

enum status token_writer_add_sequence(struct token_writer *writer, const int32_t *tokens,
                                      size_t count)
{
    enum status st = STATUS_OK;
    struct output *output = &writer->tokens;
    size_t size = token_type_bytes(writer->type);
    size_t misfit = find_misfit(writer->type, tokens, count);

    if (count > INT32_MAX) {
        return FAIL(STATUS_BAD_DATA,
                    "sequence too long for '%s.idx': %zu tokens, at most %d; cut the document",
                    writer->prefix, count, INT32_MAX);
    }
    if (misfit < count) {
        return FAIL(STATUS_BAD_DATA, "token id %d does not fit the type of '%s.bin' (code %d)",
                    tokens[misfit], writer->prefix, (int)writer->type);
    }
    for (size_t packed = 0, part = 0; packed < count; packed += part) {
        size_t room = (BUFFER_BYTES - output->buffered) / size;

        part = count - packed < room ? count - packed : room;
        pack(tokens + packed, part, size, output->buffer + output->buffered);
        output->buffered += part * size;
        if (output->buffered == BUFFER_BYTES) {
            TRY(st, output_flush(output), done);
        }
    }
    TRY(st,
        mem_grow((void **)&writer->lengths, &writer->sequence_capacity, writer->sequence_count + 1,
                 sizeof *writer->lengths),
        done);
    writer->lengths[writer->sequence_count++] = (int32_t)count;
    writer->token_count += count;
done:
    return st;
}

enum status token_writer_end_document(struct token_writer *writer)
{
    enum status st = STATUS_OK;

    TRY(st,
        mem_grow((void **)&writer->documents, &writer->document_capacity,
                 writer->document_count + 1, sizeof *writer->documents),
        done);
    writer->documents[writer->document_count++] = (int64_t)writer->sequence_count;
done:
    return st;
}

uint64_t token_writer_token_count(const struct token_writer *writer)
{
    return writer->token_count;
}

static enum status write_index(struct token_writer *writer)
{
    enum status st = STATUS_OK;
    struct output *index = &writer->index;
    unsigned char header[TOKEN_HEADER_BYTES] = TOKEN_MAGIC;
    uint64_t version = TOKEN_VERSION, sequences = writer->sequence_count;
    uint64_t entries = writer->document_count + 1;
    int64_t offset = 0, first = 0;

    memcpy(header + TOKEN_VERSION_AT, &version, sizeof version);
    header[TOKEN_TYPE_AT] = (unsigned char)writer->type;
    memcpy(header + TOKEN_COUNTS_AT, &sequences, sizeof sequences);
    memcpy(header + TOKEN_COUNTS_AT + 8, &entries, sizeof entries);
    TRY(st, output_write(index, header, sizeof header), done);
    TRY(st, output_write(index, writer->lengths, sequences * sizeof *writer->lengths), done);
    for (size_t i = 0; i < sequences; i++) {
        TRY(st, output_write(index, &offset, sizeof offset), done);
        offset += writer->lengths[i] * (int64_t)token_type_bytes(writer->type);
    }
    TRY(st, output_write(index, &first, sizeof first), done);
    TRY(st,
        output_write(index, writer->documents, writer->document_count * sizeof *writer->documents),
        done);
done:
    return st;
}

enum status token_writer_finish(struct token_writer *writer)
{
    enum status st = STATUS_OK;

    TRY(st, write_index(writer), done);
    TRY(st, output_finish(&writer->tokens), done);
    TRY(st, output_finish(&writer->index), done);
done:
    return st;
}

enum status token_writer_publish(struct token_writer *writer)
{
    enum status st = STATUS_OK;
    char directory[FS_PATH_MAX];

    fs_parent(directory, writer->prefix);
    if (fs_exists(writer->fs, writer->index.final_path)) {
        TRY(st, fs_unlink(writer->fs, writer->index.final_path), done);
        TRY(st, fs_sync_dir(writer->fs, directory), done);
    }
    TRY(st, fs_rename(writer->fs, writer->tokens.path, writer->tokens.final_path), done);
    mem_free(&writer->tokens.path);
    /* Each step durable before the next: a disk may keep the later of two names only. */
    TRY(st, fs_sync_dir(writer->fs, directory), done);
    TRY(st, fs_rename(writer->fs, writer->index.path, writer->index.final_path), done);
    mem_free(&writer->index.path);
    TRY(st, fs_sync_dir(writer->fs, directory), done);
done:
    return st;
}

void token_writer_destroy(struct token_writer *writer)
{
    if (writer == NULL) {
        return;
    }
    output_close(&writer->tokens, writer->fs);
    output_close(&writer->index, writer->fs);
    mem_free(&writer->prefix);
    mem_free(&writer->lengths);
    mem_free(&writer->documents);
    mem_free(&writer);
}
