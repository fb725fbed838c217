/* SPDX-License-Identifier: Apache-2.0 */
/* Skinny GEMM: products of a few rows of A with a matrix B that is contiguous along the depth, such as weights [out,
   in]. B is read once, in place, and nothing is packed. An element is a vectorized dot product (gemm_small.h): lane l
   sums elements l, l + lanes, ... along the depth in order, as far as vectors are complete; then the lanes are added,
   and then the remaining elements, one by one. This file must not know tensors or operations. */
#ifndef WEFT_ENGINES_CPU_GEMM_SKINNY_H
#define WEFT_ENGINES_CPU_GEMM_SKINNY_H

#include "engines/cpu/product/gemm.h"

/* maximum rows and depth of A, so that its rows stay in L2 for all of B */
enum { SKINNY_ROWS = 16, SKINNY_DEPTH = 1 << 14 };

/* True if this code computes the product. Depends on sizes, packing, types and strides, but not on addresses. */
bool gemm_skinny_accepts(const struct gemm *gemm);

/* Bytes of workspace that gemm_skinny_run needs for any product of these sizes, or with fewer rows or less depth; 0:
   none. */
int64_t gemm_skinny_workspace_bytes(const struct gemm *gemm, int threads);

/* Like gemm_run, for products that gemm_skinny_accepts. Each element's sum is independent of the number of threads. The
   workspace must be aligned to a cache line. */
void gemm_skinny_run(const struct gemm *gemm, int threads, void *workspace);

#endif
