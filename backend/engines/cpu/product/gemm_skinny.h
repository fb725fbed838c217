/* SPDX-License-Identifier: Apache-2.0 */
/* Products of a few rows of A with a matrix B in memory whose depths are neighbours, as weights [out, in] lie: B is
   read once, where it lies, and nothing is packed. An element is a dot product along vectors (small.h): lane l sums
   depths l, l + lanes, ... in turn, as far as vectors are whole, then lanes are added, then what is left, one by one.
   It must not know tensors or operations. */
#ifndef WEFT_ENGINES_CPU_GEMM_SKINNY_H
#define WEFT_ENGINES_CPU_GEMM_SKINNY_H

#include "engines/cpu/product/gemm.h"

enum { SKINNY_ROWS = 16, SKINNY_DEPTH = 1 << 14 }; /* of A at most: its rows stay in L2 while B passes */

/* Whether a product is made so; sizes, packing, types and strides decide, not addresses. */
bool gemm_skinny_accepts(const struct gemm *gemm);

/* Bytes of workspace of gemm_skinny_run for any product of these sizes, and of fewer rows and less depth; 0: it takes
   none. */
int64_t gemm_skinny_workspace_bytes(const struct gemm *gemm, int threads);

/* gemm_run of what gemm_skinny_accepts; each element's sum is the same whatever the number of threads. The workspace is
   aligned to a cache line. */
void gemm_skinny_run(const struct gemm *gemm, int threads, void *workspace);

#endif
