/* How a call of the local implementation waits: in short slices, never past its deadline, and with
 * a look at every slice whether the world still stands.
 *
 * A waiting loop checks its own condition first, then sleeps (wait_sleep), and when a slice has
 * passed without it, calls wait_turn with the members it still misses:
 *
 *     while (!arrived()) {
 *         wait_sleep(&word, seen);
 *         if (!arrived()) { TRY(st, wait_turn(&wait, missing, count), done); }
 *     }
 *     wait_end(&wait);
 */
#ifndef TRAIN_COMM_WAIT_H
#define TRAIN_COMM_WAIT_H

#include "ckpt/base/clock.h"
#include "train/comm/comm.h"
#include "train/comm/fault.h"
#include "train/comm/mesh.h"

#define WAIT_SLICE_MS 3 /* a death is noticed within about this time */
#define WAIT_BEAT_MS 100
#define COMM_NAME_MAX 32

/* What all groups of a world share. */
struct wait_world {
    struct fault fault;
    struct mesh mesh;
    int rank, size;
    int spin_count; /* looks at a word before sleeping on it */
    int64_t call_timeout_ms;
    void (*on_wait)(void *context);
    void *on_wait_context;
};

struct wait {
    struct wait_world *world;
    struct deadline deadline;
    int64_t next_beat_ns;
    int leaver;    /* missing and gone at the last turn: world rank, or -1 */
    bool is_shown; /* in the page: whom this rank waits for */
    int64_t timeout_ms;
    const char *what; /* "all-reduce" */
    const char *group;
    uint64_t sequence;
};

struct wait wait_begin(struct wait_world *world, int64_t timeout_ms, const char *what,
                       const char *group, uint64_t sequence);
/* After a slice in vain. `missing` are world ranks, not this one; an empty list means that all
 * have come but one did not go on. */
enum status wait_turn(struct wait *wait, const int *missing, int count) STATUS_MUST_CHECK;
void wait_end(struct wait *wait);

/* Sleeps for a slice at most, while *word is `seen`. */
void wait_sleep(_Atomic uint32_t *word, uint32_t seen);
void wait_wake(_Atomic uint32_t *word);
/* Looks at *word a short while; true when it is no longer `seen`. */
bool wait_spin(const struct wait_world *world, _Atomic uint32_t *word, uint32_t seen);
/* OK while nothing has broken the world and no peer is dead. */
enum status wait_look(struct wait_world *world, const char *what) STATUS_MUST_CHECK;

#endif
