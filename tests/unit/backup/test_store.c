/* Claims that every store must keep (backup/store.h): held against the directory store, or where
 * HOLDFAST_TEST_STORE names one (tests/cli/backup_s3.sh), against that, each under a new prefix. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backup/store.h"
#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"
#include "ckpt/meta/nonce.h"
#include "tests/unit/meta/meta_support.h"

static char folder[FS_PATH_MAX];
static struct store *store;

static void open_store(void)
{
    const char *place = getenv("HOLDFAST_TEST_STORE");
    char nonce[NONCE_TEXT_MAX], where[FS_PATH_MAX];

    if (place != NULL) {
        assert_ok(nonce_make(nonce));
        (void)snprintf(where, sizeof where, "%s/%s", place, nonce);
        assert_ok(store_open(where, true, NULL, &store));
    } else {
        support_make_folder(folder);
        assert_ok(store_open(folder, true, NULL, &store));
    }
}

static void close_store(void)
{
    store_close(&store);
    if (folder[0] != '\0') {
        support_remove_folder(folder);
    }
}

TestSuite(store, .init = open_store, .fini = close_store);

Test(store, gives_back_what_was_put)
{
    char *bytes = NULL, part[3];
    size_t count = 0;
    uint64_t size = 0;

    assert_ok(store_put_bytes(store, "a/b", "hello", 5));
    assert_ok(store_stat(store, "a/b", &size));
    cr_assert_eq(size, 5);
    assert_ok(store_get_all(store, "a/b", 100, &bytes, &count));
    cr_assert(count == 5 && memcmp(bytes, "hello", 6) == 0);
    mem_free(&bytes);
    assert_ok(store_get(store, "a/b", part, 3, 1));
    cr_assert(memcmp(part, "ell", 3) == 0);
    assert_status(store_get(store, "a/b", part, 3, 3), STATUS_CORRUPT);
    assert_status(store_get_all(store, "a/b", 4, &bytes, &count), STATUS_CORRUPT);
}

Test(store, replaces_an_object_as_a_whole)
{
    uint64_t size = 0;

    assert_ok(store_put_bytes(store, "x", "long content", 12));
    assert_ok(store_put_bytes(store, "x", "short", 5));
    assert_ok(store_stat(store, "x", &size));
    cr_assert_eq(size, 5);
}

static enum status fail_half_way(void *context, void *buffer, size_t bytes, uint64_t offset)
{
    (void)context;
    memset(buffer, 1, bytes);
    return offset > 0 ? FAIL(STATUS_IO, "planted") : STATUS_OK;
}

Test(store, shows_nothing_of_a_failed_put)
{
    struct store_source source = {NULL, 20 << 20, fail_half_way};
    struct store_list list;
    uint64_t size = 0;

    assert_status(store_put(store, "big", &source), STATUS_IO);
    assert_status(store_stat(store, "big", &size), STATUS_NOT_FOUND);
    assert_ok(store_list(store, "", &list));
    cr_assert_eq(list.count, 0);
    store_list_deinit(&list);
}

Test(store, lists_by_prefix_sorted)
{
    struct store_list list;

    assert_ok(store_put_bytes(store, "step_2/b", "", 0));
    assert_ok(store_put_bytes(store, "step_2/a", "12", 2));
    assert_ok(store_put_bytes(store, "step_1/c", "", 0));
    assert_ok(store_put_bytes(store, "other", "", 0));
    assert_ok(store_list(store, "step_", &list));
    cr_assert_eq(list.count, 3);
    cr_assert_str_eq(list.objects[0].name, "step_1/c");
    cr_assert_str_eq(list.objects[1].name, "step_2/a");
    cr_assert_eq(list.objects[1].bytes, 2);
    cr_assert_str_eq(list.objects[2].name, "step_2/b");
    store_list_deinit(&list);
}

Test(store, removes_and_is_content_when_nothing_is_there)
{
    uint64_t size = 0;

    assert_ok(store_put_bytes(store, "step_1/c", "1", 1));
    assert_ok(store_remove(store, "step_1/c"));
    assert_ok(store_remove(store, "step_1/c"));
    assert_status(store_stat(store, "step_1/c", &size), STATUS_NOT_FOUND);
}

Test(store, refuses_names_that_could_escape)
{
    const char *names[] = {"", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", "..", "a\nb"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_status(store_put_bytes(store, names[i], "", 0), STATUS_USAGE);
        assert_status(store_remove(store, names[i]), STATUS_USAGE);
    }
}

/* Bytes that follow from their place, so that swapped parts are seen. */
static void fill(unsigned char *buffer, size_t bytes, uint64_t offset)
{
    for (size_t i = 0; i < bytes; i++) {
        uint64_t at = offset + i;
        buffer[i] = (unsigned char)(at ^ at >> 8 ^ at >> 16 ^ at >> 20);
    }
}

static enum status read_filled(void *context, void *buffer, size_t bytes, uint64_t offset)
{
    (void)context;
    fill(buffer, bytes, offset);
    return STATUS_OK;
}

static void assert_range(const char *name, uint64_t offset, size_t bytes)
{
    unsigned char *got = NULL, *expected = NULL;

    assert_ok(mem_alloc(&got, bytes, 1));
    assert_ok(mem_alloc(&expected, bytes, 1));
    fill(expected, bytes, offset);
    assert_ok(store_get(store, name, got, bytes, offset));
    cr_assert(memcmp(got, expected, bytes) == 0, "range %llu of %s", (unsigned long long)offset,
              name);
    mem_free(&got);
    mem_free(&expected);
}

Test(store, keeps_large_objects_of_any_size)
{
    static const uint64_t sizes[] = {1, (8 << 20) - 1, 8 << 20, (8 << 20) + 1, (17 << 20) + 5};
    char name[32];

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct store_source source = {NULL, sizes[i], read_filled};
        uint64_t size = 0, first = sizes[i] < 1000 ? sizes[i] : 1000;
        (void)snprintf(name, sizeof name, "large/%zu", i);
        assert_ok(store_put(store, name, &source));
        assert_ok(store_stat(store, name, &size));
        cr_assert_eq(size, sizes[i]);
        assert_range(name, 0, (size_t)first);
        assert_range(name, sizes[i] - first, (size_t)first);
        assert_range(name, sizes[i] / 2, (size_t)(sizes[i] - sizes[i] / 2));
    }
}

Test(store, takes_odd_names_literally)
{
    static const char *const names[] = {
        "a b", "a+b", "a%20b", "a%2Fb", "\xc3\xbc/(1)~*='!,;:@$&?#", "<&>\"'", "step=10/x.h5"};
    struct store_list list;
    uint64_t size = 0;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_ok(store_put_bytes(store, names[i], "12345678", i));
    }
    assert_ok(store_list(store, "", &list));
    cr_assert_eq(list.count, sizeof names / sizeof *names);
    for (size_t i = 0; i < list.count; i++) {
        assert_ok(store_stat(store, list.objects[i].name, &size));
        cr_assert_eq(size, list.objects[i].bytes);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_ok(store_stat(store, names[i], &size));
        cr_assert_eq(size, i, "%s", names[i]);
        assert_ok(store_remove(store, names[i]));
    }
    store_list_deinit(&list);
    assert_ok(store_list(store, "", &list));
    cr_assert_eq(list.count, 0);
    store_list_deinit(&list);
}

static enum status put_and_get(void *context, size_t index)
{
    enum status st = STATUS_OK;
    char name[32], text[32], *back = NULL;
    size_t count = 0;

    (void)context;
    (void)snprintf(name, sizeof name, "many/%zu", index);
    (void)snprintf(text, sizeof text, "object %zu", index);
    TRY(st, store_put_bytes(store, name, text, strlen(text)), done);
    TRY(st, store_get_all(store, name, sizeof text, &back, &count), done);
    if (strcmp(back, text) != 0) {
        st = FAIL(STATUS_CORRUPT, "'%s' holds '%s'", name, back);
    }
done:
    mem_free(&back);
    return st;
}

Test(store, serves_several_threads)
{
    struct thread_pool *pool = NULL;
    struct store_list list;

    assert_ok(thread_pool_create(8, &pool));
    assert_ok(thread_pool_run(pool, put_and_get, NULL, 64));
    thread_pool_destroy(pool);
    assert_ok(store_list(store, "many/", &list));
    cr_assert_eq(list.count, 64);
    store_list_deinit(&list);
}

Test(store, reads_the_new_content_after_a_replacement)
{
    char part[4];

    assert_ok(store_put_bytes(store, "x", "old content", 11));
    assert_ok(store_get(store, "x", part, 4, 0));
    assert_ok(store_put_bytes(store, "x", "new content", 11));
    assert_ok(store_get(store, "x", part, 4, 4));
    assert_ok(store_get(store, "x", part, 3, 0));
    cr_assert(memcmp(part, "new", 3) == 0);
}
