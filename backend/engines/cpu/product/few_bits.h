/* SPDX-License-Identifier: Apache-2.0 */
/* Dot products of a few rows of floats with columns of numbers of 4 or 8 bits, which become floats in registers: what
   bounds them is how fast the columns come from memory. It must not know tensors, operations or threads. */
#ifndef WEFT_ENGINES_CPU_FEW_BITS_H
#define WEFT_ENGINES_CPU_FEW_BITS_H

#include "weft/weft_enums.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    FEW_BITS_GROUP = 32, /* numbers: depths and blocks have whole groups of them */
    FEW_BITS_ROWS = 4,   /* at most */
    FEW_BITS_COLUMNS = 4 /* which are read, and summed, together: the last one again where fewer are left */
};

/* Columns that begin with whole bytes, `column_bytes` apart. Every `block` numbers of one share a scale: scales are
   [blocks, scale_ld]. */
struct few_bits {
    weftDataType_t type;
    const void *numbers;
    int64_t column_bytes, depth, block;
    const float *scales;
    int64_t scale_ld;
};

/* Whether this CPU has such loops for a type. */
bool few_bits_takes(weftDataType_t type);

/* Puts a row's elements in the order in which numbers of a type become floats, group by group. */
void few_bits_arrange(weftDataType_t type, float *row, int64_t depth);

/* sums[i * sum_ld + j] += sum over blocks of scale * (the block's numbers of column j . those of row i), of arranged
   rows. Columns up to the next multiple of FEW_BITS_COLUMNS are written, and, of 3 rows, a fourth one. */
void few_bits_dots(const struct few_bits *few, int columns, const float *rows, int64_t row_ld, int count, float *sums,
                   int64_t sum_ld);

#endif
