/* SPDX-License-Identifier: Apache-2.0 */
/* Dot products of a few rows of floats with columns of 4-bit or 8-bit numbers, which are converted to float in
   registers: the limit is the memory bandwidth for the columns. This file must not know tensors, operations or
   threads. */
#ifndef WEFT_ENGINES_CPU_LOW_BITS_H
#define WEFT_ENGINES_CPU_LOW_BITS_H

#include "weft/weft_enums.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    LOW_BITS_GROUP = 32, /* numbers per group: the depth and blocks consist of whole groups */
    LOW_BITS_ROWS = 4,   /* maximum */
    LOW_BITS_COLUMNS = 4 /* columns that are read and summed together; if fewer are left, the last one is repeated */
};

/* Columns start at whole bytes, with a pitch of `column_bytes`. Every `block` numbers of a column share a scale: scales
   are [blocks, scale_ld]. */
struct low_bits {
    weftDataType_t type;
    const void *numbers;
    int64_t column_bytes, depth, block;
    const float *scales;
    int64_t scale_ld;
};

/* True if this CPU has such loops for a type. */
bool low_bits_supports(weftDataType_t type);

/* Reorders a row's elements to the order in which numbers of a type are widened, group by group. */
void low_bits_arrange(weftDataType_t type, float *row, int64_t depth);

/* sums[i * sum_ld + j] += sum over blocks of scale * (the block's numbers of column j . those of row i); rows must be
   arranged. Columns up to the next multiple of LOW_BITS_COLUMNS are written and, with 3 rows, a fourth row. */
void low_bits_dots(const struct low_bits *few, int columns, const float *rows, int64_t row_ld, int count, float *sums,
                   int64_t sum_ld);

#endif
