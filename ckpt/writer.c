/* Saves: from views of the ranks' tensors to a committed checkpoint; see ckpt.h.
 *
 *     stage    rank 0: lease checked, SAVE/.epoch-<E>/step_N made; its name broadcast
 *     write    every rank: its owned boxes to its shard, synced (shard.c)
 *     gather   every rank's commit_record by message; one error fails the save on all
 *     publish  rank 0: manifest, rename (meta/commit); result broadcast
 *     prune    rank 0: retention, after the commit is durable
 *
 * Before it: train/train_state. After it: meta/commit. Between two phases all ranks agree on the
 * status, so that none waits for one that has given up.
 */
#include "ckpt/ckpt.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/agree.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/hash.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"
#include "ckpt/meta/commit.h"
#include "ckpt/meta/lease.h"
#include "ckpt/meta/nonce.h"
#include "ckpt/shard.h"
#include "ckpt/state_hash.h"
#include "ckpt/tensor_table.h"

#define PROBE_WAIT_MS 40000 /* longer than an NFS client remembers that a name was not there */
#define PROBE_PAUSE_MS 100
#define HOST_MAX 256

struct ckpt_writer {
    struct ckpt_writer_config config;
    char save[FS_PATH_MAX];
    char run_id[MANIFEST_RUN_ID_MAX];
    bool compress;
    struct lease *lease; /* rank 0's */
    uint64_t epoch;
    struct thread_pool *pool;
};

/* What rank 0 tells the others about the directory. */
struct probe {
    char nonce[NONCE_TEXT_MAX];
    char host[HOST_MAX];
    char save[FS_PATH_MAX];
    uint64_t epoch;
};

static enum status probe_path(const char *save, const char *nonce, char out_path[FS_PATH_MAX])
{
    char name[NONCE_TEXT_MAX + 16];

    (void)snprintf(name, sizeof name, FS_TEMPORARY_PREFIX "probe-%s", nonce);
    return fs_join(out_path, save, name);
}

static enum status take_directory(struct ckpt_writer *writer, struct probe *probe)
{
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX];

    TRY(st, fs_make_dirs(writer->config.fs, writer->save), done);
    TRY(st, lease_acquire(writer->config.fs, writer->save, writer->run_id, &writer->lease), done);
    probe->epoch = lease_epoch(writer->lease);
    (void)gethostname(probe->host, sizeof probe->host - 1);
    memcpy(probe->save, writer->save, sizeof probe->save);
    TRY(st, nonce_make(probe->nonce), done);
    TRY(st, probe_path(writer->save, probe->nonce, path), done);
    TRY(st, fs_replace_file(writer->config.fs, path, probe->nonce, strlen(probe->nonce)), done);
done:
    return st;
}

/* A fresh name with a fresh nonce in it: seen by this rank, it proves one directory. */
static enum status look_for_probe(struct ckpt_writer *writer, const struct probe *probe)
{
    enum status st = STATUS_OK;
    struct deadline deadline = deadline_in_ms(PROBE_WAIT_MS);
    char path[FS_PATH_MAX], host[HOST_MAX] = "";

    TRY(st, probe_path(writer->save, probe->nonce, path), done);
    for (;;) {
        char *text = NULL;
        size_t bytes = 0;
        st = fs_read_file(writer->config.fs, path, NONCE_TEXT_MAX, &text, &bytes);
        bool is_it = st == STATUS_OK && strcmp(text, probe->nonce) == 0;
        mem_free(&text);
        if (is_it || (st != STATUS_OK && st != STATUS_NOT_FOUND)) {
            return st;
        }
        (void)gethostname(host, sizeof host - 1);
        /* On one machine there is no cache to wait for. */
        if (strcmp(host, probe->host) == 0 || deadline_passed(deadline)) {
            break;
        }
        clock_sleep_ms(PROBE_PAUSE_MS);
    }
    st = FAIL(STATUS_USAGE,
              "'%.1000s' on host '%s' is not the directory '%.1000s' of rank 0 on host '%s'; give "
              "all ranks the same --save on a shared file system",
              writer->save, host, probe->save, probe->host);
done:
    return st;
}

static enum status prove_same_directory(struct ckpt_writer *writer)
{
    const struct ckpt_group *group = &writer->config.group;
    enum status st = STATUS_OK;
    struct probe probe = {.nonce = ""};
    char path[FS_PATH_MAX];

    if (group->rank == 0) {
        st = take_directory(writer, &probe);
    }
    TRY(st, agree_with_first(group, st), done);
    TRY(st, agree_broadcast(group, &probe, sizeof probe), done);
    writer->epoch = probe.epoch;
    st = group->rank == 0 ? STATUS_OK : look_for_probe(writer, &probe);
    st = agree(group, st);
    if (group->rank == 0 && probe_path(writer->save, probe.nonce, path) == STATUS_OK) {
        struct status_record record;
        status_take(&record);
        (void)!fs_unlink(writer->config.fs, path); /* a left probe is harmless */
        (void)status_give(&record);
    }
done:
    return st;
}

enum status ckpt_writer_open(const struct ckpt_writer_config *config,
                             struct ckpt_writer **out_writer)
{
    enum status st = STATUS_OK;
    struct ckpt_writer *writer = NULL;

    *out_writer = NULL;
    CHECK(strcmp(config->compression, "zstd") == 0 || strcmp(config->compression, "none") == 0);
    CHECK(strlen(config->save) < sizeof writer->save);
    CHECK(strlen(config->run_id) < sizeof writer->run_id);
    st = mem_alloc(&writer, 1, sizeof *writer);
    st = st == STATUS_OK ? thread_pool_create(config->thread_count, &writer->pool) : st;
    TRY(st, agree(&config->group, st), done);
    writer->config = *config;
    writer->compress = strcmp(config->compression, "zstd") == 0;
    memcpy(writer->save, config->save, strlen(config->save) + 1);
    memcpy(writer->run_id, config->run_id, strlen(config->run_id) + 1);
    TRY(st, prove_same_directory(writer), done);
done:
    if (st != STATUS_OK) {
        ckpt_writer_close(&writer);
    }
    *out_writer = writer;
    return st;
}

uint64_t ckpt_writer_epoch(const struct ckpt_writer *writer)
{
    return writer->epoch;
}

void ckpt_writer_close(struct ckpt_writer **writer)
{
    if (*writer != NULL) {
        lease_release(&(*writer)->lease);
        thread_pool_destroy((*writer)->pool);
        mem_free(writer);
    }
}

uint64_t ckpt_estimate_bytes(const struct ckpt_tensor *tensors, size_t count)
{
    uint64_t bytes = SHARD_ALIGN;

    for (size_t i = 0; i < count; i++) {
        bytes += box_count(&tensors[i].owned) * manifest_type_bytes(tensors[i].type) + SHARD_ALIGN;
    }
    return bytes;
}

/* The part of the tensor's memory that the rank owns: contiguous, since only whole rows of the
 * first dimension are left out. */
static const void *owned_data(const struct ckpt_tensor *tensor)
{
    uint64_t row = box_count(&tensor->box) / tensor->box.extent[0];
    uint64_t first = tensor->owned.offset[0] - tensor->box.offset[0];

    return (const char *)tensor->data + first * row * manifest_type_bytes(tensor->type);
}

static size_t list_boxes(const struct ckpt_save *save, struct shard_box *boxes)
{
    size_t count = 0;

    for (size_t i = 0; i < save->tensor_count; i++) {
        const struct ckpt_tensor *tensor = &save->tensors[i];
        struct box common;
        if (box_is_empty(&tensor->owned)) {
            continue;
        }
        CHECK(box_intersect(&tensor->owned, &tensor->box, &common) &&
              box_equal(&common, &tensor->owned));
        struct shard_box *box = &boxes[count++];
        *box = (struct shard_box){.tensor = tensor->name,
                                  .type = tensor->type,
                                  .dims = tensor->dims,
                                  .box = tensor->owned,
                                  .data = owned_data(tensor)};
        memcpy(box->shape, tensor->shape, sizeof box->shape);
    }
    return count;
}

static enum status write_shard(struct ckpt_writer *writer, const struct ckpt_save *save,
                               const char *folder, struct commit_record *record)
{
    enum status st = STATUS_OK;
    struct shard_box *boxes = NULL;
    char path[FS_PATH_MAX];
    struct shard_identity identity = {
        .step = save->step,
        .epoch = writer->epoch,
        .coords = writer->config.coords,
        .layout = writer->config.layout,
        .run_id = writer->run_id,
    };

    record->file.coords = writer->config.coords;
    layout_shard_name(writer->config.coords, record->file.name);
    TRY(st, mem_alloc(&boxes, save->tensor_count, sizeof *boxes), done);
    size_t count = list_boxes(save, boxes);
    TRY(st, fs_join(path, folder, record->file.name), done);
    TRY(st,
        state_hash_owned(save->tensors, save->tensor_count, writer->pool, &record->state_hash_sum),
        done);
    TRY(st,
        shard_write(writer->config.fs, path, &identity, boxes, count, writer->compress,
                    writer->pool, &record->file),
        done);
done:
    mem_free(&boxes);
    return st;
}

/* The staging folder as this rank spells it: its own --save, then what rank 0 has made. */
static enum status stage(struct ckpt_writer *writer, uint64_t step, char out_folder[FS_PATH_MAX])
{
    const struct ckpt_group *group = &writer->config.group;
    enum status st = STATUS_OK;
    char tail[FS_PATH_MAX] = "";

    if (group->rank == 0) {
        st = lease_check(writer->lease);
        st =
            st == STATUS_OK ? commit_begin(writer->config.fs, writer->lease, step, out_folder) : st;
        if (st == STATUS_OK) {
            size_t head = strlen(writer->save);
            CHECK(strncmp(out_folder, writer->save, head) == 0);
            while (out_folder[head] == '/') {
                head++;
            }
            memcpy(tail, out_folder + head, strlen(out_folder + head) + 1);
        }
    }
    TRY(st, agree_with_first(group, st), done);
    TRY(st, agree_broadcast(group, tail, sizeof tail), done);
    TRY(st, fs_join(out_folder, writer->save, tail), done);
done:
    return st;
}

static enum status fill_manifest(const struct ckpt_writer *writer, const struct ckpt_save *save,
                                 const struct commit_record *records, struct manifest *manifest)
{
    enum status st = STATUS_OK;
    uint64_t sum = 0;

    manifest->step = save->step;
    manifest->parent_step = save->parent_step;
    manifest->layout = writer->config.layout;
    manifest->created_wall_ns = clock_wall_ns();
    memcpy(manifest->run_id, writer->run_id, sizeof manifest->run_id);
    (void)snprintf(manifest->compression, sizeof manifest->compression, "%s",
                   writer->config.compression);
    cJSON_Delete(manifest->options);
    cJSON_Delete(manifest->state);
    manifest->options = cJSON_Duplicate(save->options, true);
    manifest->state = cJSON_Duplicate(save->state, true);
    if (manifest->options == NULL || manifest->state == NULL) {
        return FAIL(STATUS_NO_MEMORY, "cannot copy the options into the manifest");
    }
    for (int rank = 0; rank < writer->config.group.size; rank++) {
        if (records[rank].epoch != writer->epoch || records[rank].step != save->step) {
            return FAIL(STATUS_FAILED,
                        "rank %d reports a shard of step %" PRIu64 ", epoch %" PRIu64, rank,
                        records[rank].step, records[rank].epoch);
        }
        TRY(st, manifest_add_file(manifest, &records[rank].file), done);
        sum = hash_state_add(sum, records[rank].state_hash_sum);
    }
    manifest->state_hash = hash_state_finish(sum, save->step);
done:
    return st;
}

/* Rank 0's part of the end. */
static enum status publish(struct ckpt_writer *writer, const struct ckpt_save *save,
                           const struct commit_record *records, const char *folder,
                           struct manifest *manifest)
{
    enum status st = STATUS_OK;

    TRY(st, fill_manifest(writer, save, records, manifest), done);
    TRY(st, commit_publish(writer->config.fs, writer->save, writer->lease, manifest, folder), done);
done:
    return st;
}

static void prune(struct ckpt_writer *writer)
{
    size_t deleted = 0;

    if (writer->config.keep_last > 0 &&
        catalog_prune(writer->config.fs, writer->save, writer->config.keep_last,
                      writer->config.keep_every, &deleted) != STATUS_OK) {
        log_warn("old checkpoints were not deleted: %s", status_last()->message);
    }
}

struct outcome {
    uint64_t state_hash, bytes;
};

/* Shards written, records exchanged, checkpoint visible. */
static enum status write_and_commit(struct ckpt_writer *writer, const struct ckpt_save *save,
                                    const char *folder, struct commit_record *records,
                                    struct manifest *manifest, struct ckpt_save_result *result)
{
    const struct ckpt_group *group = &writer->config.group;
    enum status st = STATUS_OK;
    struct outcome outcome = {0, 0};
    struct commit_record mine = {.epoch = writer->epoch, .step = save->step, .rank = group->rank};
    int64_t begin_ns = clock_monotonic_ns();

    TRY(st, agree(group, write_shard(writer, save, folder, &mine)), done);
    result->write_s = (double)(clock_monotonic_ns() - begin_ns) * 1e-9;
    begin_ns = clock_monotonic_ns();
    TRY(st, agree_gather(group, &mine, sizeof mine, records), done);
    TRY(st, agree(group, tensor_table_gather(group, save->tensors, save->tensor_count, manifest)),
        done);
    if (group->rank == 0) {
        st = publish(writer, save, records, folder, manifest);
        outcome = (struct outcome){manifest->state_hash, manifest_total_bytes(manifest)};
    }
    TRY(st, agree_with_first(group, st), done);
    TRY(st, agree_broadcast(group, &outcome, sizeof outcome), done);
    result->commit_s = (double)(clock_monotonic_ns() - begin_ns) * 1e-9;
    result->state_hash = outcome.state_hash;
    result->bytes = outcome.bytes;
done:
    return st;
}

enum status ckpt_save(struct ckpt_writer *writer, const struct ckpt_save *save,
                      struct ckpt_save_result *out_result)
{
    const struct ckpt_group *group = &writer->config.group;
    enum status st = STATUS_OK;
    struct commit_record *records = NULL;
    struct manifest manifest = {0};
    char folder[FS_PATH_MAX] = "";

    *out_result = (struct ckpt_save_result){0};
    st = mem_alloc(&records, (size_t)group->size, sizeof *records);
    st = st == STATUS_OK ? manifest_init(&manifest) : st;
    TRY(st, agree(group, st), done);
    TRY(st, stage(writer, save->step, folder), done);
    st = write_and_commit(writer, save, folder, records, &manifest, out_result);
    if (group->rank == 0 && st != STATUS_OK) {
        struct status_record record;
        status_take(&record);
        commit_discard(writer->config.fs, folder);
        (void)status_give(&record);
    } else if (group->rank == 0) {
        prune(writer);
    }
done:
    manifest_deinit(&manifest);
    mem_free(&records);
    return st;
}
