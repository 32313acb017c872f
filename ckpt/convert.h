/* Models of other systems as checkpoints of step 0, and checkpoints as such models.
 *
 * Import. Before it: a folder of transformers with config.json and model.safetensors of a GPT-2.
 * After it: writer. Adam's moments start at zero. The layout is TP 1 x PP 1 x DP 1; a load cuts it
 * for any other.
 * Export. Before it: box_reader, over a checkpoint of any layout. After it: transformers. Weights
 * in float32, as they are stored; the optimizer's state stays behind.
 * gpt2_map.h says which tensor is which.
 */
#ifndef CKPT_CONVERT_H
#define CKPT_CONVERT_H

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"
#include "ckpt/meta/manifest.h"

struct convert_result {
    uint64_t parameters;
    uint64_t state_hash; /* of the checkpoint */
};

/* STATUS_EXISTS when SAVE holds step 0 already; STATUS_UNSUPPORTED for an architecture other than
 * GPT-2's; nothing is left behind by a failure. The whole state is in memory. */
enum status convert_import_gpt2(struct fs *fs, const char *folder, const char *save,
                                int thread_count, struct convert_result *out_result)
    STATUS_MUST_CHECK;
/* Makes `folder`, whole and durable or not at all: STATUS_EXISTS when it is there, STATUS_NOT_FOUND
 * when its parent is not. STATUS_UNSUPPORTED for a model that GPT-2 cannot be, STATUS_CORRUPT for a
 * damaged checkpoint. Memory: twice the largest tensor. */
enum status convert_export_gpt2(struct fs *fs, const char *checkpoint,
                                const struct manifest *manifest, const char *folder,
                                int thread_count, struct convert_result *out_result)
    STATUS_MUST_CHECK;

#endif
