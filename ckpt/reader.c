/* Loads: choosing a checkpoint together, and filling the ranks' tensors from it; see ckpt.h.
 *
 * Before it: meta/catalog (what is there). After it: train/train_state. Rank 0 alone looks at the
 * directory and sends the manifest's text, so that all ranks load the same checkpoint whatever
 * their file systems' caches say.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/agree.h"
#include "ckpt/base/hash.h"
#include "ckpt/base/json.h"
#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"
#include "ckpt/box_reader.h"
#include "ckpt/ckpt.h"
#include "ckpt/state_hash.h"

struct search {
    struct fs *fs;
    const char *load;
    uint64_t step_max;
    bool exact;
};

/* Rank 0's finding, as it is sent; the manifest's text follows. */
struct finding {
    char path[FS_PATH_MAX];
    uint64_t text_bytes; /* 0: nothing found */
};

static enum status read_text(struct fs *fs, const char *folder, char **out_text,
                             struct finding *finding)
{
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX];
    size_t bytes = 0;

    TRY(st, fs_join(path, folder, MANIFEST_FILE), done);
    TRY(st, fs_read_file(fs, path, JSON_FILE_BYTES_MAX, out_text, &bytes), done);
    memcpy(finding->path, folder, strlen(folder) + 1);
    finding->text_bytes = bytes;
done:
    return st;
}

/* `load` is the checkpoint itself: it must be whole. */
static enum status take_single(const struct search *search, char **out_text,
                               struct finding *finding)
{
    enum status st = STATUS_OK;
    struct manifest manifest = {0};

    TRY(st, manifest_read(search->fs, search->load, &manifest), done);
    TRY(st, manifest_check_files(&manifest, search->fs, search->load), done);
    if (search->exact ? manifest.step != search->step_max : manifest.step > search->step_max) {
        st = FAIL(STATUS_NO_CHECKPOINT, "'%s' is step %" PRIu64 ", not %" PRIu64, search->load,
                  manifest.step, search->step_max);
        goto done;
    }
    TRY(st, read_text(search->fs, search->load, out_text, finding), done);
done:
    manifest_deinit(&manifest);
    return st;
}

/* A checkpoint newer than `chosen` (NULL: none was) that is whole, as far as anybody knows, but not
 * for this user or this version: an older one instead of it would throw work away. */
static enum status check_passed_over(const struct search *search, const struct catalog *catalog,
                                     const struct catalog_entry *chosen)
{
    for (size_t i = catalog->count; i-- > 0 && &catalog->entries[i] != chosen;) {
        const struct catalog_entry *entry = &catalog->entries[i];

        if (entry->step <= search->step_max &&
            (entry->fault == STATUS_NO_PERMISSION || entry->fault == STATUS_UNSUPPORTED)) {
            return FAIL(entry->fault,
                        "the newest checkpoint '%s' is not readable here: %s; mend that, or name "
                        "an older one by --ckpt-step",
                        entry->path, entry->reason);
        }
    }
    return STATUS_OK;
}

static enum status look(const struct search *search, char **out_text, struct finding *finding)
{
    enum status st = STATUS_OK;
    struct catalog catalog = {.entries = NULL};
    char path[FS_PATH_MAX];

    TRY(st, fs_join(path, search->load, MANIFEST_FILE), done);
    if (fs_exists(search->fs, path)) {
        return take_single(search, out_text, finding);
    }
    TRY(st, catalog_scan(search->fs, search->load, &catalog), done);
    if (catalog.count == 0 && !search->exact) {
        goto done;
    }
    const struct catalog_entry *entry = catalog_choose(&catalog, search->step_max);
    TRY(st, check_passed_over(search, &catalog, entry), done);
    if (entry == NULL || (search->exact && entry->step != search->step_max)) {
        st = search->exact
                 ? FAIL(STATUS_NO_CHECKPOINT, "'%s' holds no usable checkpoint of step %" PRIu64,
                        search->load, search->step_max)
                 : catalog_fail_none(&catalog);
        goto done;
    }
    TRY(st, read_text(search->fs, entry->path, out_text, finding), done);
done:
    catalog_deinit(&catalog);
    return st;
}

enum status ckpt_choose(struct fs *fs, const char *load, uint64_t step_max, bool exact,
                        const struct ckpt_group *group, struct ckpt_choice *out_choice)
{
    const struct search search = {fs, load, step_max, exact};
    enum status st = STATUS_OK;
    struct finding finding = {.text_bytes = 0};
    char *text = NULL;

    *out_choice = (struct ckpt_choice){.found = false};
    if (group->rank == 0) {
        st = look(&search, &text, &finding);
    }
    TRY(st, agree_with_first(group, st), done);
    TRY(st, agree_broadcast(group, &finding, sizeof finding), done);
    if (finding.text_bytes == 0) {
        goto done;
    }
    if (group->rank != 0) {
        st = mem_alloc(&text, (size_t)finding.text_bytes + 1, 1);
    }
    TRY(st, agree(group, st), done);
    TRY(st, agree_broadcast(group, text, (size_t)finding.text_bytes), done);
    st = manifest_parse(text, (size_t)finding.text_bytes, finding.path, &out_choice->manifest);
    TRY(st, agree(group, st), done);
    memcpy(out_choice->path, finding.path, sizeof out_choice->path);
    out_choice->found = true;
done:
    if (st != STATUS_OK) {
        ckpt_choice_deinit(out_choice);
    }
    mem_free(&text);
    return st;
}

void ckpt_choice_deinit(struct ckpt_choice *choice)
{
    manifest_deinit(&choice->manifest);
    choice->found = false;
}

static enum status check_tensor(const struct ckpt_choice *choice, const struct ckpt_tensor *tensor)
{
    const struct manifest_tensor *stored = manifest_find(&choice->manifest, tensor->name);

    if (stored == NULL) {
        return FAIL(STATUS_OPTIONS_DIFFER,
                    "'%s' has no tensor '%s'; it is a checkpoint of another model", choice->path,
                    tensor->name);
    }
    bool is_same =
        stored->type == tensor->type && stored->dims == tensor->dims &&
        memcmp(stored->shape, tensor->shape, (size_t)tensor->dims * sizeof *tensor->shape) == 0;
    if (!is_same) {
        struct box theirs = box_whole(stored->dims, stored->shape);
        struct box ours = box_whole(tensor->dims, tensor->shape);
        char there[128], here[128];
        box_format(&theirs, there, sizeof there);
        box_format(&ours, here, sizeof here);
        return FAIL(STATUS_OPTIONS_DIFFER,
                    "'%s' has '%s' as %s %s, this model as %s %s; it is a checkpoint of another "
                    "model",
                    choice->path, tensor->name, manifest_type_name(stored->type), there,
                    manifest_type_name(tensor->type), here);
    }
    return STATUS_OK;
}

static enum status fill(struct fs *fs, const struct ckpt_choice *choice,
                        const struct ckpt_tensor *tensors, size_t count, struct thread_pool *pool)
{
    enum status st = STATUS_OK;
    struct box_reader *reader = NULL;
    struct box_target *targets = NULL;

    TRY(st, mem_alloc(&targets, count, sizeof *targets), done);
    for (size_t i = 0; i < count; i++) {
        TRY(st, check_tensor(choice, &tensors[i]), done);
        targets[i] = (struct box_target){tensors[i].name, tensors[i].box, tensors[i].data};
    }
    TRY(st, box_reader_open(fs, choice->path, &choice->manifest, pool, &reader), done);
    TRY(st, box_reader_read(reader, targets, count), done);
done:
    box_reader_close(&reader);
    mem_free(&targets);
    return st;
}

/* What the ranks together own, and its hash. */
struct share {
    uint64_t hash_sum;
    uint64_t elements;
};

static uint64_t manifest_elements(const struct manifest *manifest)
{
    uint64_t count = 0;

    for (size_t i = 0; i < manifest->tensor_count; i++) {
        struct box whole = box_whole(manifest->tensors[i].dims, manifest->tensors[i].shape);
        count += box_count(&whole);
    }
    return count;
}

/* The live memory against the manifest; a load of only a part of the tensors cannot be compared.
 * `all` has room for every rank's share. */
static enum status compare_state(const struct ckpt_choice *choice, const struct ckpt_group *group,
                                 const struct share *mine, struct share *all)
{
    enum status st = STATUS_OK;
    struct share sum = {0, 0};

    TRY(st, agree_gather(group, mine, sizeof *mine, all), done);
    for (int rank = 0; rank < group->size; rank++) {
        sum.hash_sum = hash_state_add(sum.hash_sum, all[rank].hash_sum);
        sum.elements += all[rank].elements;
    }
    uint64_t hash = hash_state_finish(sum.hash_sum, choice->manifest.step);
    if (sum.elements == manifest_elements(&choice->manifest) &&
        hash != choice->manifest.state_hash) {
        st = FAIL(STATUS_CORRUPT,
                  "the state loaded from '%s' has hash 0x%016" PRIx64
                  ", its manifest says 0x%016" PRIx64,
                  choice->path, hash, choice->manifest.state_hash);
    }
done:
    return st;
}

enum status ckpt_load(struct fs *fs, const struct ckpt_choice *choice,
                      const struct ckpt_tensor *tensors, size_t count, int thread_count,
                      const struct ckpt_group *group)
{
    enum status st = STATUS_OK;
    struct thread_pool *pool = NULL;
    struct share mine = {0, 0}, *all = NULL;

    st = thread_pool_create(thread_count, &pool);
    st = st == STATUS_OK ? mem_alloc(&all, (size_t)group->size, sizeof *all) : st;
    st = st == STATUS_OK ? fill(fs, choice, tensors, count, pool) : st;
    st = st == STATUS_OK ? state_hash_owned(tensors, count, pool, &mine.hash_sum) : st;
    for (size_t i = 0; i < count; i++) {
        mine.elements += box_count(&tensors[i].owned);
    }
    TRY(st, agree(group, st), done);
    TRY(st, compare_state(choice, group, &mine, all), done);
done:
    mem_free(&all);
    thread_pool_destroy(pool);
    return st;
}
