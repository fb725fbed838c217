/* SPDX-License-Identifier: Apache-2.0 */
/* Depthwise convolution without a product of matrices, which would be all padding: each channel is filtered alone. */
#ifndef WEFT_ENGINES_CPU_DEPTHWISE_H
#define WEFT_ENGINES_CPU_DEPTHWISE_H

#include "engines/cpu/product/contraction.h"

/* Bytes of workspace of depthwise_run. */
int64_t depthwise_workspace_bytes(const struct piece *piece);

/* Runs a piece whose factors are patches and a filter of one channel per group, in float. The rows of the walk are
   images and positions, the columns groups; or the rows are images and groups, and the columns positions. */
void depthwise_run(const struct contraction *contraction, const struct piece *piece, void *const *values,
                   void *workspace);

#endif
