/* Ranks as threads of one process, with the group that a save or load asks for.
 *
 * A rank that leaves an exchange alone, or exchanges something of another kind or size than its
 * peers, is what the group notices: the exchange fails on all with STATUS_FAILED.
 */
#ifndef TESTS_UNIT_CKPT_RANK_THREADS_H
#define TESTS_UNIT_CKPT_RANK_THREADS_H

#include "ckpt/base/status.h"
#include "ckpt/ckpt.h"

#define RANK_THREADS_MAX 8

struct rank_threads;

/* What one rank does; its record becomes out_records[rank]. The group lives as long as the
 * rank_threads, so that a writer opened in one run saves in a later one. */
typedef enum status (*rank_threads_fn)(const struct ckpt_group *group, void *context);

struct rank_threads *rank_threads_create(int size);
void rank_threads_destroy(struct rank_threads **ranks); /* takes NULL inside */
/* Runs all ranks and waits for them. */
void rank_threads_run(struct rank_threads *ranks, rank_threads_fn run, void *context,
                      struct status_record out_records[RANK_THREADS_MAX]);

#endif
