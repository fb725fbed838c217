/* SPDX-License-Identifier: Apache-2.0 */
/* A matrix of numbers of few bits, of which the elements of a block share a scale, as gemm packs it: dequantised on the
   way. It must not know operations. */
#ifndef WEFT_ENGINES_CPU_PACK_DEQUANT_H
#define WEFT_ENGINES_CPU_PACK_DEQUANT_H

#include "engines/cpu/product/gemm.h"

struct quantized {
    struct gemm_matrix matrix;
    struct gemm_matrix scales;  /* an element for each block, by the same indices in blocks; base when it runs */
    int64_t block, depth_block; /* neighbours that share a scale: rows of A or columns of B, and depths */
    weftDataType_t type;        /* of 16 or 32 bits, to which number times scale is rounded */
    float sign;                 /* of the scales */
};

/* For FLOAT kernels. */
gemm_pack pack_dequant;

/* Few rows times such a B, whose columns lie along the depth: dot products with what lies together are quicker than
   panels. Scales multiply the sums of their blocks. Whether that is so; the workspace, and the product, as gemm.h has
   them. */
bool dequant_has_dots(const struct gemm *gemm, const struct quantized *b);
int64_t dequant_dots_bytes(const struct gemm *gemm);
void dequant_dots(const struct gemm *gemm, int threads, void *workspace);

#endif
