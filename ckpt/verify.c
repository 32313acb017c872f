/* Proves a checkpoint whole, without a model; see ckpt.h. */
#include <inttypes.h>

#include "ckpt/base/hash.h"
#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"
#include "ckpt/box_reader.h"
#include "ckpt/ckpt.h"
#include "ckpt/state_hash.h"

struct verifying {
    struct fs *fs;
    const char *checkpoint;
    struct manifest manifest;
    struct thread_pool *pool;
};

static enum status verify_file(void *context, size_t index)
{
    const struct verifying *verifying = context;

    return manifest_check_file_hash(&verifying->manifest.files[index], verifying->fs,
                                    verifying->checkpoint);
}

/* Decodes one whole tensor and adds up its hash; one at a time, so memory is bounded by the
 * largest. */
static enum status verify_tensor(struct box_reader *reader, const struct manifest_tensor *tensor,
                                 uint64_t *sum)
{
    enum status st = STATUS_OK;
    struct box_target target = {tensor->name, box_whole(tensor->dims, tensor->shape), NULL};
    uint64_t part = 0;

    TRY(st,
        mem_alloc(&target.data, (size_t)box_count(&target.box), manifest_type_bytes(tensor->type)),
        done);
    TRY(st, box_reader_read(reader, &target, 1), done);
    TRY(st,
        state_hash_box(tensor->name, tensor->type, tensor->dims, tensor->shape, &target.box,
                       target.data, &part),
        done);
    *sum = hash_state_add(*sum, part);
done:
    mem_free(&target.data);
    return st;
}

static enum status verify_state(const struct verifying *verifying)
{
    enum status st = STATUS_OK;
    const struct manifest *manifest = &verifying->manifest;
    struct box_reader *reader = NULL;
    uint64_t sum = 0;

    TRY(st,
        box_reader_open(verifying->fs, verifying->checkpoint, manifest, verifying->pool, &reader),
        done);
    for (size_t i = 0; i < manifest->tensor_count; i++) {
        TRY(st, verify_tensor(reader, &manifest->tensors[i], &sum), done);
    }
    uint64_t hash = hash_state_finish(sum, manifest->step);
    if (hash != manifest->state_hash) {
        st = FAIL(STATUS_CORRUPT,
                  "'%s': its tensors have state hash 0x%016" PRIx64
                  ", its manifest says 0x%016" PRIx64,
                  verifying->checkpoint, hash, manifest->state_hash);
    }
done:
    box_reader_close(&reader);
    return st;
}

/* The failure `st` as ckpt.h has it: by whether the checkpoint is still there. */
static enum status tell_damage(struct fs *fs, const char *checkpoint, enum status st)
{
    struct status_record record;
    struct fs_stat stat;

    if (st != STATUS_CORRUPT && st != STATUS_NOT_FOUND) {
        return st;
    }
    status_take(&record);
    if (fs_stat(fs, checkpoint, &stat) == STATUS_NOT_FOUND) {
        return FAIL(STATUS_NOT_FOUND, "checkpoint '%s' is not there any more", checkpoint);
    }
    record.code = STATUS_CORRUPT;
    return status_give(&record);
}

enum status ckpt_verify(struct fs *fs, const char *checkpoint, enum ckpt_verify_level level,
                        int thread_count)
{
    enum status st = STATUS_OK;
    struct verifying verifying = {.fs = fs, .checkpoint = checkpoint};

    TRY(st, manifest_read(fs, checkpoint, &verifying.manifest), done);
    TRY(st, manifest_check_files(&verifying.manifest, fs, checkpoint), done);
    TRY(st, thread_pool_create(thread_count, &verifying.pool), done);
    if (level >= CKPT_VERIFY_FULL) {
        TRY(st,
            thread_pool_run(verifying.pool, verify_file, &verifying, verifying.manifest.file_count),
            done);
    }
    if (level >= CKPT_VERIFY_DEEP) {
        TRY(st, verify_state(&verifying), done);
    }
done:
    thread_pool_destroy(verifying.pool);
    manifest_deinit(&verifying.manifest);
    return tell_damage(fs, checkpoint, st);
}
