/* The manifest in memory and on disk; its text is made and read by manifest_json.c. Before it:
 * commit gathers the ranks' records; after it: catalog and reader trust what it says.
 *
 * Invariants: tensors are sorted by name and files by rank, without duplicates, from the first add
 * on, so that a search is binary and equal content prints equal text.
 */
#include "ckpt/meta/manifest.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/json.h"
#include "ckpt/base/mem.h"

#define CHECK_BUFFER_BYTES ((size_t)4 << 20)

enum status manifest_init(struct manifest *manifest)
{
    enum status st = STATUS_OK;

    memset(manifest, 0, sizeof *manifest);
    TRY(st, json_new_object(&manifest->options), done);
    TRY(st, json_new_object(&manifest->state), done);
done:
    if (st != STATUS_OK) {
        manifest_deinit(manifest);
    }
    return st;
}

void manifest_deinit(struct manifest *manifest)
{
    for (size_t i = 0; i < manifest->tensor_count; i++) {
        mem_free(&manifest->tensors[i].name);
    }
    mem_free(&manifest->tensors);
    mem_free(&manifest->files);
    cJSON_Delete(manifest->options);
    cJSON_Delete(manifest->state);
    memset(manifest, 0, sizeof *manifest);
}

/* Where `name` is (true) or belongs (false). */
static bool find_tensor(const struct manifest *manifest, const char *name, size_t *out_index)
{
    size_t low = 0, high = manifest->tensor_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(manifest->tensors[middle].name, name);

        if (order == 0) {
            *out_index = middle;
            return true;
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    *out_index = low;
    return false;
}

/* By rank in any layout: pp is the slowest, then dp, then tp. */
static int compare_coords(struct coords a, struct coords b)
{
    int by_pp = (a.pp > b.pp) - (a.pp < b.pp);
    int by_dp = (a.dp > b.dp) - (a.dp < b.dp);
    int by_tp = (a.tp > b.tp) - (a.tp < b.tp);

    return by_pp != 0 ? by_pp : by_dp != 0 ? by_dp : by_tp;
}

static bool find_file(const struct manifest *manifest, struct coords coords, size_t *out_index)
{
    size_t low = 0, high = manifest->file_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = compare_coords(manifest->files[middle].coords, coords);

        if (order == 0) {
            *out_index = middle;
            return true;
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    *out_index = low;
    return false;
}

enum status manifest_add_tensor(struct manifest *manifest, const char *name,
                                enum manifest_type type, int dims, const uint64_t *shape)
{
    enum status st = STATUS_OK;
    struct manifest_tensor tensor = {.type = type, .dims = dims};
    size_t at;

    CHECK(dims >= 1 && dims <= BOX_DIMS_MAX && (unsigned)type < MANIFEST_TYPE_COUNT);
    if (find_tensor(manifest, name, &at)) {
        return FAIL(STATUS_EXISTS, "tensor '%s' is in the manifest already", name);
    }
    memcpy(tensor.shape, shape, (size_t)dims * sizeof *shape);
    TRY(st,
        mem_grow((void **)&manifest->tensors, &manifest->tensor_capacity,
                 manifest->tensor_count + 1, sizeof tensor),
        done);
    TRY(st, mem_copy_string(&tensor.name, name), done);
    memmove(&manifest->tensors[at + 1], &manifest->tensors[at],
            (manifest->tensor_count - at) * sizeof tensor);
    manifest->tensors[at] = tensor;
    manifest->tensor_count++;
done:
    return st;
}

enum status manifest_add_file(struct manifest *manifest, const struct manifest_file *file)
{
    enum status st = STATUS_OK;
    size_t at;

    if (find_file(manifest, file->coords, &at)) {
        return FAIL(STATUS_EXISTS, "file '%s' is in the manifest already", file->name);
    }
    TRY(st,
        mem_grow((void **)&manifest->files, &manifest->file_capacity, manifest->file_count + 1,
                 sizeof *file),
        done);
    memmove(&manifest->files[at + 1], &manifest->files[at],
            (manifest->file_count - at) * sizeof *file);
    manifest->files[at] = *file;
    manifest->file_count++;
done:
    return st;
}

const struct manifest_tensor *manifest_find(const struct manifest *manifest, const char *name)
{
    size_t index;

    return find_tensor(manifest, name, &index) ? &manifest->tensors[index] : NULL;
}

size_t manifest_type_bytes(enum manifest_type type)
{
    static const size_t bytes[MANIFEST_TYPE_COUNT] = {
        [MANIFEST_F32] = 4, [MANIFEST_BF16] = 2, [MANIFEST_F16] = 2, [MANIFEST_I64] = 8};

    CHECK((unsigned)type < MANIFEST_TYPE_COUNT);
    return bytes[type];
}

const char *manifest_type_name(enum manifest_type type)
{
    static const char *const names[MANIFEST_TYPE_COUNT] = {[MANIFEST_F32] = "f32",
                                                           [MANIFEST_BF16] = "bf16",
                                                           [MANIFEST_F16] = "f16",
                                                           [MANIFEST_I64] = "i64"};

    CHECK((unsigned)type < MANIFEST_TYPE_COUNT);
    return names[type];
}

uint64_t manifest_total_bytes(const struct manifest *manifest)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < manifest->file_count; i++) {
        bytes += manifest->files[i].bytes;
    }
    return bytes;
}

enum status manifest_write(const struct manifest *manifest, struct fs *fs, const char *directory)
{
    enum status st = STATUS_OK;
    struct fs_file *file = NULL;
    char path[FS_PATH_MAX];
    char *text = NULL;
    size_t bytes;

    TRY(st, manifest_print(manifest, &text, &bytes), done);
    TRY(st, fs_join(path, directory, MANIFEST_FILE), done);
    TRY(st, fs_open(fs, path, FS_CREATE_NEW, &file), done);
    TRY(st, fs_pwrite(file, text, bytes, 0), done);
    TRY(st, fs_sync(file), done);
done:
    fs_close(&file);
    mem_free(&text);
    return st;
}

enum status manifest_read(struct fs *fs, const char *directory, struct manifest *out_manifest)
{
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX];
    char *text = NULL;
    size_t bytes;

    memset(out_manifest, 0, sizeof *out_manifest);
    TRY(st, fs_join(path, directory, MANIFEST_FILE), done);
    TRY(st, fs_read_file(fs, path, JSON_FILE_BYTES_MAX, &text, &bytes), done);
    TRY(st, manifest_parse(text, bytes, path, out_manifest), done);
done:
    mem_free(&text);
    return st;
}

static enum status check_size(const struct manifest_file *file, const char *path, uint64_t bytes)
{
    if (bytes != file->bytes) {
        return FAIL(STATUS_CORRUPT, "file '%s' has %" PRIu64 " bytes, its manifest says %" PRIu64,
                    path, bytes, file->bytes);
    }
    return STATUS_OK;
}

enum status manifest_check_files(const struct manifest *manifest, struct fs *fs,
                                 const char *directory)
{
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX];
    struct fs_stat stat;

    for (size_t i = 0; i < manifest->file_count; i++) {
        const struct manifest_file *file = &manifest->files[i];

        TRY(st, fs_join(path, directory, file->name), done);
        st = fs_stat(fs, path, &stat);
        if (st == STATUS_NOT_FOUND) {
            return FAIL(STATUS_CORRUPT, "file '%s' is missing", path);
        }
        TRY(st, st, done);
        if (stat.is_directory) {
            return FAIL(STATUS_CORRUPT, "'%s' is a directory, its manifest says file", path);
        }
        TRY(st, check_size(file, path, stat.size), done);
    }
done:
    return st;
}

static enum status hash_file(struct fs_file *file, uint64_t bytes, struct hash128 *out_hash)
{
    enum status st = STATUS_OK;
    struct hash_stream *stream = hash_stream_create();
    size_t buffer_bytes = bytes < CHECK_BUFFER_BYTES ? (size_t)bytes : CHECK_BUFFER_BYTES;
    char *buffer = NULL;

    if (stream == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory to hash '%s'", fs_path(file));
    }
    TRY(st, mem_alloc(&buffer, buffer_bytes, 1), done);
    for (uint64_t at = 0; at < bytes;) {
        size_t part = bytes - at < buffer_bytes ? (size_t)(bytes - at) : buffer_bytes;

        TRY(st, fs_pread(file, buffer, part, at), done);
        hash_stream_add(stream, buffer, part);
        at += part;
    }
    *out_hash = hash_stream_get(stream);
done:
    mem_free(&buffer);
    hash_stream_destroy(stream);
    return st;
}

enum status manifest_check_file_hash(const struct manifest_file *file, struct fs *fs,
                                     const char *directory)
{
    enum status st = STATUS_OK;
    struct fs_file *opened = NULL;
    char path[FS_PATH_MAX];
    uint64_t bytes;
    struct hash128 hash;

    TRY(st, fs_join(path, directory, file->name), done);
    TRY(st, fs_open(fs, path, FS_READ, &opened), done);
    TRY(st, fs_drop_cache(opened), done); /* the disk is to be checked, not the memory */
    TRY(st, fs_file_size(opened, &bytes), done);
    TRY(st, check_size(file, path, bytes), done);
    TRY(st, hash_file(opened, bytes, &hash), done);
    TRY(st, fs_drop_cache(opened), done); /* a verify leaves the trainer's cache alone */
    if (hash.high != file->hash.high || hash.low != file->hash.low) {
        st = FAIL(STATUS_CORRUPT, "file '%s' is damaged: its hash is not its manifest's", path);
    }
done:
    fs_close(&opened);
    return st;
}
