/* All ranks of a layout holding a small model: saves and loads of whole checkpoints in tests. */
#ifndef TESTS_UNIT_CKPT_SMALL_WORLD_H
#define TESTS_UNIT_CKPT_SMALL_WORLD_H

#include "tests/unit/ckpt/rank_threads.h"
#include "tests/unit/ckpt/small_model.h"

struct small_world {
    const struct small_model *model;
    struct layout layout;
    struct small_part parts[RANK_THREADS_MAX];
    struct fs *fs;
    const char *save, *compression, *run_id;
    const char *save_of_rank_1; /* not NULL: another directory */
    uint64_t keep_last;
    struct ckpt_save_result result; /* of the last save, rank 0's */
    struct rank_threads *ranks;
    struct ckpt_writer *writers[RANK_THREADS_MAX];
};

/* Every rank's part, zeroed; fs_posix(), "none", run-a. `save` stays the caller's. */
void small_world_init(struct small_world *world, const struct small_model *model,
                      struct layout layout, const char *save);
void small_world_deinit(struct small_world *world); /* closes writers, too */
void small_world_fill(struct small_world *world);
void small_world_clear(struct small_world *world);

/* Collective steps of all ranks; the records are the ranks'. */
void small_world_open(struct small_world *world,
                      struct status_record out_records[RANK_THREADS_MAX]);
void small_world_save(struct small_world *world, uint64_t step,
                      struct status_record out_records[RANK_THREADS_MAX]);
void small_world_load(struct small_world *world,
                      struct status_record out_records[RANK_THREADS_MAX]);
void small_world_close(struct small_world *world);
/* open, save, close, or load: they must do well, and a load must give every bit. */
void small_world_save_well(struct small_world *world, uint64_t step);
void small_world_load_well(struct small_world *world);

#endif
