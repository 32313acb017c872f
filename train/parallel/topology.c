/* The groups of a rank. Before it: layout.h's rank order; after it: every collective of training.
 * Each rank splits the world in the same order (tp, pp, dp, embedding), so the splits match.
 */
#include "train/parallel/topology.h"

#include "ckpt/base/mem.h"

int topology_ranks(struct layout layout, struct coords coords, enum topology_axis axis,
                   int *out_ranks)
{
    int count = 0;

    switch (axis) {
    case TOPOLOGY_TP:
        for (coords.tp = 0; coords.tp < layout.tp; coords.tp++) {
            out_ranks[count++] = layout_rank(layout, coords);
        }
        break;
    case TOPOLOGY_PP:
        for (coords.pp = 0; coords.pp < layout.pp; coords.pp++) {
            out_ranks[count++] = layout_rank(layout, coords);
        }
        break;
    case TOPOLOGY_DP:
        for (coords.dp = 0; coords.dp < layout.dp; coords.dp++) {
            out_ranks[count++] = layout_rank(layout, coords);
        }
        break;
    case TOPOLOGY_EMBEDDING:
        if (layout.pp > 1 && (coords.pp == 0 || coords.pp == layout.pp - 1)) {
            coords.pp = 0;
            out_ranks[count++] = layout_rank(layout, coords);
            coords.pp = layout.pp - 1;
            out_ranks[count++] = layout_rank(layout, coords);
        }
        break;
    }
    return count;
}

void topology_stage_layers(int layers, int stages, int stage, int *out_begin, int *out_end)
{
    int each = layers / stages;
    int longer = layers % stages;

    CHECK(stage >= 0 && stage < stages && stages <= layers);
    *out_begin = stage * each + (stage < longer ? stage : longer);
    *out_end = *out_begin + each + (stage < longer ? 1 : 0);
}

static enum status split(const struct topology *topology, enum topology_axis axis, const char *name,
                         int *ranks, struct comm **out_group)
{
    int count = topology_ranks(topology->layout, topology->coords, axis, ranks);

    if (count == 0) {
        return STATUS_OK;
    }
    return comm_split(topology->world, name, ranks, count, out_group);
}

enum status topology_open(struct layout layout, bool tied, struct comm *world,
                          struct topology *out_topology)
{
    enum status st = STATUS_OK;
    struct topology topology = {.layout = layout, .world = world};
    int *ranks = NULL;

    CHECK(layout_size(layout) == comm_size(world));
    topology.coords = layout_coords(layout, comm_rank(world));
    TRY(st, mem_alloc(&ranks, (size_t)layout_size(layout) + 1, sizeof(*ranks)), done);
    TRY(st, split(&topology, TOPOLOGY_TP, "tp", ranks, &topology.tp), done);
    TRY(st, split(&topology, TOPOLOGY_PP, "pp", ranks, &topology.pp), done);
    TRY(st, split(&topology, TOPOLOGY_DP, "dp", ranks, &topology.dp), done);
    if (tied) {
        TRY(st, split(&topology, TOPOLOGY_EMBEDDING, "embedding", ranks, &topology.embedding),
            done);
    }
done:
    mem_free(&ranks);
    if (st != STATUS_OK) {
        topology_close(&topology);
    }
    *out_topology = topology;
    return st;
}

void topology_close(struct topology *topology)
{
    comm_close(&topology->embedding);
    comm_close(&topology->dp);
    comm_close(&topology->pp);
    comm_close(&topology->tp);
}
