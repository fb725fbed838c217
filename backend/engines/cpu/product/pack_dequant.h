/* SPDX-License-Identifier: Apache-2.0 */
/* A matrix of low-precision numbers with one scale per block, which gemm dequantizes during packing. This file must not
   know operations. */
#ifndef WEFT_ENGINES_CPU_PACK_DEQUANT_H
#define WEFT_ENGINES_CPU_PACK_DEQUANT_H

#include "engines/cpu/product/gemm.h"

struct quantized {
    struct gemm_matrix matrix;
    struct gemm_matrix scales;  /* one element per block, indexed by blocks; base is set at run time */
    int64_t block, depth_block; /* block size along rows of A or columns of B, and along the depth */
    weftDataType_t type;        /* the 16- or 32-bit type to which number times scale is rounded */
    float sign;                 /* sign of the scales */
};

/* For FLOAT kernels. */
gemm_pack pack_dequant;

/* Products of few rows with such a B whose columns are contiguous along the depth: dot products in place are faster
   than panels. Scales multiply the sums of their blocks. dequant_has_dots decides; dequant_dots_bytes is the workspace;
   dequant_dots computes the product like gemm_run. */
bool dequant_has_dots(const struct gemm *gemm, const struct quantized *b);
int64_t dequant_dots_bytes(const struct gemm *gemm);
void dequant_dots(const struct gemm *gemm, int threads, void *workspace);

#endif
