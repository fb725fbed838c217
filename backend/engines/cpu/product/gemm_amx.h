/* SPDX-License-Identifier: Apache-2.0 */
/* Packed products by AMX, whose registers are tiles of 16 rows x 64 bytes: a block of C is 2 x 2 of them. The
   intrinsics are here and nowhere else.

   bf16   Products are exact. Of 32 neighbouring depths those at even places, and those at odd ones, are summed from 0
          on as by FMAs; then both sums are added, and that to C. All is rounded to nearest even, and numbers below
          2^-126 count as 0, whatever the thread's mode.
   bytes  Both have a sign. Sums are exact, and wrap around at 32 bits. */
#ifndef WEFT_ENGINES_CPU_GEMM_AMX_H
#define WEFT_ENGINES_CPU_GEMM_AMX_H

#include "engines/cpu/core/vector.h"
#include "engines/cpu/product/gemm.h"

enum {
    AMX_GROUPS = 16,   /* of 4 bytes along the depth, which a tile of A or of B has */
    AMX_BLOCK = 2 * 16 /* rows of A and columns of B at once */
};

#if HAS_AMX
/* Around a thread's multiplications: its tiles are Weft's between the two, and nobody's behind. */
void amx_begin(void);
void amx_end(void);

/* Blocks of 32 x 32, and of 16 x 32. */
gemm_multiply amx_multiply_bf16, amx_multiply_few_bf16, amx_multiply_i8, amx_multiply_few_i8;
#endif

#endif
