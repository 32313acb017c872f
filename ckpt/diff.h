/* What two checkpoints differ in: settings, tensors, values. Layouts are no difference.
 *
 * Before it: two manifests and their shards. After it: `holdfast ckpt diff`. Compared are the step,
 * the surviving scalars (manifest.state), the options of every class but RESHARD, and all tensors,
 * bit by bit. Not compared: who wrote it, when, in which layout and with which compression.
 * Memory: DIFF_SLAB_BYTES of each, or one row of a tensor where that is more.
 */
#ifndef CKPT_DIFF_H
#define CKPT_DIFF_H

#include <cjson/cJSON.h>
#include <stdint.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"
#include "ckpt/meta/manifest.h"

#define DIFF_SLAB_BYTES ((size_t)64 << 20)

struct diff_side {
    const char *path; /* of the checkpoint */
    const struct manifest *manifest;
};

enum diff_kind {
    DIFF_SETTING, /* step, an option, a scalar of the state */
    DIFF_SHAPE,   /* a tensor that one of them lacks, or has in another shape or type */
    DIFF_VALUES   /* a tensor's values */
};

struct diff_values {
    uint64_t elements, differing; /* by their bits: -0 is not 0, and a NaN is itself */
    uint64_t first;               /* row-major number of the first that differs */
    /* |a - b|, and that by the larger of |a| and |b|; infinite where a NaN or an infinity is beside
     * another value. */
    double max_abs, max_relative;
};

struct diff_finding {
    enum diff_kind kind;
    const char *name;                        /* of the option, scalar or tensor */
    const cJSON *value[2];                   /* DIFF_SETTING; NULL: that side has none */
    const struct manifest_tensor *tensor[2]; /* the others; NULL: that side has none */
    struct diff_values values;               /* DIFF_VALUES */
};

struct diff_totals {
    uint64_t settings, tensors; /* found */
    uint64_t tensors_compared;
};

/* Hands each finding to `report` as it is found: settings, then tensors, by name. Whether there is
 * any is no error: STATUS_OK with out_totals. */
typedef enum status (*diff_report_fn)(void *context, const struct diff_finding *finding);
enum status diff_run(struct fs *fs, const struct diff_side sides[2], int thread_count,
                     diff_report_fn report, void *context, struct diff_totals *out_totals)
    STATUS_MUST_CHECK;

#endif
