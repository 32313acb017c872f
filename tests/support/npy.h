/* Reads the .npy files of tests/refs: version 1, little-endian, C order.
 *
 * Used by any test that compares with arrays which NumPy wrote; list tests/support/npy.c among the
 * test's sources.
 */
#ifndef TESTS_SUPPORT_NPY_H
#define TESTS_SUPPORT_NPY_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"

#define NPY_DIMS_MAX 8

enum npy_type { NPY_INT32, NPY_INT64, NPY_UINT32, NPY_UINT16, NPY_INT16, NPY_FLOAT32, NPY_FLOAT64 };

struct npy {
    enum npy_type type;
    int dims; /* 0 for a scalar */
    uint64_t shape[NPY_DIMS_MAX];
    size_t count;   /* elements: the product of the shape */
    void *elements; /* count elements of `type`, row-major, aligned */
};

/* Another header, type or size than these is STATUS_CORRUPT. Freed by npy_deinit. */
enum status npy_read(const char *path, struct npy *out_array) STATUS_MUST_CHECK;
/* npy_read of "$HOLDFAST_TEST_REFS/NAME", for example "hf_gpt2/a/logits.npy". */
enum status npy_read_ref(const char *name, struct npy *out_array) STATUS_MUST_CHECK;
/* Takes a zeroed array. */
void npy_deinit(struct npy *array);

#endif
