/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA kernel families. */
#ifndef WEFT_ENGINES_CUDA_FAMILIES_H
#define WEFT_ENGINES_CUDA_FAMILIES_H

#include "engines/engine.h"

extern const struct family cuda_map; /* pointwise operations and data movement in one sweep */

#endif
