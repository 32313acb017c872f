/* The first fault of a world. See fault.h.
 *
 * `broken` packs code (bits 0..15), reporter + 1 (16..31) and culprit + 1 (32..47). A slot's text
 * is complete before the word that points to it can be seen, and never changes afterwards.
 */
#include "train/comm/fault.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

_Static_assert(sizeof(struct fault_member) == 512, "a member's slot is eight cache lines");

size_t fault_page_bytes(int size)
{
    return sizeof(struct fault_page) + (size_t)size * sizeof(struct fault_member);
}

enum status fault_init(struct fault *fault, int rank, int size)
{
    void *page = MAP_FAILED;

    memset(fault, 0, sizeof(*fault));
    fault->rank = rank;
    fault->bytes = fault_page_bytes(size);
    page = mmap(NULL, fault->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        return FAIL_ERRNO("cannot map the page of faults");
    }
    fault->page = page;
    CHECK(pthread_mutex_init(&fault->lock, NULL) == 0);
    return STATUS_OK;
}

void fault_share(struct fault *fault, void *page)
{
    CHECK(munmap(fault->page, fault->bytes) == 0);
    fault->page = page;
}

void fault_deinit(struct fault *fault)
{
    if (fault->page != NULL) {
        CHECK(munmap(fault->page, fault->bytes) == 0);
        CHECK(pthread_mutex_destroy(&fault->lock) == 0);
        fault->page = NULL;
    }
}

enum status fault_check(const struct fault *fault)
{
    uint64_t broken = atomic_load_explicit(&fault->page->broken, memory_order_acquire);

    if (broken == 0) {
        return STATUS_OK;
    }
    return FAIL((enum status)(broken & 0xffff), "%s",
                fault->page->members[(broken >> 16 & 0xffff) - 1].text);
}

enum status fault_break(struct fault *fault, enum status code, int culprit, const char *text)
{
    uint64_t whole = 0;
    uint64_t broken =
        (uint64_t)code | (uint64_t)(fault->rank + 1) << 16 | (uint64_t)(culprit + 1) << 32;

    CHECK(pthread_mutex_lock(&fault->lock) == 0);
    if (!fault->has_spoken) {
        fault->has_spoken = true;
        snprintf(fault->page->members[fault->rank].text, FAULT_TEXT_MAX, "%s", text);
        atomic_compare_exchange_strong(&fault->page->broken, &whole, broken);
    }
    CHECK(pthread_mutex_unlock(&fault->lock) == 0);
    return fault_check(fault);
}

int fault_culprit(const struct fault *fault)
{
    return (int)(atomic_load(&fault->page->broken) >> 32 & 0xffff) - 1;
}
