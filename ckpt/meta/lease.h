/* The lease: one run at a time may write a SAVE directory, and a stale writer is fenced.
 *
 *     SAVE/.owner.<E>          the owner of epoch E; the highest E is the owner; created with
 *                              O_EXCL, so of two that want E one wins
 *     SAVE/.epoch-<E>/         everything the ranks of epoch E have not yet committed
 *
 *        none ---- lease_acquire ----> held(E) ---- lease_release ----> released(E)
 *                                        |  ^ keeper: counter + 1 every LEASE_BEAT_MS
 *        another's lease_acquire: creates .owner.<E+1>, then renames .epoch-<E> to trash, so that a
 *        late commit of E, whose path leads through .epoch-<E>, fails: lost(E)
 *
 * Who may take over at once: the same run (equal run_id: its agent knows that the old ranks are
 * gone); anybody, when the file says released, or when host and boot are this one and the process
 * is gone (pid and start time, compared only inside one pid namespace). Otherwise the newcomer
 * watches the counter on its own clock and takes over when it has stood still for LEASE_STALE_MS;
 * a moving one is STATUS_NOT_OWNER, and the message names both sides (host, pid, run, path). Times
 * in files are never compared.
 * Only rank 0 of a run holds the lease. Threads: the keeper is a thread inside; the functions are
 * called by one thread.
 */
#ifndef CKPT_META_LEASE_H
#define CKPT_META_LEASE_H

#include <stdint.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"
#include "ckpt/meta/heartbeat.h"

#define LEASE_BEAT_MS HEARTBEAT_BEAT_MS
#define LEASE_STALE_MS HEARTBEAT_STALE_MS
#define LEASE_RUN_ID_MAX 64

struct lease;

/* Takes the lease of `save` (which exists) for `run_id` (not empty) and starts the keeper. Clears
 * what earlier epochs left: their staging directories are renamed to trash and removed, then their
 * owner files. May wait LEASE_STALE_MS and a little more. */
enum status lease_acquire(struct fs *fs, const char *save, const char *run_id,
                          struct lease **out_lease) STATUS_MUST_CHECK;
uint64_t lease_epoch(const struct lease *lease);
/* "SAVE/.epoch-<E>": made and durable. */
const char *lease_staging(const struct lease *lease);
/* STATUS_NOT_OWNER when a newer owner is there (its host, pid and run are named). Reads the
 * directory: called before each save and before each commit. */
enum status lease_check(const struct lease *lease) STATUS_MUST_CHECK;
/* Marks it released, stops the keeper, frees. Takes NULL inside, leaves NULL. */
void lease_release(struct lease **lease);
/* A new random run id, 32 hexadecimal digits. */
enum status lease_make_run_id(char out_run_id[LEASE_RUN_ID_MAX]) STATUS_MUST_CHECK;

#endif
