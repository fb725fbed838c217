/* SPDX-License-Identifier: Apache-2.0 */
/* Packed products with AMX, whose registers are tiles of 16 rows x 64 bytes: a block of C consists of 2 x 2 tiles. The
   AMX intrinsics are used only in gemm_amx.c.

   bf16   Products are exact. Of 32 products that are adjacent along the depth, the even ones and the odd ones are each
          summed from 0 as by FMAs; both sums are then added, and the result is added to C. Everything is rounded to
          nearest even, and numbers below 2^-126 count as 0, whatever the thread's mode.
   bytes  Both factors are signed. Sums are exact and wrap around at 32 bits. */
#ifndef WEFT_ENGINES_CPU_GEMM_AMX_H
#define WEFT_ENGINES_CPU_GEMM_AMX_H

#include "engines/cpu/core/vector.h"
#include "engines/cpu/product/gemm.h"

enum {
    AMX_GROUPS = 16,   /* groups of 4 bytes along the depth in a tile of A or B */
    AMX_BLOCK = 2 * 16 /* rows of A and columns of B at once */
};

#if HAS_AMX
/* Call these before and after a thread's multiplications: between them Weft uses the thread's tiles, afterwards they
   are released. */
void amx_begin(void);
void amx_end(void);

/* Blocks of 32 x 32, and of 16 x 32. */
gemm_multiply amx_multiply_bf16, amx_multiply_few_bf16, amx_multiply_i8, amx_multiply_few_i8;
#endif

#endif
