/* A file system in memory that can lose power, for tests of everything that must survive it.
 *
 * It keeps apart what processes see and what is durable. A write is durable after fs_sync of its
 * file; a name (made, removed, renamed) after fs_sync_dir of a directory that it touches; nothing
 * else makes anything durable. fs_sim_crash keeps a random subset of the rest: of each unsynced
 * write all, nothing, a part, or only the size with zeros; of each unsynced name operation all or
 * nothing (a rename is never half done, and an operation survives only together with the earlier
 * ones on the same file or the same name, as journals see to).
 *
 * Every call but close is counted. Call n can be made to fail with a status (a failed pwrite leaves
 * half of its bytes), or the machine to stop just before it: then each call fails until the crash.
 * Threads: any; calls are serialized.
 */
#ifndef TESTS_SUPPORT_FS_SIM_H
#define TESTS_SUPPORT_FS_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"

struct fs_sim;

/* An empty root directory "/". Ends the process when there is no memory. */
struct fs_sim *fs_sim_create(void);
void fs_sim_destroy(struct fs_sim *sim);
struct fs *fs_sim_fs(struct fs_sim *sim);

uint64_t fs_sim_calls(struct fs_sim *sim);                             /* so far */
void fs_sim_fail_at(struct fs_sim *sim, uint64_t n, enum status code); /* 1: the next; 0: none */
void fs_sim_cut_at(struct fs_sim *sim, uint64_t n);                    /* 1: the next; 0: none */
/* Power off and on again. Files that are open stay open to be closed, and fail otherwise. */
void fs_sim_crash(struct fs_sim *sim, uint64_t seed);

/* The calls so far that changed or synced something and succeeded, one line each:
 * "rename /a /b", "sync /a/file". The index of the first line at or after `from` that begins with
 * `prefix`, or -1. */
int fs_sim_find_call(struct fs_sim *sim, int from, const char *prefix);

#endif
