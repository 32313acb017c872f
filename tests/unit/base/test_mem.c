/* Claims of mem.h. */
#include <string.h>

#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"
#include "tests/unit/base/base_support.h"

Test(mem, memory_is_aligned_zero_and_counted)
{
    static const size_t sizes[] = {
        0, 1, 63, 64, 65, 4096, MEM_HUGE_BYTES - 1, MEM_HUGE_BYTES, MEM_HUGE_BYTES + 12345};
    size_t before = mem_used_bytes();

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int again = 0; again < 2; again++) { /* the second may get dirty memory back */
            unsigned char *bytes = NULL;
            size_t align = sizes[i] >= MEM_HUGE_BYTES ? (size_t)2 << 20 : MEM_ALIGN;
            assert_ok(mem_alloc(&bytes, sizes[i], 1));
            cr_assert(bytes != NULL && (uintptr_t)bytes % align == 0);
            for (size_t k = 0; k < sizes[i]; k++) {
                cr_assert(bytes[k] == 0);
            }
            memset(bytes, 0xff, sizes[i]);
            cr_assert(mem_used_bytes() == before + sizes[i]);
            mem_free(&bytes);
            cr_assert(bytes == NULL && mem_used_bytes() == before);
        }
    }
    cr_assert(mem_peak_bytes() >= before + MEM_HUGE_BYTES + 12345);
}

Test(mem, freeing_nothing_is_fine)
{
    char *text = NULL;

    mem_free(&text);
    cr_assert(text == NULL);
}

Test(mem, sizes_that_overflow_are_refused)
{
    void *pointer = &pointer;

    assert_status(mem_alloc(&pointer, SIZE_MAX / 2, 3), STATUS_NO_MEMORY);
    cr_assert(pointer == NULL);
    assert_status(mem_alloc(&pointer, SIZE_MAX, 1), STATUS_NO_MEMORY);
#ifndef __SANITIZE_ADDRESS__ /* which ends the process where malloc gives NULL */
    assert_status(mem_alloc(&pointer, SIZE_MAX / 4, 1), STATUS_NO_MEMORY);
#endif
    cr_assert(pointer == NULL);
}

Test(mem, growing_keeps_the_old_part_and_zeroes_the_new)
{
    uint32_t *array = NULL;
    size_t capacity = 0;

    for (size_t count = 1; count < 3000; count++) {
        assert_ok(mem_grow((void **)&array, &capacity, count, sizeof *array));
        cr_assert(capacity >= count && array[count - 1] == 0);
        array[count - 1] = (uint32_t)count;
    }
    for (size_t i = 0; i < 2999; i++) {
        cr_assert(array[i] == i + 1);
    }
    for (size_t i = 2999; i < capacity; i++) {
        cr_assert(array[i] == 0);
    }
    mem_free(&array);
}

Test(mem, a_growth_that_fails_leaves_the_old_array)
{
    uint32_t *array = NULL;
    size_t capacity = 0;

    assert_ok(mem_grow((void **)&array, &capacity, 4, sizeof *array));
    array[3] = 7;
    uint32_t *before = array;
    size_t capacity_before = capacity;
    mem_fail_at(1);
    assert_status(mem_grow((void **)&array, &capacity, 1000, sizeof *array), STATUS_NO_MEMORY);
    cr_assert(array == before && capacity == capacity_before && array[3] == 7);
    mem_free(&array);
}

Test(mem, a_reserved_buffer_is_kept_while_it_is_large_enough_and_gone_when_it_cannot_grow)
{
    char *buffer = NULL;
    size_t capacity = 0;

    assert_ok(mem_reserve((void **)&buffer, &capacity, 0));
    cr_assert(buffer != NULL);
    assert_ok(mem_reserve((void **)&buffer, &capacity, 100));
    cr_assert(capacity == 100);
    char *before = buffer;
    buffer[99] = 7;
    assert_ok(mem_reserve((void **)&buffer, &capacity, 50));
    cr_assert(buffer == before && capacity == 100 && buffer[99] == 7);
    mem_fail_at(1);
    assert_status(mem_reserve((void **)&buffer, &capacity, 101), STATUS_NO_MEMORY);
    cr_assert(buffer == NULL && capacity == 0);
    assert_ok(mem_reserve((void **)&buffer, &capacity, 1));
    mem_free(&buffer);
}

Test(mem, the_nth_allocation_fails_and_only_that)
{
    char *text = NULL;

    mem_fail_at(3);
    for (int i = 1; i <= 6; i++) {
        assert_status(mem_copy_string(&text, "x"), i == 3 ? STATUS_NO_MEMORY : STATUS_OK);
        cr_assert((text == NULL) == (i == 3));
        mem_free(&text);
    }
    mem_fail_at(1);
    mem_fail_at(0);
    assert_ok(mem_copy_string(&text, "x"));
    mem_free(&text);
}

Test(mem, strings_are_copied_and_formatted_whole)
{
    char *text = NULL;

    assert_ok(mem_copy_string(&text, ""));
    cr_assert_str_eq(text, "");
    mem_free(&text);
    assert_ok(mem_format(&text, "%s-%05d-%4096d", "a", 42, 7));
    cr_assert(strlen(text) == 2 + 5 + 1 + 4096 && strncmp(text, "a-00042-  ", 10) == 0);
    mem_free(&text);
}

static enum status churn(void *context, size_t index)
{
    char *text = NULL;

    (void)context;
    for (size_t i = 0; i < 200; i++) {
        enum status st = mem_format(&text, "%zu %zu", index, i);
        if (st != STATUS_OK) {
            return st;
        }
        mem_free(&text);
    }
    return STATUS_OK;
}

Test(mem, counts_hold_among_threads)
{
    struct thread_pool *pool = NULL;

    assert_ok(thread_pool_create(4, &pool));
    size_t before = mem_used_bytes();
    assert_ok(thread_pool_run(pool, churn, NULL, 64));
    cr_assert(mem_used_bytes() == before);
    mem_fail_at(500);
    assert_status(thread_pool_run(pool, churn, NULL, 64), STATUS_NO_MEMORY);
    cr_assert(mem_used_bytes() == before);
    thread_pool_destroy(pool);
}
