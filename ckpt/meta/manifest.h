/* The manifest: what one checkpoint holds, and the proof that it is whole.
 *
 * It is the last file written into a staging directory and the first one read of a checkpoint.
 * The text is JSON; its last member, "manifest_hash", is the XXH3-128 (32 hexadecimal digits) of
 * all bytes of the file before the line that holds it, so that a flipped bit in the manifest
 * itself is noticed. Every number that matters for a load is checked here (STATUS_CORRUPT names
 * file and member): shapes, tensor names (printable, no empty, "." or ".." component), shard names
 * (layout_shard_name of their coordinates, so never a path), counts and sizes within limits, every
 * (tp, pp, dp) of the layout present once. FORMAT.md is the reference of the members.
 * Threads: none inside; a manifest that nobody changes may be read by several.
 */
#ifndef CKPT_META_MANIFEST_H
#define CKPT_META_MANIFEST_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/hash.h"
#include "ckpt/base/status.h"
#include "ckpt/meta/layout.h"
#include "ckpt/meta/shard_map.h"

#define MANIFEST_FILE "manifest.json"
#define MANIFEST_FORMAT_VERSION 1
#define MANIFEST_TENSOR_NAME_MAX 200
#define MANIFEST_TENSORS_MAX 1000000
#define MANIFEST_RUN_ID_MAX 64

enum manifest_type { MANIFEST_F32, MANIFEST_BF16, MANIFEST_F16, MANIFEST_I64, MANIFEST_TYPE_COUNT };

struct manifest_tensor {
    char *name; /* "param/decoder.layers.3.mlp.linear_fc1.weight" */
    enum manifest_type type;
    int dims;
    uint64_t shape[BOX_DIMS_MAX];
};

/* One shard file. Its index (a JSON text stored as the last dataset of the file: which box of
 * which tensor lies where, with chunk hashes) is found by offset and size without HDF5. */
struct manifest_file {
    struct coords coords;
    char name[LAYOUT_NAME_MAX];
    uint64_t bytes;
    struct hash128 hash; /* of the whole file */
    uint64_t index_offset, index_bytes;
    struct hash128 index_hash;
};

struct manifest {
    uint64_t step;
    uint64_t epoch;       /* incarnation of the run that wrote it */
    uint64_t parent_step; /* the step it was resumed from; equal to step: from scratch */
    char run_id[MANIFEST_RUN_ID_MAX];
    struct layout layout; /* that wrote it */
    int64_t created_wall_ns;
    char compression[32]; /* "none", "zstd" */
    uint64_t state_hash;  /* hash_state_finish over all tensors */
    cJSON *options;       /* options_to_json of the run; object */
    cJSON *state;         /* the scalars that survive: consumed samples, RNG ...; object */
    struct manifest_tensor *tensors; /* sorted by name at all times */
    size_t tensor_count, tensor_capacity;
    struct manifest_file *files; /* sorted by rank at all times */
    size_t file_count, file_capacity;
};

/* An empty one; options and state are empty objects. */
enum status manifest_init(struct manifest *manifest) STATUS_MUST_CHECK;
void manifest_deinit(struct manifest *manifest);
enum status manifest_add_tensor(struct manifest *manifest, const char *name,
                                enum manifest_type type, int dims, const uint64_t *shape)
    STATUS_MUST_CHECK; /* STATUS_EXISTS when the name is there */
/* STATUS_EXISTS when there is a file of these coordinates. */
enum status manifest_add_file(struct manifest *manifest, const struct manifest_file *file)
    STATUS_MUST_CHECK;
/* NULL when it is not there. Binary search. */
const struct manifest_tensor *manifest_find(const struct manifest *manifest, const char *name);
size_t manifest_type_bytes(enum manifest_type type);
const char *manifest_type_name(enum manifest_type type);        /* "f32" */
uint64_t manifest_total_bytes(const struct manifest *manifest); /* of its files */

/* Every rule of the head of this file; asked before each print and after each parse. */
enum status manifest_check(const struct manifest *manifest, const char *what) STATUS_MUST_CHECK;
/* The text, ending in a newline. Freed by mem_free. */
enum status manifest_print(const struct manifest *manifest, char **out_text, size_t *out_bytes)
    STATUS_MUST_CHECK;
/* Writes DIRECTORY/manifest.json (create new, sync); the caller syncs the directory. */
enum status manifest_write(const struct manifest *manifest, struct fs *fs, const char *directory)
    STATUS_MUST_CHECK;
/* Parses and checks a text; `what` names it in errors. */
enum status manifest_parse(const char *text, size_t bytes, const char *what,
                           struct manifest *out_manifest) STATUS_MUST_CHECK;
/* STATUS_NOT_FOUND: no such directory or no manifest in it. STATUS_CORRUPT: damaged.
 * STATUS_UNSUPPORTED: a newer format version. */
enum status manifest_read(struct fs *fs, const char *directory, struct manifest *out_manifest)
    STATUS_MUST_CHECK;
/* The quick check: every file is there with its size. */
enum status manifest_check_files(const struct manifest *manifest, struct fs *fs,
                                 const char *directory) STATUS_MUST_CHECK;
/* Reads one file whole, past the page cache, and compares its size and hash. */
enum status manifest_check_file_hash(const struct manifest_file *file, struct fs *fs,
                                     const char *directory) STATUS_MUST_CHECK;

#endif
