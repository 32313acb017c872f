/* Collectives through a group's shared memory. See window.h and segment.h.
 *
 * A call cuts the buffer into one part per member and each part into pieces of one slot. In turn k
 * every member puts its piece k of all parts into its slab; behind the barrier the owner of a part
 * folds the members' pieces in rank order; for an all-reduce it leaves the sum in the result, from
 * where all collect it behind the next barrier. Reduce-scatter is the first half of that,
 * all-gather the second, broadcast an all-gather in which one part is not empty. Putting piece
 * k + 1 is done before the barrier of k, so that a turn costs one barrier.
 *
 * At its first barrier each member shows which call it makes; members that disagree get
 * STATUS_CORRUPT instead of a wrong sum.
 */
#include "train/comm/window.h"

#include <stdio.h>
#include <string.h>

#include "ckpt/base/hash.h"
#include "ckpt/base/mem.h"
#include "train/comm/fold.h"

/* Up to here every member folds everything itself: one barrier less. */
#define SMALL_BYTES ((size_t)16 << 10)
#define CALL_SHIFT 56 /* a call's word: kind above, hash of arguments below */

const char *window_call_name(enum window_call call)
{
    static const char *const names[] = {
        [WINDOW_SETUP] = "set-up",
        [WINDOW_ALL_REDUCE] = "all-reduce",
        [WINDOW_REDUCE_SCATTER] = "reduce-scatter",
        [WINDOW_ALL_GATHER] = "all-gather",
        [WINDOW_BROADCAST] = "broadcast",
        [WINDOW_BARRIER] = "barrier",
    };

    return call >= WINDOW_SETUP && call <= WINDOW_BARRIER ? names[call] : "nothing known";
}

enum status window_init(struct window *window, struct segment *segment)
{
    size_t n = (size_t)segment->size;
    enum status st = STATUS_OK;

    memset(window, 0, sizeof(*window));
    window->segment = segment;
    TRY(st, mem_alloc(&window->offsets, n, sizeof(*window->offsets)), done);
    TRY(st, mem_alloc(&window->lengths, n, sizeof(*window->lengths)), done);
    TRY(st, mem_alloc(&window->slots, n, sizeof(*window->slots)), done);
    TRY(st, mem_alloc(&window->sources, n, sizeof(*window->sources)), done);
done:
    return st;
}

void window_deinit(struct window *window)
{
    mem_free(&window->offsets);
    mem_free(&window->lengths);
    mem_free(&window->slots);
    mem_free(&window->sources);
}

/* The members that have not come to this member's present barrier. */
static int list_missing(const struct segment *segment)
{
    uint64_t mine = atomic_load(&segment_member(segment, segment->rank)->arrivals);
    int count = 0;

    for (int i = 0; i < segment->size; i++) {
        if (atomic_load(&segment_member(segment, i)->arrivals) < mine) {
            segment->missing[count++] = segment->world_ranks[i];
        }
    }
    return count;
}

static enum status pass_barrier(struct window *window, struct wait *wait)
{
    struct segment *segment = window->segment;
    struct segment_head *head = segment_head(segment);
    uint32_t turn = atomic_load(&head->turn); /* cannot move before this member arrives */
    enum status st = STATUS_OK;

    atomic_fetch_add(&segment_member(segment, segment->rank)->arrivals, 1);
    if (atomic_fetch_add(&head->arrived, 1) + 1 == (uint32_t)segment->size) {
        atomic_store(&head->arrived, 0);
        atomic_fetch_add(&head->turn, 1);
        if (atomic_load(&head->sleepers) > 0) {
            wait_wake(&head->turn);
        }
        return STATUS_OK;
    }
    if (wait_spin(segment->world, &head->turn, turn)) {
        return STATUS_OK;
    }
    for (;;) {
        atomic_fetch_add(&head->sleepers, 1);
        wait_sleep(&head->turn, turn);
        atomic_fetch_sub(&head->sleepers, 1);
        if (atomic_load(&head->turn) != turn) {
            break;
        }
        TRY(st, wait_turn(wait, segment->missing, list_missing(segment)), done);
    }
done:
    wait_end(wait);
    return st;
}

static void show_call(struct window *window, enum window_call call, uint64_t arguments)
{
    struct segment_member *me = segment_member(window->segment, window->segment->rank);
    uint64_t word = (uint64_t)call << CALL_SHIFT | arguments >> (64 - CALL_SHIFT);

    window->calls++;
    atomic_store_explicit(&me->calls[window->calls & 1], word, memory_order_release);
}

/* Behind the first barrier of a call. A member that is ahead shows its next call in the other
 * word, and cannot be two calls ahead. */
static enum status compare_calls(struct window *window, struct wait *wait)
{
    const struct segment *segment = window->segment;
    size_t parity = window->calls & 1;
    uint64_t mine = atomic_load(&segment_member(segment, segment->rank)->calls[parity]);
    char text[FAULT_TEXT_MAX];

    for (int i = 0; i < segment->size; i++) {
        uint64_t other =
            atomic_load_explicit(&segment_member(segment, i)->calls[parity], memory_order_acquire);

        if (other != mine) {
            snprintf(text, sizeof(text),
                     "rank %d makes %s in group '%s' while rank %d makes %s%s;"
                     " all members must make the same calls",
                     segment->world_ranks[i],
                     window_call_name((enum window_call)(other >> CALL_SHIFT)), segment->name,
                     segment->world_ranks[segment->rank],
                     window_call_name((enum window_call)(mine >> CALL_SHIFT)),
                     other >> CALL_SHIFT == mine >> CALL_SHIFT ? " with other arguments" : "");
            return fault_break(&wait->world->fault, STATUS_CORRUPT, segment->world_ranks[i], text);
        }
    }
    return STATUS_OK;
}

enum status window_barrier(struct window *window, struct wait *wait, enum window_call call)
{
    enum status st = STATUS_OK;

    show_call(window, call, 0);
    TRY(st, pass_barrier(window, wait), done);
    TRY(st, compare_calls(window, wait), done);
done:
    return st;
}

/* Plans the walk over parts of the given lengths, one after the other. */
static void plan_walk(struct window *window, const size_t *counts, size_t element_bytes)
{
    size_t n = (size_t)window->segment->size;
    size_t offset = 0;
    size_t longest = 0;
    size_t used = 0;

    for (size_t i = 0; i < n; i++) {
        window->offsets[i] = offset;
        window->lengths[i] = counts[i] * element_bytes;
        offset += window->lengths[i];
        longest = window->lengths[i] > longest ? window->lengths[i] : longest;
        used += counts[i] > 0;
    }
    used = used > 0 ? used : 1;
    window->slot_bytes = window->segment->chunk_bytes / used / SEGMENT_LINE * SEGMENT_LINE;
    window->piece_count = longest == 0 ? 1 : (longest - 1) / window->slot_bytes + 1;
    for (size_t i = 0, slot = 0; i < n; i++) {
        window->slots[i] = slot * window->slot_bytes;
        slot += counts[i] > 0;
    }
}

/* Piece k of a member's part: where in the buffer, and how long (0 behind its end). */
static size_t find_piece(const struct window *window, size_t member, size_t k, size_t *out_offset)
{
    size_t at = k * window->slot_bytes;
    size_t left = window->lengths[member] > at ? window->lengths[member] - at : 0;

    *out_offset = window->offsets[member] + at;
    return left < window->slot_bytes ? left : window->slot_bytes;
}

/* Puts this member's values of piece k of all others' parts into its slab. */
static void put_pieces(struct window *window, size_t k, const unsigned char *buffer)
{
    const struct segment *segment = window->segment;
    unsigned char *slab = segment_slab(segment, window->turn + k, segment->rank);

    for (int i = 0; i < segment->size; i++) {
        size_t offset = 0;
        size_t bytes = find_piece(window, (size_t)i, k, &offset);

        if (i != segment->rank && bytes > 0) {
            memcpy(slab + window->slots[i], buffer + offset, bytes);
        }
    }
}

/* Folds all members' values of piece k of this member's part; into the result, too, if wanted. */
static void fold_piece(struct window *window, size_t k, unsigned char *buffer, enum comm_type type,
                       enum comm_op op, bool with_result)
{
    const struct segment *segment = window->segment;
    size_t me = (size_t)segment->rank;
    size_t offset = 0;
    size_t bytes = find_piece(window, me, k, &offset);
    unsigned char *result = segment_result(segment, window->turn + k) + window->slots[me];

    if (bytes == 0) {
        return;
    }
    for (int i = 0; i < segment->size; i++) {
        window->sources[i] = segment_slab(segment, window->turn + k, i) + window->slots[me];
    }
    window->sources[me] = buffer + offset;
    fold_members(window->sources, segment->size, bytes / comm_type_bytes(type), type, op,
                 buffer + offset, with_result ? result : NULL);
}

/* Puts piece k of this member's part into the result. */
static void put_result(struct window *window, size_t k, const unsigned char *buffer)
{
    size_t me = (size_t)window->segment->rank;
    size_t offset = 0;
    size_t bytes = find_piece(window, me, k, &offset);

    if (bytes > 0) {
        memcpy(segment_result(window->segment, window->turn + k) + window->slots[me],
               buffer + offset, bytes);
    }
}

/* Takes piece k of all others' parts from the result. */
static void collect_pieces(struct window *window, size_t k, unsigned char *buffer)
{
    const struct segment *segment = window->segment;
    const unsigned char *result = segment_result(segment, window->turn + k);

    for (int i = 0; i < segment->size; i++) {
        size_t offset = 0;
        size_t bytes = find_piece(window, (size_t)i, k, &offset);

        if (i != segment->rank && bytes > 0) {
            memcpy(buffer + offset, result + window->slots[i], bytes);
        }
    }
}

static enum status all_reduce_small(struct window *window, struct wait *wait, void *buffer,
                                    size_t count, enum comm_type type, enum comm_op op)
{
    const struct segment *segment = window->segment;
    enum status st = STATUS_OK;

    for (int i = 0; i < segment->size; i++) {
        window->sources[i] = segment_slab(segment, window->turn, i);
    }
    if (count > 0) {
        memcpy(segment_slab(segment, window->turn, segment->rank), buffer,
               count * comm_type_bytes(type));
    }
    TRY(st, pass_barrier(window, wait), done);
    TRY(st, compare_calls(window, wait), done);
    fold_members(window->sources, segment->size, count, type, op, buffer, NULL);
    window->turn++;
done:
    return st;
}

/* Even parts for an all-reduce, in whole cache lines. */
static void plan_even_walk(struct window *window, size_t count, size_t element_bytes)
{
    size_t n = (size_t)window->segment->size;
    size_t line = SEGMENT_LINE / element_bytes;
    size_t part = ((count + n - 1) / n + line - 1) / line * line;
    size_t *counts = window->lengths; /* plan_walk reads each before it writes it */

    for (size_t i = 0; i < n; i++) {
        counts[i] = count < part ? count : part;
        count -= counts[i];
    }
    plan_walk(window, counts, element_bytes);
}

enum status window_all_reduce(struct window *window, struct wait *wait, void *buffer, size_t count,
                              enum comm_type type, enum comm_op op)
{
    uint64_t arguments[] = {count, type, op};
    size_t bytes = count * comm_type_bytes(type);
    enum status st = STATUS_OK;

    show_call(window, WINDOW_ALL_REDUCE, hash_bytes64(arguments, sizeof(arguments)));
    if (bytes <= SMALL_BYTES && bytes <= window->segment->chunk_bytes) {
        return all_reduce_small(window, wait, buffer, count, type, op);
    }
    plan_even_walk(window, count, comm_type_bytes(type));
    put_pieces(window, 0, buffer);
    TRY(st, pass_barrier(window, wait), done);
    TRY(st, compare_calls(window, wait), done);
    for (size_t k = 0; k < window->piece_count; k++) {
        fold_piece(window, k, buffer, type, op, true);
        if (k + 1 < window->piece_count) {
            put_pieces(window, k + 1, buffer);
        }
        TRY(st, pass_barrier(window, wait), done);
        collect_pieces(window, k, buffer);
    }
    window->turn += window->piece_count;
done:
    return st;
}

enum status window_reduce_scatter(struct window *window, struct wait *wait, void *buffer,
                                  const size_t *counts, enum comm_type type)
{
    size_t n = (size_t)window->segment->size;
    enum status st = STATUS_OK;

    show_call(window, WINDOW_REDUCE_SCATTER, hash_bytes64(counts, n * sizeof(*counts)) + type);
    plan_walk(window, counts, comm_type_bytes(type));
    for (size_t k = 0; k < window->piece_count; k++) {
        put_pieces(window, k, buffer);
        TRY(st, pass_barrier(window, wait), done);
        if (k == 0) {
            TRY(st, compare_calls(window, wait), done);
        }
        fold_piece(window, k, buffer, type, COMM_SUM, false);
    }
    window->turn += window->piece_count;
done:
    return st;
}

static enum status gather(struct window *window, struct wait *wait, void *buffer)
{
    enum status st = STATUS_OK;

    for (size_t k = 0; k < window->piece_count; k++) {
        put_result(window, k, buffer);
        TRY(st, pass_barrier(window, wait), done);
        if (k == 0) {
            TRY(st, compare_calls(window, wait), done);
        }
        collect_pieces(window, k, buffer);
    }
    window->turn += window->piece_count;
done:
    return st;
}

enum status window_all_gather(struct window *window, struct wait *wait, void *buffer,
                              const size_t *byte_counts)
{
    size_t n = (size_t)window->segment->size;

    show_call(window, WINDOW_ALL_GATHER, hash_bytes64(byte_counts, n * sizeof(*byte_counts)));
    plan_walk(window, byte_counts, 1);
    return gather(window, wait, buffer);
}

enum status window_broadcast(struct window *window, struct wait *wait, void *buffer, size_t bytes,
                             int root)
{
    uint64_t arguments[] = {bytes, (uint64_t)root};
    size_t *counts = window->lengths; /* plan_walk reads each before it writes it */

    show_call(window, WINDOW_BROADCAST, hash_bytes64(arguments, sizeof(arguments)));
    memset(counts, 0, (size_t)window->segment->size * sizeof(*counts));
    counts[root] = bytes;
    plan_walk(window, counts, 1);
    return gather(window, wait, buffer);
}
