/* SPDX-License-Identifier: Apache-2.0 */
/* A matrix of numbers of few bits, of which the elements of a block share a scale, as gemm packs it: dequantised on the
   way. It must not know operations. */
#ifndef WEFT_ENGINES_CPU_SCALED_H
#define WEFT_ENGINES_CPU_SCALED_H

#include "engines/cpu/product/gemm.h"

struct scaled {
    struct gemm_matrix matrix;
    struct gemm_matrix scales;  /* an element for each block, by the same indices in blocks; base when it runs */
    int64_t block, depth_block; /* neighbours that share a scale: rows of A or columns of B, and depths */
    weftDataType_t type;        /* of 16 or 32 bits, to which number times scale is rounded */
    float sign;                 /* of the scales */
};

/* For FLOAT kernels. */
gemm_pack scaled_pack;

#endif
