/* Point to point through rings in shared memory. See ring.h and segment.h.
 *
 * A message is its length (8 bytes), then its bytes, in the stream of one ring. All transfers of a
 * batch move in turns of PIECE_BYTES, those of one peer and direction one after the other, so that
 * neither full rings nor a large transfer hold up another one. Who has moved a ring rings the
 * bell of the member at its other end.
 */
#include "train/comm/ring.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define HEADER_BYTES sizeof(uint64_t)
#define PIECE_BYTES ((size_t)64 << 10)

struct progress {
    size_t done;     /* bytes moved, header included */
    uint64_t header; /* as sent, or as received */
    bool is_complete;
};

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Copies between the stream at `position` and `bytes`, round the end of the ring. */
static void copy_stream(const struct segment *segment, struct segment_ring *ring, uint64_t position,
                        void *bytes, size_t count, bool is_write)
{
    size_t at = (size_t)position & (segment->ring_bytes - 1);
    size_t first = smaller(count, segment->ring_bytes - at);
    unsigned char *plain = bytes;

    if (is_write) {
        memcpy(ring->data + at, plain, first);
        memcpy(ring->data, plain + first, count - first);
    } else {
        memcpy(plain, ring->data + at, first);
        memcpy(plain + first, ring->data, count - first);
    }
}

static void ring_bell(const struct segment *segment, int member)
{
    struct segment_member *other = segment_member(segment, member);

    atomic_fetch_add(&other->bell, 1);
    if (atomic_load(&other->is_asleep) != 0) {
        wait_wake(&other->bell);
    }
}

/* Moves up to a piece of one transfer; returns the bytes moved. */
static size_t move_piece(struct segment *segment, const struct comm_transfer *transfer,
                         struct progress *progress)
{
    bool is_send = transfer->is_send != 0;
    struct segment_ring *ring = is_send ? segment_ring(segment, segment->rank, transfer->peer)
                                        : segment_ring(segment, transfer->peer, segment->rank);
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
    size_t room = is_send ? segment->ring_bytes - (size_t)(head - tail) : (size_t)(head - tail);
    uint64_t position = is_send ? head : tail;
    size_t moved = 0;

    if (progress->done == 0) {
        if (room < HEADER_BYTES) { /* the ring's size and all headers are multiples of 8, */
            return 0;              /* but messages are not: wait for a whole header */
        }
        progress->header = transfer->bytes;
        copy_stream(segment, ring, position, &progress->header, HEADER_BYTES, is_send);
        progress->done = HEADER_BYTES;
        moved = HEADER_BYTES;
    }
    if (progress->header == transfer->bytes) {
        size_t body = progress->done - HEADER_BYTES;
        size_t part = smaller(smaller(transfer->bytes - body, room - moved), PIECE_BYTES);

        if (part > 0) {
            copy_stream(segment, ring, position + moved, (unsigned char *)transfer->buffer + body,
                        part, is_send);
        }
        progress->done += part;
        moved += part;
        progress->is_complete = progress->done == HEADER_BYTES + transfer->bytes;
    }
    if (moved > 0) {
        atomic_store_explicit(is_send ? &ring->head : &ring->tail, position + moved,
                              memory_order_release);
        ring_bell(segment, transfer->peer);
    }
    return moved;
}

/* Whether an earlier transfer with the same peer in the same direction is not yet complete. */
static bool is_blocked(const struct comm_transfer *transfers, const struct progress *progress,
                       int index)
{
    for (int i = 0; i < index; i++) {
        if (!progress[i].is_complete && transfers[i].peer == transfers[index].peer &&
            (transfers[i].is_send != 0) == (transfers[index].is_send != 0)) {
            return true;
        }
    }
    return false;
}

static enum status fail_length(struct segment *segment, const struct comm_transfer *transfer,
                               uint64_t sent)
{
    int peer = segment->world_ranks[transfer->peer];
    char text[FAULT_TEXT_MAX];

    snprintf(text, sizeof(text),
             "rank %d sent %" PRIu64 " bytes in group '%s' where rank %d "
             "receives %zu; both sides must agree",
             peer, sent, segment->name, segment->world_ranks[segment->rank], transfer->bytes);
    return fault_break(&segment->world->fault, STATUS_CORRUPT, peer, text);
}

/* One piece of every transfer that may go on. */
static enum status move_all(struct segment *segment, const struct comm_transfer *transfers,
                            int count, struct progress *progress, size_t *out_moved, int *out_left)
{
    *out_moved = 0;
    *out_left = 0;
    for (int i = 0; i < count; i++) {
        if (!progress[i].is_complete && !is_blocked(transfers, progress, i)) {
            *out_moved += move_piece(segment, &transfers[i], &progress[i]);
            if (progress[i].done > 0 && progress[i].header != transfers[i].bytes) {
                return fail_length(segment, &transfers[i], progress[i].header);
            }
        }
        *out_left += !progress[i].is_complete;
    }
    return STATUS_OK;
}

static int list_missing(const struct segment *segment, const struct comm_transfer *transfers,
                        int count, const struct progress *progress)
{
    int missing = 0;

    for (int i = 0; i < count; i++) {
        int peer = segment->world_ranks[transfers[i].peer];
        bool is_listed = progress[i].is_complete;

        for (int k = 0; k < missing && !is_listed; k++) {
            is_listed = segment->missing[k] == peer;
        }
        if (!is_listed) {
            segment->missing[missing++] = peer;
        }
    }
    return missing;
}

enum status ring_exchange(struct segment *segment, struct wait *wait,
                          const struct comm_transfer *transfers, int count)
{
    struct segment_member *me = segment_member(segment, segment->rank);
    struct progress progress[COMM_EXCHANGE_MAX] = {0};
    enum status st = STATUS_OK;

    for (;;) {
        uint32_t bell = atomic_load(&me->bell);
        size_t moved = 0;
        int left = 0;

        TRY(st, move_all(segment, transfers, count, progress, &moved, &left), done);
        if (left == 0) {
            break;
        }
        if (moved > 0 || wait_spin(segment->world, &me->bell, bell)) {
            continue;
        }
        atomic_store(&me->is_asleep, 1);
        wait_sleep(&me->bell, bell);
        atomic_store(&me->is_asleep, 0);
        if (atomic_load(&me->bell) == bell) {
            int missing = list_missing(segment, transfers, count, progress);

            TRY(st, wait_turn(wait, segment->missing, missing), done);
        }
    }
done:
    wait_end(wait);
    return st;
}
