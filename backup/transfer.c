/* Hashed, parallel, retried copies; see transfer.h. */
#include "backup/transfer.h"

#include <stdio.h>
#include <string.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/hash.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"

#define PAUSE_MS_MAX 30000

/* Bytes from anywhere, asked for in order. */
typedef enum status (*read_fn)(void *context, void *buffer, size_t bytes, uint64_t offset);

enum direction { PUSH, PULL, VERIFY };

struct batch {
    const struct transfer *transfer;
    const struct manifest *manifest;
    const struct store_list *there;
    enum direction direction;
};

static void object_name(const struct transfer *transfer, const char *file,
                        char out_name[STORE_NAME_MAX])
{
    (void)snprintf(out_name, STORE_NAME_MAX, "%s/%s", transfer->prefix, file);
}

static bool hash_equal(struct hash128 a, struct hash128 b)
{
    return a.high == b.high && a.low == b.low;
}

struct object_reader {
    struct store *store;
    const char *name;
};

static enum status read_object(void *context, void *buffer, size_t bytes, uint64_t offset)
{
    const struct object_reader *reader = context;

    return store_get(reader->store, reader->name, buffer, bytes, offset);
}

static enum status read_local(void *context, void *buffer, size_t bytes, uint64_t offset)
{
    return fs_pread(context, buffer, bytes, offset);
}

/* Hashes `bytes` bytes, and writes them to `to` when it is not NULL. */
static enum status drain(const struct transfer *transfer, read_fn read, void *context,
                         uint64_t bytes, struct fs_file *to, struct hash128 *out_hash)
{
    enum status st = STATUS_OK;
    void *buffer = NULL;
    struct hash_stream *hash = hash_stream_create();

    if (hash == NULL) {
        return FAIL(STATUS_NO_MEMORY, "cannot allocate a hash");
    }
    TRY(st, mem_alloc(&buffer, TRANSFER_BUFFER_BYTES, 1), done);
    for (uint64_t at = 0; at < bytes; at += TRANSFER_BUFFER_BYTES) {
        uint64_t left = bytes - at;
        size_t now = left < TRANSFER_BUFFER_BYTES ? (size_t)left : TRANSFER_BUFFER_BYTES;
        TRY(st, read(context, buffer, now, at), done);
        hash_stream_add(hash, buffer, now);
        if (to != NULL) {
            TRY(st, fs_pwrite(to, buffer, now, at), done);
        }
        progress_line_add(transfer->progress, now);
    }
    *out_hash = hash_stream_get(hash);
done:
    mem_free(&buffer);
    hash_stream_destroy(hash);
    return st;
}

/* STATUS_CORRUPT when the object's bytes are not the manifest's. */
static enum status check_object(const struct transfer *transfer, const struct manifest_file *file,
                                const char *name)
{
    enum status st = STATUS_OK;
    struct object_reader reader = {transfer->store, name};
    struct hash128 hash;
    uint64_t bytes = 0;

    TRY(st, store_stat(transfer->store, name, &bytes), done);
    if (bytes != file->bytes) {
        return FAIL(STATUS_CORRUPT, "'%s' in the store has %llu bytes, not %llu", name,
                    (unsigned long long)bytes, (unsigned long long)file->bytes);
    }
    TRY(st, drain(transfer, read_object, &reader, bytes, NULL, &hash), done);
    if (!hash_equal(hash, file->hash)) {
        st = FAIL(STATUS_CORRUPT, "'%s' in the store is damaged: its hash differs", name);
    }
done:
    return st;
}

/* A source whose bytes are hashed as the store reads them; a store that reads a range twice or out
 * of order spoils the hash, and the file is then hashed apart. */
struct hashed_source {
    struct fs_file *file;
    struct hash_stream *hash;
    uint64_t next;
    bool in_order;
};

static enum status read_hashed(void *context, void *buffer, size_t bytes, uint64_t offset)
{
    struct hashed_source *source = context;
    enum status st = STATUS_OK;

    TRY(st, fs_pread(source->file, buffer, bytes, offset), done);
    source->in_order = source->in_order && offset == source->next;
    source->next = offset + bytes;
    hash_stream_add(source->hash, buffer, bytes);
done:
    return st;
}

static enum status check_source(const struct transfer *transfer, struct hashed_source *source,
                                const struct manifest_file *file)
{
    enum status st = STATUS_OK;
    struct hash128 hash;

    if (source->in_order && source->next == file->bytes) {
        hash = hash_stream_get(source->hash);
    } else {
        TRY(st, drain(transfer, read_local, source->file, file->bytes, NULL, &hash), done);
    }
    if (!hash_equal(hash, file->hash)) {
        st = FAIL(STATUS_CORRUPT, "'%s' is damaged: its hash is not the manifest's; not pushed",
                  fs_path(source->file));
    }
done:
    return st;
}

static enum status send(const struct transfer *transfer, const struct manifest_file *file,
                        const char *name, struct fs_file *local)
{
    enum status st = STATUS_OK;
    struct hashed_source source = {local, hash_stream_create(), 0, true};
    struct store_source bytes = {&source, file->bytes, read_hashed};

    if (source.hash == NULL) {
        return FAIL(STATUS_NO_MEMORY, "cannot allocate a hash");
    }
    TRY(st, store_put(transfer->store, name, &bytes), done);
    st = check_source(transfer, &source, file);
    if (st == STATUS_OK) {
        st = check_object(transfer, file, name);
    }
    if (st == STATUS_CORRUPT) {
        struct status_record why;
        status_take(&why);
        (void)!store_remove(transfer->store, name); /* a damaged copy is worse than none */
        st = status_give(&why);
    }
done:
    hash_stream_destroy(source.hash);
    return st;
}

static bool is_there(const struct store_list *there, const char *name, uint64_t bytes)
{
    for (size_t i = 0; there != NULL && i < there->count; i++) {
        if (strcmp(there->objects[i].name, name) == 0) {
            return there->objects[i].bytes == bytes;
        }
    }
    return false;
}

static enum status push_file(const struct batch *batch, const struct manifest_file *file)
{
    const struct transfer *transfer = batch->transfer;
    enum status st = STATUS_OK;
    struct fs_file *local = NULL;
    uint64_t bytes = 0;
    char name[STORE_NAME_MAX], path[FS_PATH_MAX];

    object_name(transfer, file->name, name);
    if (is_there(batch->there, name, file->bytes)) {
        st = check_object(transfer, file, name);
        if (st != STATUS_CORRUPT) {
            return st; /* there already, or the store cannot be read */
        }
        log_warn("'%s' is sent again: %s", name, status_last()->message);
    }
    TRY(st, fs_join(path, transfer->folder, file->name), done);
    TRY(st, fs_open(transfer->fs, path, FS_READ, &local), done);
    TRY(st, fs_file_size(local, &bytes), done);
    if (bytes != file->bytes) {
        st = FAIL(STATUS_CORRUPT, "'%s' has %llu bytes, its manifest says %llu; not pushed", path,
                  (unsigned long long)bytes, (unsigned long long)file->bytes);
        goto done;
    }
    TRY(st, send(transfer, file, name, local), done);
    TRY(st, fs_drop_cache(local), done);
done:
    fs_close(&local);
    return st;
}

static enum status pull_file(const struct batch *batch, const struct manifest_file *file)
{
    const struct transfer *transfer = batch->transfer;
    enum status st = STATUS_OK;
    struct fs_file *local = NULL;
    struct hash128 hash;
    char name[STORE_NAME_MAX], path[FS_PATH_MAX];
    struct object_reader reader = {transfer->store, name};

    object_name(transfer, file->name, name);
    TRY(st, fs_join(path, transfer->folder, file->name), done);
    if (fs_exists(transfer->fs, path) &&
        manifest_check_file_hash(file, transfer->fs, transfer->folder) == STATUS_OK) {
        progress_line_add(transfer->progress, file->bytes);
        return STATUS_OK; /* an earlier pull that was killed got so far */
    }
    TRY(st, fs_open(transfer->fs, path, FS_CREATE, &local), done);
    TRY(st, fs_reserve(local, file->bytes), done);
    TRY(st, drain(transfer, read_object, &reader, file->bytes, local, &hash), done);
    if (!hash_equal(hash, file->hash)) {
        st = FAIL(STATUS_CORRUPT, "'%s' in the store is damaged: its hash is not the manifest's",
                  name);
        goto done;
    }
    TRY(st, fs_sync(local), done);
    TRY(st, fs_drop_cache(local), done);
done:
    fs_close(&local);
    return st;
}

static enum status try_file(const struct batch *batch, const struct manifest_file *file)
{
    char name[STORE_NAME_MAX];

    switch (batch->direction) {
    case PUSH:
        return push_file(batch, file);
    case PULL:
        return pull_file(batch, file);
    case VERIFY:
        object_name(batch->transfer, file->name, name);
        return check_object(batch->transfer, file, name);
    }
    CHECK(false);
}

/* Between half and the whole of the pause, so that many ranks do not come back at one moment. */
static int64_t jittered(int64_t pause_ms)
{
    uint64_t seed = (uint64_t)clock_monotonic_ns();

    return pause_ms / 2 +
           (int64_t)(hash_bytes64(&seed, sizeof seed) % (uint64_t)(pause_ms / 2 + 1));
}

static enum status run_file(void *context, size_t index)
{
    const struct batch *batch = context;
    const struct manifest_file *file = &batch->manifest->files[index];
    int64_t pause_ms = batch->transfer->pause_ms;
    enum status st = STATUS_OK;

    for (int attempt = 1;; attempt++) {
        st = try_file(batch, file);
        if (st == STATUS_OK || status_retry_class(st) == RETRY_NEVER || st == STATUS_NO_SPACE ||
            attempt == TRANSFER_TRIES) {
            return st;
        }
        log_warn("try %d of %d for '%s' failed: %s", attempt, TRANSFER_TRIES, file->name,
                 status_last()->message);
        clock_sleep_ms(jittered(pause_ms));
        pause_ms = pause_ms * 2 < PAUSE_MS_MAX ? pause_ms * 2 : PAUSE_MS_MAX;
    }
}

static enum status run_batch(struct batch *batch)
{
    enum status st = STATUS_OK;
    struct thread_pool *pool = NULL;

    TRY(st, thread_pool_create(batch->transfer->jobs, &pool), done);
    TRY(st, thread_pool_run(pool, run_file, batch, batch->manifest->file_count), done);
done:
    thread_pool_destroy(pool);
    return st;
}

enum status transfer_push(const struct transfer *transfer, const struct manifest *manifest,
                          const struct store_list *there)
{
    return run_batch(&(struct batch){transfer, manifest, there, PUSH});
}

enum status transfer_pull(const struct transfer *transfer, const struct manifest *manifest)
{
    return run_batch(&(struct batch){transfer, manifest, NULL, PULL});
}

enum status transfer_verify(const struct transfer *transfer, const struct manifest *manifest)
{
    return run_batch(&(struct batch){transfer, manifest, NULL, VERIFY});
}
