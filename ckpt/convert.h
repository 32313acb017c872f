/* Models of other systems as checkpoints of step 0.
 *
 * Before it: a folder of transformers with config.json and model.safetensors of a GPT-2. After it:
 * writer. Their Conv1D weights are [in, out], ours [out, in]; their fused QKV is q of all heads,
 * then k, then v, ours head by head (q, k, v of head 0, then of head 1 ...), as Megatron's. Adam's
 * moments start at zero. The layout is TP 1 x PP 1 x DP 1; a load cuts it for any other.
 */
#ifndef CKPT_CONVERT_H
#define CKPT_CONVERT_H

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"

struct convert_result {
    uint64_t parameters;
    uint64_t state_hash;
};

/* STATUS_EXISTS when SAVE holds step 0 already; STATUS_UNSUPPORTED for an architecture other than
 * GPT-2's; nothing is left behind by a failure. */
enum status convert_import_gpt2(struct fs *fs, const char *folder, const char *save,
                                int thread_count, struct convert_result *out_result)
    STATUS_MUST_CHECK;

#endif
