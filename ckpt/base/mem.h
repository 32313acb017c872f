/* Memory: zeroed, aligned, counted; a failed allocation is STATUS_NO_MEMORY, never a crash.
 *
 * mem_alloc gives 64-byte aligned zeroed memory (2 MiB aligned and advised to huge pages from
 * MEM_HUGE_BYTES on). Memory is returned by mem_free, which takes NULL and sets the pointer to
 * NULL. Tests make the n-th allocation fail with mem_fail_at.
 * Threads: all functions may be called from any thread.
 */
#ifndef CKPT_BASE_MEM_H
#define CKPT_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"

#define MEM_ALIGN 64
#define MEM_HUGE_BYTES ((size_t)4 << 20)

/* `out` is the address of a pointer of any type. `count` * `size` is checked for overflow; a
 * request of 0 bytes gives a valid pointer. */
#define mem_alloc(out, count, size) mem_alloc_at((void **)(out), (count), (size))
#define mem_free(pointer_address) mem_free_at((void **)(pointer_address))

enum status mem_alloc_at(void **out, size_t count, size_t size) STATUS_MUST_CHECK;
/* Grows an array to at least `count` elements of `size` bytes; the new part is zero; `capacity`
 * is updated. The old array stays valid when this fails. */
enum status mem_grow(void **array, size_t *capacity, size_t count, size_t size) STATUS_MUST_CHECK;
/* Makes a buffer at least `bytes` large, for reuse; what it held is lost when it grows. After a
 * failure it is NULL and `capacity` 0. */
enum status mem_reserve(void **buffer, size_t *capacity, size_t bytes) STATUS_MUST_CHECK;
enum status mem_copy_string(char **out, const char *text) STATUS_MUST_CHECK;
/* printf into a new string. */
enum status mem_format(char **out, const char *format, ...) __attribute__((format(printf, 2, 3)))
STATUS_MUST_CHECK;
void mem_free_at(void **pointer);

size_t mem_used_bytes(void); /* held now */
size_t mem_peak_bytes(void); /* the most held at any time */
/* The n-th allocation from now on fails (1: the next); 0: none. For tests. */
void mem_fail_at(uint64_t n);

#endif
