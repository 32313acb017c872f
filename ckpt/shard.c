/* Writes one rank's HDF5 file; see shard.h. In the order of the file: structure, chunks, index. */
#include "ckpt/shard.h"

#include <hdf5.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/hash.h"
#include "ckpt/base/mem.h"
#include "ckpt/codec.h"
#include "ckpt/shard_index.h"
#include "ckpt/shard_vfd.h"

#define FILTER_ZSTD 32015         /* registered with the HDF Group */
#define RESERVE_STRUCTURE 1048576 /* for HDF5's own structure and the index, a guess */
#define RESERVE_BOX 8192
#define READ_BACK_BYTES ((size_t)4 << 20)
#define ENCODE_BATCH_MAX 64

/* Everything of one write. */
struct shard_writing {
    struct shard_vfd vfd;
    const char *path;
    hid_t access, file;
    const struct shard_box *boxes;
    hid_t *datasets; /* of each box */
    struct shard_index index;
    struct thread_pool *pool;
};

/* HDF5's own message is a stack on stderr, which is off; what it could not do is enough here, the
 * disk's faults come from the driver. */
static enum status fail_hdf5(const struct shard_writing *writing, const char *what,
                             const char *subject)
{
    enum status st = shard_vfd_status(&writing->vfd);

    return st != STATUS_OK
               ? st
               : FAIL(STATUS_FAILED, "HDF5 cannot %s '%s' in '%s'", what, subject, writing->path);
}

/* The filter, for the pipeline of a reader in this process; our own chunks bypass it. */
static size_t filter_zstd(unsigned flags, size_t count, const unsigned values[], size_t bytes,
                          size_t *buffer_bytes, void **buffer)
{
    struct codec *codec = NULL;
    size_t raw_bytes = codec_frame_bytes(*buffer, bytes);
    void *raw = NULL;
    bool good = false;

    (void)count;
    (void)values;
    if ((flags & H5Z_FLAG_REVERSE) != 0 && raw_bytes > 0 &&
        (raw = H5allocate_memory(raw_bytes, false)) != NULL && codec_create(&codec) == STATUS_OK) {
        good = codec_unframe(codec, *buffer, bytes, raw, raw_bytes) == STATUS_OK;
    }
    codec_destroy(&codec);
    if (!good) {
        (void)H5free_memory(raw);
        return 0;
    }
    (void)H5free_memory(*buffer);
    *buffer = raw;
    *buffer_bytes = raw_bytes;
    return raw_bytes;
}

static void set_up_once(void)
{
    static const H5Z_class2_t zstd = {
        .version = H5Z_CLASS_T_VERS,
        .id = FILTER_ZSTD,
        .encoder_present = 1,
        .decoder_present = 1,
        .name = "zstd",
        .filter = filter_zstd,
    };

    (void)H5dont_atexit(); /* after a full disk its exit handler crashes */
    (void)H5open();
    (void)H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    CHECK(H5Zregister(&zstd) >= 0);
}

static enum status set_up(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    CHECK(pthread_once(&once, set_up_once) == 0);
    (void)H5Eset_auto2(H5E_DEFAULT, NULL, NULL); /* per thread in a thread-safe library */
    return STATUS_OK;
}

static enum status add_attribute(struct shard_writing *writing, hid_t object, const char *name,
                                 const uint64_t *numbers, hsize_t count)
{
    hid_t space = H5Screate_simple(1, &count, NULL);
    hid_t attribute = H5Acreate2(object, name, H5T_STD_U64LE, space, H5P_DEFAULT, H5P_DEFAULT);
    bool good = H5Awrite(attribute, H5T_NATIVE_UINT64, numbers) >= 0;

    (void)H5Aclose(attribute);
    (void)H5Sclose(space);
    return good ? STATUS_OK : fail_hdf5(writing, "write attribute", name);
}

static enum status add_text(struct shard_writing *writing, const char *name, const char *text)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    hid_t space = H5Screate(H5S_SCALAR);
    bool good = H5Tset_size(type, strlen(text) + 1) >= 0;
    hid_t attribute = H5Acreate2(writing->file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);

    good = good && H5Awrite(attribute, type, text) >= 0;
    (void)H5Aclose(attribute);
    (void)H5Sclose(space);
    (void)H5Tclose(type);
    return good ? STATUS_OK : fail_hdf5(writing, "write attribute", name);
}

static enum status add_identity(struct shard_writing *writing,
                                const struct shard_identity *identity)
{
    enum status st = STATUS_OK;
    uint64_t coords[] = {(uint64_t)identity->coords.tp, (uint64_t)identity->coords.pp,
                         (uint64_t)identity->coords.dp};
    uint64_t sizes[] = {(uint64_t)identity->layout.tp, (uint64_t)identity->layout.pp,
                        (uint64_t)identity->layout.dp};
    uint64_t version = MANIFEST_FORMAT_VERSION;

    TRY(st, add_attribute(writing, writing->file, "format_version", &version, 1), done);
    TRY(st, add_attribute(writing, writing->file, "step", &identity->step, 1), done);
    TRY(st, add_attribute(writing, writing->file, "epoch", &identity->epoch, 1), done);
    TRY(st, add_attribute(writing, writing->file, "coords_tp_pp_dp", coords, 3), done);
    TRY(st, add_attribute(writing, writing->file, "layout_tp_pp_dp", sizes, 3), done);
    TRY(st, add_text(writing, "run_id", identity->run_id), done);
done:
    return st;
}

/* bfloat16 by its fields: HDF5 1.10 has no name for it, readers see a 16-bit float. */
static hid_t file_type(enum manifest_type type)
{
    hid_t made;

    switch (type) {
    case MANIFEST_F32:
        return H5Tcopy(H5T_IEEE_F32LE);
    case MANIFEST_I64:
        return H5Tcopy(H5T_STD_I64LE);
    case MANIFEST_BF16:
    case MANIFEST_F16:
        made = H5Tcopy(H5T_IEEE_F32LE);
        if (type == MANIFEST_BF16) {
            (void)H5Tset_fields(made, 15, 7, 8, 0, 7);
        } else {
            (void)H5Tset_fields(made, 15, 10, 5, 0, 10);
        }
        (void)H5Tset_size(made, 2);
        (void)H5Tset_ebias(made, type == MANIFEST_BF16 ? 127 : 15);
        return made;
    case MANIFEST_TYPE_COUNT:
        break;
    }
    CHECK(false);
}

/* Creation list: contiguous and allocated at once, or chunked by whole rows with both filters. */
static hid_t creation_list(const struct shard_index_box *box)
{
    hid_t list = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t chunk[BOX_DIMS_MAX];
    bool good = H5Pset_fill_time(list, H5D_FILL_TIME_NEVER) >= 0;

    if (box->encoding == SHARD_RAW) {
        good = good && H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY) >= 0;
    } else {
        chunk[0] = box->chunk_rows;
        for (int d = 1; d < box->box.dims; d++) {
            chunk[d] = box->box.extent[d];
        }
        good = good && H5Pset_chunk(list, box->box.dims, chunk) >= 0 && H5Pset_shuffle(list) >= 0 &&
               H5Pset_filter(list, FILTER_ZSTD, H5Z_FLAG_MANDATORY, 0, NULL) >= 0;
    }
    if (!good) {
        (void)H5Pclose(list);
        return -1;
    }
    return list;
}

static enum status create_dataset(struct shard_writing *writing, size_t number)
{
    enum status st = STATUS_OK;
    const struct shard_box *box = &writing->boxes[number];
    const struct shard_index_box *entry = &writing->index.boxes[number];
    hsize_t extent[BOX_DIMS_MAX];

    for (int d = 0; d < box->dims; d++) {
        extent[d] = box->box.extent[d];
    }
    hid_t type = file_type(box->type);
    hid_t space = H5Screate_simple(box->dims, extent, NULL);
    hid_t list = creation_list(entry);
    hid_t links = H5Pcreate(H5P_LINK_CREATE);
    (void)H5Pset_create_intermediate_group(links, 1);
    hid_t dataset = H5Dcreate2(writing->file, box->tensor, type, space, links, list, H5P_DEFAULT);
    writing->datasets[number] = dataset;
    if (dataset < 0) {
        st = fail_hdf5(writing, "create dataset", box->tensor);
        goto done;
    }
    TRY(st, add_attribute(writing, dataset, "global_shape", box->shape, (hsize_t)box->dims), done);
    TRY(st, add_attribute(writing, dataset, "offset", box->box.offset, (hsize_t)box->dims), done);
done:
    (void)H5Pclose(links);
    (void)H5Pclose(list);
    (void)H5Sclose(space);
    (void)H5Tclose(type);
    return st;
}

/* Near SHARD_CHUNK_BYTES, and equal but for the last few rows, so that little padding is stored. */
static uint64_t choose_chunk_rows(const struct shard_box *box)
{
    uint64_t rows = box->box.extent[0];
    uint64_t row_bytes = box_count(&box->box) / rows * manifest_type_bytes(box->type);
    uint64_t most = SHARD_CHUNK_BYTES / row_bytes > 0 ? SHARD_CHUNK_BYTES / row_bytes : 1;
    uint64_t chunks = (rows + most - 1) / most;

    return (rows + chunks - 1) / chunks;
}

static enum status plan_index(struct shard_writing *writing, size_t count, bool compress)
{
    enum status st = STATUS_OK;
    struct shard_index_box *added = NULL;

    for (size_t i = 0; i < count; i++) {
        const struct shard_box *box = &writing->boxes[i];
        uint64_t bytes = box_count(&box->box) * manifest_type_bytes(box->type);
        enum shard_encoding encoding =
            compress && bytes >= SHARD_COMPRESS_BYTES_MIN ? SHARD_SHUFFLE_ZSTD : SHARD_RAW;
        if (bytes / box->box.extent[0] > SHARD_INDEX_CHUNK_BYTES_MAX) {
            return FAIL(STATUS_UNSUPPORTED, "one row of '%s' has %llu bytes, at most %llu are read",
                        box->tensor, (unsigned long long)(bytes / box->box.extent[0]),
                        (unsigned long long)SHARD_INDEX_CHUNK_BYTES_MAX);
        }
        TRY(st,
            shard_index_add(&writing->index, box->tensor, box->type, &box->box, encoding,
                            choose_chunk_rows(box), &added),
            done);
    }
done:
    return st;
}

static const char *chunk_data(const struct shard_box *box, const struct shard_index_box *entry,
                              size_t chunk)
{
    return (const char *)box->data + chunk * entry->chunk_rows * shard_index_row_bytes(entry);
}

/* One chunk of a raw box: hashed, then written where HDF5 has put the dataset. */
struct raw_chunk {
    struct shard_writing *writing;
    size_t box;
};

static enum status write_raw_chunk(void *context, size_t number)
{
    const struct raw_chunk *raw = context;
    struct shard_index_box *entry = &raw->writing->index.boxes[raw->box];
    struct shard_chunk *chunk = &entry->chunks[number];
    const char *data = chunk_data(&raw->writing->boxes[raw->box], entry, number);

    chunk->hash = hash_bytes64(data, (size_t)chunk->bytes);
    return fs_pwrite(raw->writing->vfd.file, data, (size_t)chunk->bytes, chunk->offset);
}

static enum status write_raw_box(struct shard_writing *writing, size_t number)
{
    struct shard_index_box *entry = &writing->index.boxes[number];
    struct raw_chunk raw = {writing, number};
    haddr_t at = H5Dget_offset(writing->datasets[number]);
    uint64_t row_bytes = shard_index_row_bytes(entry);

    if (at == HADDR_UNDEF) {
        return fail_hdf5(writing, "place dataset", entry->tensor);
    }
    for (size_t c = 0; c < entry->chunk_count; c++) {
        entry->chunks[c].offset = at + c * entry->chunk_rows * row_bytes;
        entry->chunks[c].bytes = shard_index_chunk_rows(entry, c) * row_bytes;
    }
    return thread_pool_run(writing->pool, write_raw_chunk, &raw, entry->chunk_count);
}

/* What one chunk of a batch is encoded with. Kept from batch to batch, so that no chunk pays for
 * fresh pages. */
struct encode_slot {
    struct codec *codec;
    unsigned char *padded; /* a last chunk, filled up with zero rows */
    unsigned char *encoded;
    size_t padded_max, encoded_max, bytes;
};

/* A batch of chunks of one box, encoded in parallel, then handed to HDF5 one by one. */
struct encode_batch {
    struct shard_writing *writing;
    size_t box, first;
    struct encode_slot slots[ENCODE_BATCH_MAX];
};

static enum status encode_chunk(void *context, size_t index)
{
    struct encode_batch *batch = context;
    struct encode_slot *slot = &batch->slots[index];
    enum status st = STATUS_OK;
    struct shard_index_box *entry = &batch->writing->index.boxes[batch->box];
    size_t number = batch->first + index;
    size_t whole = (size_t)(entry->chunk_rows * shard_index_row_bytes(entry));
    size_t held = (size_t)(shard_index_chunk_rows(entry, number) * shard_index_row_bytes(entry));
    const void *data = chunk_data(&batch->writing->boxes[batch->box], entry, number);

    if (slot->codec == NULL) {
        TRY(st, codec_create(&slot->codec), done);
    }
    if (held < whole) {
        TRY(st, mem_reserve((void **)&slot->padded, &slot->padded_max, whole), done);
        memcpy(slot->padded, data, held);
        memset(slot->padded + held, 0, whole - held);
        data = slot->padded;
    }
    TRY(st, mem_reserve((void **)&slot->encoded, &slot->encoded_max, codec_bound(whole)), done);
    TRY(st,
        codec_encode(slot->codec, data, whole, manifest_type_bytes(entry->type), slot->encoded,
                     &slot->bytes),
        done);
    entry->chunks[number].hash = hash_bytes64(slot->encoded, slot->bytes);
    entry->chunks[number].bytes = slot->bytes;
done:
    return st;
}

static enum status store_batch(struct encode_batch *batch, size_t count)
{
    struct shard_writing *writing = batch->writing;
    struct shard_index_box *entry = &writing->index.boxes[batch->box];
    hid_t dataset = writing->datasets[batch->box];

    for (size_t i = 0; i < count; i++) {
        const struct encode_slot *slot = &batch->slots[i];
        size_t number = batch->first + i;
        hsize_t at[BOX_DIMS_MAX] = {number * entry->chunk_rows};
        haddr_t address = HADDR_UNDEF;
        hsize_t stored = 0;
        unsigned mask = 0;
        if (H5Dwrite_chunk(dataset, H5P_DEFAULT, 0, at, slot->bytes, slot->encoded) < 0 ||
            H5Dget_chunk_info_by_coord(dataset, at, &mask, &address, &stored) < 0 ||
            address == HADDR_UNDEF || stored != slot->bytes) {
            return fail_hdf5(writing, "write a chunk of", entry->tensor);
        }
        entry->chunks[number].offset = address;
    }
    return STATUS_OK;
}

static void free_batch(struct encode_batch *batch)
{
    for (size_t i = 0; i < ENCODE_BATCH_MAX; i++) {
        codec_destroy(&batch->slots[i].codec);
        mem_free(&batch->slots[i].padded);
        mem_free(&batch->slots[i].encoded);
    }
}

static enum status write_encoded_box(struct encode_batch *batch, size_t number, size_t batch_max)
{
    enum status st = STATUS_OK;
    size_t chunk_count = batch->writing->index.boxes[number].chunk_count;

    batch->box = number;
    for (batch->first = 0; batch->first < chunk_count; batch->first += batch_max) {
        size_t left = chunk_count - batch->first;
        size_t count = left < batch_max ? left : batch_max;
        TRY(st, thread_pool_run(batch->writing->pool, encode_chunk, batch, count), done);
        TRY(st, store_batch(batch, count), done);
    }
done:
    return st;
}

static enum status write_boxes(struct shard_writing *writing, size_t count)
{
    enum status st = STATUS_OK;
    struct encode_batch *batch = NULL;
    size_t batch_max = (size_t)thread_cpu_count() * 2;

    batch_max = batch_max < ENCODE_BATCH_MAX ? batch_max : ENCODE_BATCH_MAX;
    TRY(st, mem_alloc(&batch, 1, sizeof *batch), done);
    batch->writing = writing;
    for (size_t i = 0; i < count; i++) {
        if (writing->index.boxes[i].encoding == SHARD_RAW) {
            TRY(st, write_raw_box(writing, i), done);
        } else {
            TRY(st, write_encoded_box(batch, i, batch_max), done);
        }
    }
done:
    if (batch != NULL) {
        free_batch(batch);
    }
    mem_free(&batch);
    return st;
}

static enum status write_index(struct shard_writing *writing, struct manifest_file *out_file)
{
    enum status st = STATUS_OK;
    char *text = NULL;
    hid_t list = -1, space = -1, dataset = -1;

    TRY(st, shard_index_print(&writing->index, &text), done);
    hsize_t bytes = strlen(text);
    list = H5Pcreate(H5P_DATASET_CREATE);
    (void)H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY);
    (void)H5Pset_fill_time(list, H5D_FILL_TIME_NEVER);
    space = H5Screate_simple(1, &bytes, NULL);
    dataset =
        H5Dcreate2(writing->file, "index", H5T_STD_U8LE, space, H5P_DEFAULT, list, H5P_DEFAULT);
    haddr_t at = dataset < 0 ? HADDR_UNDEF : H5Dget_offset(dataset);
    if (at == HADDR_UNDEF) {
        st = fail_hdf5(writing, "create dataset", "index");
        goto done;
    }
    TRY(st, fs_pwrite(writing->vfd.file, text, (size_t)bytes, at), done);
    out_file->index_offset = at;
    out_file->index_bytes = bytes;
    out_file->index_hash = hash_bytes128(text, (size_t)bytes);
done:
    (void)H5Dclose(dataset);
    (void)H5Sclose(space);
    (void)H5Pclose(list);
    mem_free(&text);
    return st;
}

static enum status create_file(struct shard_writing *writing)
{
    enum status st = STATUS_OK;

    TRY(st, shard_vfd_access(&writing->vfd, &writing->access), done);
    /* Payload on page borders; a group's structure stays packed. */
    (void)H5Pset_alignment(writing->access, SHARD_ALIGN, SHARD_ALIGN);
    writing->file = H5Fcreate(writing->path, H5F_ACC_TRUNC, H5P_DEFAULT, writing->access);
    if (writing->file < 0) {
        st = fail_hdf5(writing, "create", writing->path);
    }
done:
    return st;
}

static void close_hdf5(struct shard_writing *writing, size_t count)
{
    for (size_t i = 0; writing->datasets != NULL && i < count; i++) {
        if (writing->datasets[i] >= 0) {
            (void)H5Dclose(writing->datasets[i]);
        }
    }
    if (writing->file >= 0) {
        (void)H5Fclose(writing->file);
    }
    if (writing->access >= 0) {
        (void)H5Pclose(writing->access);
    }
    writing->file = writing->access = -1;
    mem_free(&writing->datasets);
}

static enum status write_hdf5(struct shard_writing *writing, const struct shard_identity *identity,
                              size_t count, struct manifest_file *out_file)
{
    enum status st = STATUS_OK;

    TRY(st, mem_alloc(&writing->datasets, count, sizeof *writing->datasets), done);
    for (size_t i = 0; i < count; i++) {
        writing->datasets[i] = -1;
    }
    TRY(st, create_file(writing), done);
    TRY(st, add_identity(writing, identity), done);
    for (size_t i = 0; i < count; i++) {
        TRY(st, create_dataset(writing, i), done);
    }
    TRY(st, write_boxes(writing, count), done);
    TRY(st, write_index(writing, out_file), done);
done:
    close_hdf5(writing, count);
    if (st == STATUS_OK) {
        st = shard_vfd_status(&writing->vfd); /* what closing wrote */
    }
    return st;
}

/* The whole file's hash, from what the file system gives back. */
static enum status read_back(struct fs_file *file, struct manifest_file *out_file)
{
    enum status st = STATUS_OK;
    void *buffer = NULL;
    struct hash_stream *hash = hash_stream_create();

    if (hash == NULL) {
        return FAIL(STATUS_NO_MEMORY, "cannot allocate a hash");
    }
    TRY(st, mem_alloc(&buffer, READ_BACK_BYTES, 1), done);
    for (uint64_t at = 0; at < out_file->bytes; at += READ_BACK_BYTES) {
        uint64_t left = out_file->bytes - at;
        size_t now = left < READ_BACK_BYTES ? (size_t)left : READ_BACK_BYTES;
        TRY(st, fs_pread(file, buffer, now, at), done);
        hash_stream_add(hash, buffer, now);
    }
    out_file->hash = hash_stream_get(hash);
done:
    mem_free(&buffer);
    hash_stream_destroy(hash);
    return st;
}

static uint64_t estimate_bytes(const struct shard_box *boxes, size_t count)
{
    uint64_t bytes = RESERVE_STRUCTURE;

    for (size_t i = 0; i < count; i++) {
        uint64_t raw = box_count(&boxes[i].box) * manifest_type_bytes(boxes[i].type);
        bytes += raw + raw / 128 + RESERVE_BOX; /* what does not compress grows a little */
    }
    return bytes;
}

enum status shard_write(struct fs *fs, const char *path, const struct shard_identity *identity,
                        const struct shard_box *boxes, size_t count, bool compress,
                        struct thread_pool *pool, struct manifest_file *out_file)
{
    enum status st = STATUS_OK;
    struct shard_writing writing = {
        .path = path, .access = -1, .file = -1, .boxes = boxes, .pool = pool};

    TRY(st, set_up(), done);
    TRY(st, fs_open(fs, path, FS_CREATE_NEW, &writing.vfd.file), done);
    TRY(st, fs_reserve(writing.vfd.file, estimate_bytes(boxes, count)), done);
    TRY(st, plan_index(&writing, count, compress), done);
    TRY(st, write_hdf5(&writing, identity, count, out_file), done);
    out_file->bytes = writing.vfd.end;
    TRY(st, fs_truncate(writing.vfd.file, out_file->bytes), done);
    TRY(st, read_back(writing.vfd.file, out_file), done);
    TRY(st, fs_sync(writing.vfd.file), done);
    TRY(st, fs_drop_cache(writing.vfd.file), done);
done:
    shard_index_deinit(&writing.index);
    fs_close(&writing.vfd.file);
    return st;
}
