/* Who works with whom: the groups of one rank, and which layers its stage holds.
 *
 * Before it: comm (the world of all ranks), layout.h (rank order). After it: model (tp), pipeline
 * (pp), grads and optimizer (dp, embedding). The norm is summed over the world: with gradients
 * sharded over DP that is Megatron's model-parallel group times DP.
 */
#ifndef TRAIN_PARALLEL_TOPOLOGY_H
#define TRAIN_PARALLEL_TOPOLOGY_H

#include <stdbool.h>

#include "ckpt/base/status.h"
#include "ckpt/meta/layout.h"
#include "train/comm/comm.h"

struct topology {
    struct layout layout;
    struct coords coords;
    struct comm *world;        /* the caller's */
    struct comm *tp, *dp, *pp; /* groups ordered by that coordinate */
    struct comm *embedding;    /* first and last stage of equal tp and dp; NULL where no tied
                                     * embedding is held twice, or not here */
};

enum topology_axis { TOPOLOGY_TP, TOPOLOGY_PP, TOPOLOGY_DP, TOPOLOGY_EMBEDDING };

/* Collective over the world, whose size is that of the layout. `tied`: the output layer is the word
 * embedding. */
enum status topology_open(struct layout layout, bool tied, struct comm *world,
                          struct topology *out_topology) STATUS_MUST_CHECK;
/* Takes a zeroed topology; the world stays open. */
void topology_close(struct topology *topology);

/* The world ranks of the group along `axis` through `coords`, in order; returns how many (0: no
 * embedding group there). `out_ranks` has room for the axis's size, at least 2. Pure. */
int topology_ranks(struct layout layout, struct coords coords, enum topology_axis axis,
                   int *out_ranks);
/* Near-equal cut of `layers` over `stages`: the first layers % stages stages hold one more, since
 * the last stage also has the output. Pure. */
void topology_stage_layers(int layers, int stages, int stage, int *out_begin, int *out_end);

#endif
