/* Claims of the directory store alone (backup/store_dir); test_store.c has those of every store. */
#include <criterion/criterion.h>

#include "backup/store.h"
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

TestSuite(store_dir, .init = open_store, .fini = close_store);

Test(store_dir, lists_no_hidden_names)
{
    struct store_list list;

    assert_ok(store_put_bytes(store, "seen", "", 0));
    support_write_text(fs_posix(), folder, ".hidden", "x");
    assert_ok(store_list(store, "", &list));
    cr_assert_eq(list.count, 1);
    store_list_deinit(&list);
}

Test(store_dir, cleans_what_a_killed_upload_left)
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
