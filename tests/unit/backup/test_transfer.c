/* Claims about copies that meet faults (backup/transfer), over a store that fails to order. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "backup/transfer.h"
#include "tests/unit/meta/meta_support.h"

/* The directory store with faults in front: the n-th put fails, or damages what it stores. */
struct faulty {
    struct store base;
    struct store *inner;
    int put_count;
    int fail_put_at; /* 0: none */
    enum status fail_with;
    int flip_put_at; /* that put stores one flipped bit */
    bool cut;        /* ... or is short by one byte */
    const struct store_source *source;
};

static enum status read_damaged(void *context, void *buffer, size_t bytes, uint64_t offset)
{
    struct faulty *faulty = context;
    enum status st = faulty->source->read(faulty->source->context, buffer, bytes, offset);

    if (!faulty->cut && offset == 0) {
        *(char *)buffer ^= 1;
    }
    return st;
}

static enum status faulty_put(struct store *store, const char *name,
                              const struct store_source *source)
{
    struct faulty *faulty = (struct faulty *)store;

    faulty->put_count++;
    if (faulty->put_count == faulty->fail_put_at) {
        return FAIL(faulty->fail_with, "planted");
    }
    if (faulty->put_count == faulty->flip_put_at) {
        faulty->source = source;
        struct store_source damaged = {faulty, source->bytes - (faulty->cut ? 1 : 0), read_damaged};
        return store_put(faulty->inner, name, &damaged);
    }
    return store_put(faulty->inner, name, source);
}

static enum status faulty_get(struct store *store, const char *name, void *buffer, size_t bytes,
                              uint64_t offset)
{
    return store_get(((struct faulty *)store)->inner, name, buffer, bytes, offset);
}

static enum status faulty_stat(struct store *store, const char *name, uint64_t *out_bytes)
{
    return store_stat(((struct faulty *)store)->inner, name, out_bytes);
}

static enum status faulty_list(struct store *store, const char *prefix, struct store_list *out)
{
    return store_list(((struct faulty *)store)->inner, prefix, out);
}

static enum status faulty_remove(struct store *store, const char *name)
{
    return store_remove(((struct faulty *)store)->inner, name);
}

static const struct store_ops faulty_ops = {
    .put = faulty_put,
    .get = faulty_get,
    .stat = faulty_stat,
    .list = faulty_list,
    .remove = faulty_remove,
};

static char near_folder[FS_PATH_MAX], far_folder[FS_PATH_MAX];
static struct faulty faulty;
static struct manifest manifest;
static struct progress_line progress;

static struct transfer make_transfer(const char *folder)
{
    return (struct transfer){&faulty.base, "step_0000001", fs_posix(), folder, 2, 1, &progress};
}

static void set_up(void)
{
    support_make_folder(near_folder);
    support_make_folder(far_folder);
    support_plant(fs_posix(), near_folder, 1);
    assert_ok(manifest_read(fs_posix(), support_path(near_folder, "step_0000001"), &manifest));
    assert_ok(store_open(far_folder, true, NULL, &faulty.inner));
    faulty.base.ops = &faulty_ops;
    progress_line_init(&progress, "test", 1);
}

static void tear_down(void)
{
    progress_line_deinit(&progress, false);
    manifest_deinit(&manifest);
    store_close(&faulty.inner);
    support_remove_folder(near_folder);
    support_remove_folder(far_folder);
}

TestSuite(transfer, .init = set_up, .fini = tear_down);

static enum status push(void)
{
    char source[FS_PATH_MAX];

    assert_ok(fs_join(source, near_folder, "step_0000001"));
    struct transfer transfer = make_transfer(source);
    return transfer_push(&transfer, &manifest, NULL);
}

static enum status verify(void)
{
    struct transfer transfer = make_transfer(NULL);

    return transfer_verify(&transfer, &manifest);
}

Test(transfer, pushes_and_verifies)
{
    assert_ok(push());
    assert_ok(verify());
    cr_assert_eq(faulty.put_count, (int)manifest.file_count);
}

Test(transfer, tries_again_what_may_go_better)
{
    faulty.fail_put_at = 1;
    faulty.fail_with = STATUS_IO;
    assert_ok(push());
    assert_ok(verify());
}

Test(transfer, does_not_try_again_what_cannot)
{
    faulty.fail_put_at = 1;
    faulty.fail_with = STATUS_NO_PERMISSION;
    assert_status(push(), STATUS_NO_PERMISSION);
}

Test(transfer, notices_a_bit_that_flips_on_the_way)
{
    faulty.flip_put_at = 1;
    assert_status(push(), STATUS_CORRUPT);
    assert_ok(push()); /* and the damaged copy is not taken for a good one */
    assert_ok(verify());
}

Test(transfer, notices_a_copy_that_is_cut)
{
    faulty.flip_put_at = 2;
    faulty.cut = true;
    assert_status(push(), STATUS_CORRUPT);
}

Test(transfer, never_pushes_a_damaged_source)
{
    char folder[FS_PATH_MAX], shard[FS_PATH_MAX];
    struct fs_file *file = NULL;
    struct store_list list;

    assert_ok(fs_join(folder, near_folder, "step_0000001"));
    assert_ok(fs_join(shard, folder, manifest.files[0].name));
    assert_ok(fs_open(fs_posix(), shard, FS_UPDATE, &file));
    assert_ok(fs_pwrite(file, "!", 1, 7));
    fs_close(&file);
    assert_status(push(), STATUS_CORRUPT);
    cr_assert(strstr(status_last()->message, manifest.files[0].name), "%s", status_last()->message);
    assert_ok(store_list(faulty.inner, "step_0000001/tp00", &list));
    cr_assert_eq(list.count, 0, "the damaged shard stayed in the store");
    store_list_deinit(&list);
}

Test(transfer, pull_notices_damage_at_the_far_side)
{
    struct transfer transfer = make_transfer(far_folder);
    char object[STORE_NAME_MAX];

    assert_ok(push());
    (void)snprintf(object, sizeof object, "step_0000001/%s", manifest.files[0].name);
    assert_ok(store_put_bytes(faulty.inner, object, "garbage", 7));
    assert_status(transfer_pull(&transfer, &manifest), STATUS_CORRUPT);
    assert_status(verify(), STATUS_CORRUPT);
}
