/* SPDX-License-Identifier: Apache-2.0 */
/* The integer types in which kernels compute indices: 32 bits where these suffice, as divisions are several times
   faster. */
#ifndef WEFT_ENGINES_CUDA_INDEX_TYPE_H
#define WEFT_ENGINES_CUDA_INDEX_TYPE_H

#include <stdint.h>

/* Indices below it have 32 bits. A build for tests lowers it, so that small tensors reach the code for large ones
   (tests/test_emulated.py). */
#ifndef WEFT_INDEX32_MAX
#define WEFT_INDEX32_MAX INT32_MAX
#endif

/* The type of the numbers below `count`. */
static inline const char *index_type(int64_t count) { return count < WEFT_INDEX32_MAX ? "u32" : "i64"; }

#endif
