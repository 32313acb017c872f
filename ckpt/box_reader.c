/* Boxes out of shards; see box_reader.h.
 *
 * A read is planned as pieces (which part of which stored box), cut into the chunks that hold them;
 * each chunk is read whole, checked, decoded, and its part copied to the target. A chunk whose rows
 * are the target's own is read or decoded straight into it. After a failure the targets hold
 * anything.
 */
#include "ckpt/box_reader.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/hash.h"
#include "ckpt/base/mem.h"
#include "ckpt/codec.h"
#include "ckpt/shard_index.h"

/* One stored box of one file, sorted by tensor. */
struct stored_box {
    const struct shard_index_box *entry;
    size_t file;
};

/* Memory of one thread at a time, kept from chunk to chunk. */
struct workspace {
    struct codec *codec; /* NULL before the first encoded chunk */
    char *stored, *rows;
    size_t stored_max, rows_max;
};

struct box_reader {
    struct fs *fs;
    const char *directory;
    const struct manifest *manifest;
    struct thread_pool *pool;
    struct shard_index *indexes; /* of each file */
    struct stored_box *stored;
    size_t stored_count;
    pthread_mutex_t mutex;
    struct workspace *idle[THREAD_COUNT_MAX]; /* that no thread uses now */
    int idle_count;
};

/* One chunk to read, and the part of it that one target wants. */
struct chunk_task {
    const struct box_target *target;
    const struct stored_box *stored;
    size_t chunk;
    struct box part;
};

struct task_list {
    struct box_reader *reader;
    struct chunk_task *tasks;
    size_t count, capacity;
};

static int compare_stored(const void *a, const void *b)
{
    return strcmp(((const struct stored_box *)a)->entry->tensor,
                  ((const struct stored_box *)b)->entry->tensor);
}

static enum status read_index(void *context, size_t number)
{
    struct box_reader *reader = context;
    const struct manifest_file *file = &reader->manifest->files[number];
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX];

    TRY(st, fs_join(path, reader->directory, file->name), done);
    TRY(st, shard_index_read(reader->fs, path, reader->manifest, file, &reader->indexes[number]),
        done);
done:
    return st;
}

static enum status sort_stored(struct box_reader *reader)
{
    enum status st = STATUS_OK;
    size_t total = 0;

    for (size_t f = 0; f < reader->manifest->file_count; f++) {
        total += reader->indexes[f].count;
    }
    TRY(st, mem_alloc(&reader->stored, total, sizeof *reader->stored), done);
    for (size_t f = 0; f < reader->manifest->file_count; f++) {
        for (size_t b = 0; b < reader->indexes[f].count; b++) {
            reader->stored[reader->stored_count++] =
                (struct stored_box){&reader->indexes[f].boxes[b], f};
        }
    }
    if (total > 1) {
        qsort(reader->stored, total, sizeof *reader->stored, compare_stored);
    }
done:
    return st;
}

static void destroy_workspace(struct workspace **workspace)
{
    if (*workspace != NULL) {
        codec_destroy(&(*workspace)->codec);
        mem_free(&(*workspace)->stored);
        mem_free(&(*workspace)->rows);
        mem_free(workspace);
    }
}

enum status box_reader_open(struct fs *fs, const char *directory, const struct manifest *manifest,
                            struct thread_pool *pool, struct box_reader **out_reader)
{
    enum status st = STATUS_OK;
    struct box_reader *reader = NULL;

    *out_reader = NULL;
    TRY(st, mem_alloc(&reader, 1, sizeof *reader), done);
    reader->fs = fs;
    reader->directory = directory;
    reader->manifest = manifest;
    reader->pool = pool;
    CHECK(pthread_mutex_init(&reader->mutex, NULL) == 0);
    TRY(st, mem_alloc(&reader->indexes, manifest->file_count, sizeof *reader->indexes), done);
    TRY(st, thread_pool_run(pool, read_index, reader, manifest->file_count), done);
    TRY(st, sort_stored(reader), done);
done:
    if (st != STATUS_OK) {
        box_reader_close(&reader);
    }
    *out_reader = reader;
    return st;
}

void box_reader_close(struct box_reader **reader)
{
    struct box_reader *closing = *reader;

    if (closing == NULL) {
        return;
    }
    for (size_t f = 0; closing->indexes != NULL && f < closing->manifest->file_count; f++) {
        shard_index_deinit(&closing->indexes[f]);
    }
    while (closing->idle_count > 0) {
        destroy_workspace(&closing->idle[--closing->idle_count]);
    }
    mem_free(&closing->indexes);
    mem_free(&closing->stored);
    (void)pthread_mutex_destroy(&closing->mutex);
    mem_free(reader);
}

static enum status take_workspace(struct box_reader *reader, struct workspace **out_workspace)
{
    *out_workspace = NULL;
    (void)pthread_mutex_lock(&reader->mutex);
    if (reader->idle_count > 0) {
        *out_workspace = reader->idle[--reader->idle_count];
    }
    (void)pthread_mutex_unlock(&reader->mutex);
    return *out_workspace != NULL ? STATUS_OK : mem_alloc(out_workspace, 1, sizeof **out_workspace);
}

/* At most as many are out as the pool has threads, so there is room. */
static void give_workspace(struct box_reader *reader, struct workspace *workspace)
{
    if (workspace != NULL) {
        (void)pthread_mutex_lock(&reader->mutex);
        CHECK(reader->idle_count < THREAD_COUNT_MAX);
        reader->idle[reader->idle_count++] = workspace;
        (void)pthread_mutex_unlock(&reader->mutex);
    }
}

static enum status read_chunk(struct box_reader *reader, const struct stored_box *stored,
                              size_t number, void *out)
{
    const struct shard_chunk *chunk = &stored->entry->chunks[number];
    enum status st = STATUS_OK;
    struct fs_file *file = NULL;
    char path[FS_PATH_MAX];

    TRY(st, fs_join(path, reader->directory, reader->manifest->files[stored->file].name), done);
    TRY(st, fs_open(reader->fs, path, FS_READ, &file), done);
    TRY(st, fs_pread(file, out, (size_t)chunk->bytes, chunk->offset), done);
    if (hash_bytes64(out, (size_t)chunk->bytes) != chunk->hash) {
        st = FAIL(STATUS_CORRUPT, "'%s' is damaged: %llu bytes at %llu, of '%s', have another hash",
                  path, (unsigned long long)chunk->bytes, (unsigned long long)chunk->offset,
                  stored->entry->tensor);
    }
done:
    fs_close(&file);
    return st;
}

static struct box chunk_box(const struct shard_index_box *entry, size_t number)
{
    struct box box = entry->box;

    box.offset[0] += number * entry->chunk_rows;
    box.extent[0] = shard_index_chunk_rows(entry, number);
    return box;
}

/* Where the chunk belongs in the target's memory when all its rows, padding included, are whole
 * rows of the target; else NULL. */
static char *find_place(const struct chunk_task *task)
{
    const struct shard_index_box *entry = task->stored->entry;
    const struct box *to = &task->target->box;
    struct box from = chunk_box(entry, task->chunk);
    bool is_whole = box_equal(&task->part, &from) &&
                    (entry->encoding == SHARD_RAW || from.extent[0] == entry->chunk_rows);

    for (int d = 1; d < from.dims; d++) {
        is_whole = is_whole && from.extent[d] == to->extent[d];
    }
    return is_whole ? (char *)task->target->data +
                          (from.offset[0] - to->offset[0]) * shard_index_row_bytes(entry)
                    : NULL;
}

/* Reads the chunk, checked and decoded: into `place`, or, when that is NULL, into the workspace.
 * out_rows is where it is. */
static enum status load_chunk(struct box_reader *reader, struct workspace *workspace,
                              const struct chunk_task *task, char *place, char **out_rows)
{
    enum status st = STATUS_OK;
    const struct shard_index_box *entry = task->stored->entry;
    size_t stored_bytes = (size_t)entry->chunks[task->chunk].bytes;
    size_t rows_bytes = (size_t)(entry->chunk_rows * shard_index_row_bytes(entry));
    bool is_raw = entry->encoding == SHARD_RAW;
    char *stored = is_raw ? place : NULL;

    if (stored == NULL) {
        TRY(st, mem_reserve((void **)&workspace->stored, &workspace->stored_max, stored_bytes),
            done);
        stored = workspace->stored;
    }
    TRY(st, read_chunk(reader, task->stored, task->chunk, stored), done);
    *out_rows = stored;
    if (is_raw) {
        goto done;
    }
    if (place == NULL) {
        TRY(st, mem_reserve((void **)&workspace->rows, &workspace->rows_max, rows_bytes), done);
        place = workspace->rows;
    }
    if (workspace->codec == NULL) {
        TRY(st, codec_create(&workspace->codec), done);
    }
    TRY(st,
        codec_decode(workspace->codec, stored, stored_bytes, manifest_type_bytes(entry->type),
                     place, rows_bytes),
        done);
    *out_rows = place;
done:
    return st;
}

static enum status run_task(void *context, size_t index)
{
    struct task_list *list = context;
    const struct chunk_task *task = &list->tasks[index];
    const struct shard_index_box *entry = task->stored->entry;
    struct box from = chunk_box(entry, task->chunk);
    enum status st = STATUS_OK;
    struct workspace *workspace = NULL;
    char *place = find_place(task), *rows = NULL;

    TRY(st, take_workspace(list->reader, &workspace), done);
    TRY(st, load_chunk(list->reader, workspace, task, place, &rows), done);
    if (place == NULL) {
        box_copy(&task->part, manifest_type_bytes(entry->type), &task->target->box,
                 task->target->data, &from, rows);
    }
done:
    give_workspace(list->reader, workspace);
    return st;
}

/* The chunks of one stored box that hold a piece. */
static enum status add_tasks(struct task_list *list, const struct box_target *target,
                             const struct stored_box *stored, const struct box *piece)
{
    enum status st = STATUS_OK;
    const struct shard_index_box *entry = stored->entry;
    uint64_t begin = piece->offset[0] - entry->box.offset[0];
    size_t last = (size_t)((begin + piece->extent[0] - 1) / entry->chunk_rows);

    for (size_t c = (size_t)(begin / entry->chunk_rows); c <= last; c++) {
        struct box rows = chunk_box(entry, c);
        struct chunk_task task = {target, stored, c, {0}};
        CHECK(box_intersect(piece, &rows, &task.part));
        TRY(st,
            mem_grow((void **)&list->tasks, &list->capacity, list->count + 1, sizeof *list->tasks),
            done);
        list->tasks[list->count++] = task;
    }
done:
    return st;
}

/* Where the tensor's stored boxes begin, and how many there are. */
static size_t find_stored(const struct box_reader *reader, const char *tensor, size_t *out_count)
{
    size_t low = 0, high = reader->stored_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(reader->stored[middle].entry->tensor, tensor) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    *out_count = 0;
    while (low + *out_count < reader->stored_count &&
           strcmp(reader->stored[low + *out_count].entry->tensor, tensor) == 0) {
        (*out_count)++;
    }
    return low;
}

static enum status plan_target(struct task_list *list, const struct box_target *target)
{
    enum status st = STATUS_OK;
    struct shard_map_stored *boxes = NULL;
    struct shard_map_piece *pieces = NULL;
    size_t count = 0, piece_count = 0;
    size_t first = find_stored(list->reader, target->tensor, &count);

    TRY(st, mem_alloc(&boxes, count, sizeof *boxes), done);
    for (size_t i = 0; i < count; i++) {
        boxes[i] = (struct shard_map_stored){list->reader->stored[first + i].entry->box, first + i};
    }
    TRY(st, shard_map_plan(target->tensor, &target->box, boxes, count, &pieces, &piece_count),
        done);
    for (size_t i = 0; i < piece_count; i++) {
        TRY(st,
            add_tasks(list, target, &list->reader->stored[boxes[pieces[i].stored].source],
                      &pieces[i].part),
            done);
    }
done:
    mem_free(&pieces);
    mem_free(&boxes);
    return st;
}

enum status box_reader_read(struct box_reader *reader, const struct box_target *targets,
                            size_t count)
{
    enum status st = STATUS_OK;
    struct task_list list = {.reader = reader};

    for (size_t i = 0; i < count; i++) {
        TRY(st, plan_target(&list, &targets[i]), done);
    }
    TRY(st, thread_pool_run(reader->pool, run_task, &list, list.count), done);
done:
    mem_free(&list.tasks);
    return st;
}
