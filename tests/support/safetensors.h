/* Reads the .safetensors files of tests/refs: float32 tensors, the whole file in memory.
 *
 * Independent of ckpt/convert on purpose: list tests/support/safetensors.c among the test's sources
 * and link PkgConfig::CJSON.
 */
#ifndef TESTS_SUPPORT_SAFETENSORS_H
#define TESTS_SUPPORT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"

#define SAFETENSORS_DIMS_MAX 4

struct safetensors;

struct safetensor {
    int dims;
    uint64_t shape[SAFETENSORS_DIMS_MAX];
    size_t count;
    const float *values; /* row-major; the file's, not aligned beyond 4 bytes */
};

/* "$HOLDFAST_TEST_REFS/NAME". Closed by safetensors_close, which takes NULL inside. */
enum status safetensors_open_ref(const char *name, struct safetensors **out_file) STATUS_MUST_CHECK;
void safetensors_close(struct safetensors **file);
/* STATUS_NOT_FOUND when there is none of this name, STATUS_CORRUPT when it is not as above. */
enum status safetensors_find(const struct safetensors *file, const char *name,
                             struct safetensor *out_tensor) STATUS_MUST_CHECK;

#endif
