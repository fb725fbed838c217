/* SPDX-License-Identifier: Apache-2.0 */
/* Products of a few rows of A with a matrix B in memory whose depths are neighbours, as weights [out, in] lie: B is
   read once, where it lies, and nothing is packed. An element is a dot product along vectors (small.h): lane l sums
   depths l, l + lanes, ... in turn, as far as vectors are whole, then lanes are added, then what is left, one by one.
   It must not know tensors or operations. */
#ifndef WEFT_ENGINES_CPU_FEW_H
#define WEFT_ENGINES_CPU_FEW_H

#include "engines/cpu/product/gemm.h"

enum { FEW_ROWS = 16, FEW_DEPTH = 1 << 14 }; /* of A at most: its rows stay in L2 while B passes */

/* Whether a product is made so; sizes, packing, types and strides decide, not addresses. */
bool few_takes(const struct gemm *gemm);

/* Bytes of workspace of few_run for any product of these sizes, and of fewer rows and less depth; 0: it takes none. */
int64_t few_workspace_bytes(const struct gemm *gemm, int threads);

/* gemm_run of what few_takes; each element's sum is the same whatever the number of threads. The workspace is aligned
   to a cache line. */
void few_run(const struct gemm *gemm, int threads, void *workspace);

#endif
