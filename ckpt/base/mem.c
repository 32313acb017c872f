/* Counted, aligned, zeroed memory; see mem.h. */
#include "ckpt/base/mem.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Stands before each block, so that a free knows what to uncount. */
struct header {
    void *start; /* what aligned_alloc gave */
    size_t bytes;
};

#define HUGE_ALIGN ((size_t)2 << 20)

static _Atomic size_t used_bytes;
static _Atomic size_t peak_bytes;
static _Atomic uint64_t fail_countdown;

static bool must_fail(void)
{
    uint64_t left = atomic_load(&fail_countdown);

    while (left != 0) {
        if (atomic_compare_exchange_weak(&fail_countdown, &left, left - 1)) {
            return left == 1;
        }
    }
    return false;
}

static void count(size_t bytes)
{
    size_t now = atomic_fetch_add(&used_bytes, bytes) + bytes;
    size_t peak = atomic_load(&peak_bytes);

    while (now > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, now)) {
    }
}

static struct header *header_of(void *pointer)
{
    return (struct header *)pointer - 1;
}

enum status mem_alloc_at(void **out, size_t element_count, size_t size)
{
    size_t bytes, total;
    size_t align = MEM_ALIGN;

    *out = NULL;
    if (__builtin_mul_overflow(element_count, size, &bytes) || bytes > SIZE_MAX / 2) {
        return FAIL(STATUS_NO_MEMORY, "cannot allocate %zu x %zu bytes: too large", element_count,
                    size);
    }
    if (bytes >= MEM_HUGE_BYTES) {
        align = HUGE_ALIGN;
    }
    total = (align + bytes + align - 1) / align * align;
    char *start = must_fail() ? NULL : aligned_alloc(align, total);
    if (start == NULL) {
        return FAIL(STATUS_NO_MEMORY, "cannot allocate %zu bytes (%zu held)", bytes,
                    mem_used_bytes());
    }
    *out = start + align;
    if (align == HUGE_ALIGN) {
        /* Only faster. The header's part stays small: one page of it is ever touched. */
        (void)madvise(*out, total - align, MADV_HUGEPAGE);
    }
    memset(*out, 0, bytes);
    *header_of(*out) = (struct header){start, bytes};
    count(bytes);
    return STATUS_OK;
}

void mem_free_at(void **pointer)
{
    if (*pointer != NULL) {
        struct header *header = header_of(*pointer);
        atomic_fetch_sub(&used_bytes, header->bytes);
        free(header->start);
        *pointer = NULL;
    }
}

enum status mem_grow(void **array, size_t *capacity, size_t wanted, size_t size)
{
    enum status st = STATUS_OK;
    size_t more = *capacity * 2 > wanted ? *capacity * 2 : wanted;
    void *larger = NULL;

    if (wanted <= *capacity) {
        return STATUS_OK;
    }
    TRY(st, mem_alloc_at(&larger, more, size), done);
    if (*array != NULL) {
        memcpy(larger, *array, *capacity * size);
    }
    mem_free_at(array);
    *array = larger;
    *capacity = more;
done:
    return st;
}

enum status mem_reserve(void **buffer, size_t *capacity, size_t bytes)
{
    enum status st = STATUS_OK;

    if (*buffer == NULL || bytes > *capacity) {
        mem_free_at(buffer);
        *capacity = 0;
        TRY(st, mem_alloc_at(buffer, bytes, 1), done);
        *capacity = bytes;
    }
done:
    return st;
}

enum status mem_copy_string(char **out, const char *text)
{
    return mem_format(out, "%s", text);
}

enum status mem_format(char **out, const char *format, ...)
{
    enum status st = STATUS_OK;
    va_list args;

    *out = NULL;
    va_start(args, format);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    CHECK(length >= 0);
    TRY(st, mem_alloc(out, (size_t)length + 1, 1), done);
    va_start(args, format);
    CHECK(vsnprintf(*out, (size_t)length + 1, format, args) == length);
    va_end(args);
done:
    return st;
}

size_t mem_used_bytes(void)
{
    return atomic_load(&used_bytes);
}

size_t mem_peak_bytes(void)
{
    return atomic_load(&peak_bytes);
}

void mem_fail_at(uint64_t n)
{
    atomic_store(&fail_countdown, n);
}
