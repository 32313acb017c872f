/* What the tests of ckpt/meta share: temporary folders, small manifests and checkpoints. */
#ifndef TESTS_UNIT_META_META_SUPPORT_H
#define TESTS_UNIT_META_META_SUPPORT_H

#include <criterion/criterion.h>
#include <stdint.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"
#include "ckpt/meta/lease.h"
#include "ckpt/meta/manifest.h"

#define SUPPORT_SHARD_BYTES 300

#define assert_ok(call)                                                                            \
    do {                                                                                           \
        enum status st_ = (call);                                                                  \
        cr_assert(st_ == STATUS_OK, "%s: %s", #call, status_last()->message);                      \
    } while (0)
#define assert_status(call, expected)                                                              \
    do {                                                                                           \
        enum status st_ = (call);                                                                  \
        cr_assert(st_ == (expected), "%s is %s, not %s: %s", #call, status_name(st_),              \
                  status_name(expected), status_last()->message);                                  \
    } while (0)

/* A new folder below $TMPDIR or /tmp, and its removal with everything in it. */
void support_make_folder(char out_path[FS_PATH_MAX]);
void support_remove_folder(const char *path);

/* A small generator for tests that print their seed. */
uint64_t support_random(uint64_t *state);

/* A manifest of TP 2, without files. */
void support_fill_manifest(struct manifest *manifest, uint64_t step);
/* Adds the file of rank `tp`; its content follows from step and rank. */
void support_add_file(struct manifest *manifest, int tp);
/* Writes (and syncs) the file of rank `tp` into `directory`. */
enum status support_write_shard(struct fs *fs, const char *directory, uint64_t step, int tp);
/* Makes SAVE/step_N at once, whole, without a lease. */
void support_plant(struct fs *fs, const char *save, uint64_t step);
/* begin, two shards, publish; discards what failed. */
enum status support_commit(struct fs *fs, const char *save, struct lease *lease, uint64_t step);
/* Whether SAVE/step_N is there and every byte of it is as it was committed. */
bool support_is_whole(struct fs *fs, const char *save, uint64_t step);
/* Replaces a file's content. */
void support_write_text(struct fs *fs, const char *directory, const char *name, const char *text);
/* "DIRECTORY/NAME" in a buffer of its own; two may be in use at once. */
const char *support_path(const char *directory, const char *name);

#endif
