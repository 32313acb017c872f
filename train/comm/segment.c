/* The shape of a group's shared memory. See segment.h. */
#include "train/comm/segment.h"

/* A member's chunk: half of this makes more switches between ranks that share a core, twice of it
 * falls out of their caches. */
#define CHUNK_BYTES_MAX ((size_t)1 << 20)
#define WINDOW_BYTES_MAX ((size_t)64 << 20) /* of all members of a group */
#define RING_BYTES_MAX ((size_t)512 << 10)
#define RING_BYTES_MIN ((size_t)4 << 10)
#define RINGS_BYTES_MAX ((size_t)4 << 30) /* of a group, sparse; the minimum goes before */
#define PAGE_BYTES ((size_t)4096)

_Static_assert(sizeof(struct segment_head) == SEGMENT_LINE, "one cache line");
_Static_assert(sizeof(struct segment_member) == SEGMENT_LINE, "one cache line");

static size_t head_bytes(int size)
{
    size_t bytes = sizeof(struct segment_head) + (size_t)size * sizeof(struct segment_member);

    return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

void segment_plan(struct segment *segment, int size)
{
    size_t n = (size_t)size;
    size_t chunk = CHUNK_BYTES_MAX;
    size_t ring = RING_BYTES_MAX;

    while (chunk / 2 >= n * SEGMENT_LINE && 2 * (n + 1) * chunk > WINDOW_BYTES_MAX) {
        chunk /= 2;
    }
    while (ring > RING_BYTES_MIN && n * n * ring > RINGS_BYTES_MAX) {
        ring /= 2;
    }
    segment->size = size;
    segment->chunk_bytes = chunk;
    segment->ring_bytes = ring;
    segment->ring_stride = PAGE_BYTES + ring;
    segment->bytes = head_bytes(size) + 2 * (n + 1) * chunk + n * n * segment->ring_stride;
}

struct segment_head *segment_head(const struct segment *segment)
{
    return (struct segment_head *)(void *)segment->base;
}

struct segment_member *segment_member(const struct segment *segment, int rank)
{
    return (struct segment_member *)(void *)(segment->base + sizeof(struct segment_head)) + rank;
}

unsigned char *segment_slab(const struct segment *segment, uint64_t turn, int rank)
{
    size_t index = (size_t)(turn & 1) * (size_t)segment->size + (size_t)rank;

    return segment->base + head_bytes(segment->size) + index * segment->chunk_bytes;
}

unsigned char *segment_result(const struct segment *segment, uint64_t turn)
{
    size_t index = 2 * (size_t)segment->size + (size_t)(turn & 1);

    return segment->base + head_bytes(segment->size) + index * segment->chunk_bytes;
}

struct segment_ring *segment_ring(const struct segment *segment, int from, int to)
{
    size_t n = (size_t)segment->size;
    size_t index = (size_t)from * n + (size_t)to;
    unsigned char *rings =
        segment->base + head_bytes(segment->size) + 2 * (n + 1) * segment->chunk_bytes;

    return (struct segment_ring *)(void *)(rings + index * segment->ring_stride);
}
