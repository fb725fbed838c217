/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between tensors of the same dims, with any strides and types, as regions for the map family: small graphs that
   only engines see. */
#ifndef WEFT_ENGINES_CUDA_COPY_REGION_H
#define WEFT_ENGINES_CUDA_COPY_REGION_H

#include "engines/engine.h"

/* The values of the region's graph that are read and written. */
enum { COPY_FROM, COPY_TO };

weftStatus_t copy_region(struct region *region, const struct tensor *from, const struct tensor *to,
                         struct arena *arena);

/* Reads only elements whose coordinates along dims 1 and 3 are equal; the others become zeros. */
weftStatus_t copy_diagonal_region(struct region *region, const struct tensor *from, const struct tensor *to,
                                  struct arena *arena);

#endif
