/* How the ranks of one generation find each other in a folder.
 *
 * Each rank listens on the socket "rank-N" in the folder and connects to all lower ranks; both
 * sides show who they are before either counts the other. Turned away: other users, garbage, other
 * generations (the older one ends with STATUS_ABORTED, the newer one waits on). The names are
 * removed when all have come; the path may be of any length.
 */
#ifndef TRAIN_COMM_RENDEZVOUS_H
#define TRAIN_COMM_RENDEZVOUS_H

#include "train/comm/comm.h"
#include "train/comm/mesh.h"

/* Writes "rank 3" or "ranks 1, 2, 5"; what does not fit is counted: "and 12 more". */
void rendezvous_format_ranks(char *out_text, size_t bytes, const int *ranks, int count);
/* Fills the sockets of `mesh`. STATUS_TIMEOUT names the ranks that did not come. */
enum status rendezvous_join(const struct comm_config *config, struct mesh *mesh) STATUS_MUST_CHECK;

#endif
