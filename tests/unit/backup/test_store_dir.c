/* Claims that every store must keep (backup/store.h), held against the directory store. */
#include <criterion/criterion.h>
#include <string.h>

#include "backup/store.h"
#include "ckpt/base/mem.h"
#include "tests/unit/meta/meta_support.h"

static char folder[FS_PATH_MAX];
static struct store *store;

static void open_store(void)
{
    support_make_folder(folder);
    assert_ok(store_open(folder, true, NULL, &store));
}

static void close_store(void)
{
    store_close(&store);
    support_remove_folder(folder);
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

Test(store, lists_by_prefix_sorted_without_hidden_names)
{
    struct store_list list;

    assert_ok(store_put_bytes(store, "step_2/b", "", 0));
    assert_ok(store_put_bytes(store, "step_2/a", "12", 2));
    assert_ok(store_put_bytes(store, "step_1/c", "", 0));
    assert_ok(store_put_bytes(store, "other", "", 0));
    support_write_text(fs_posix(), folder, ".hidden", "x");
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

Test(store, cleans_what_a_killed_upload_left)
{
    assert_ok(store_put_bytes(store, "x", "1", 1));
    support_write_text(fs_posix(), support_path(folder, ".uploads"), "left", "half");
    assert_ok(store_clean(store));
    cr_assert_not(fs_exists(fs_posix(), support_path(support_path(folder, ".uploads"), "left")));
}

Test(store_open, says_which_kinds_there_are)
{
    struct store *none = NULL;

    assert_status(store_open("gs://bucket/prefix", true, NULL, &none), STATUS_UNSUPPORTED);
    assert_status(store_open("/nonexistent/folder", false, NULL, &none), STATUS_NOT_FOUND);
    cr_assert_null(none);
}
