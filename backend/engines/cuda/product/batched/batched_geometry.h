/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that batched.cuh and its host code share. */
#ifndef WEFT_ENGINES_CUDA_PRODUCT_BATCHED_BATCHED_GEOMETRY_H
#define WEFT_ENGINES_CUDA_PRODUCT_BATCHED_BATCHED_GEOMETRY_H

#include "engines/cuda/core/geometry.h"

/* How fragments of an operand are read; see batched.cuh. */
enum { BATCHED_DIRECT, BATCHED_LINES, BATCHED_WHOLE };
/* Elements of k that a step multiplies, and elements after a line in shared memory, which move the next one by 4 banks
   more. */
enum { BATCHED_STEP = 32, BATCHED_PAD = 8 };

#endif
