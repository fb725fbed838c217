/* SPDX-License-Identifier: Apache-2.0 */
/* Operations whose elements are computed one by one from their index: functions that compute a part of a row. Columns
   are one dim of the result, rows are all others, row-major. */
#ifndef WEFT_ENGINES_CPU_ELEMENT_H
#define WEFT_ENGINES_CPU_ELEMENT_H

#include "graph/op.h"

/* A tensor that is read at the coordinates of the result. */
struct element_source {
    const struct tensor *tensor;
    int value; /* index of the graph's value */
    weftDataType_t type;
    int64_t offset, strides[WEFT_DIM_MAX]; /* in elements, along dims of the result */
    int64_t shares[WEFT_DIM_MAX];          /* number of adjacent result elements that read the same element */
};

enum { ELEMENT_PARTS = 16 }; /* maximum parts of a concatenation */

struct element {
    const struct descriptor *op;
    const struct tensor *y;
    bool is_wide;       /* computed in double instead of float */
    double nanoseconds; /* cost per element */
    bool has_scale;     /* x times scale instead of x */
    struct element_source scale;
    int axis, part_count; /* part_count is 0 for random numbers */
    struct element_source parts[ELEMENT_PARTS];
    int64_t starts[ELEMENT_PARTS + 1]; /* along the axis */
    double sign;                       /* sign of the scale */
    int column_dim;                    /* the last dim, or the one along which elements are contiguous in memory */
    int64_t rows, columns;
};

/* Prepare the operation of each kind, or fail with a message. */
weftStatus_t element_random(struct element *e);
weftStatus_t element_dequantize(struct element *e);
weftStatus_t element_move(struct element *e);
weftStatus_t element_concat(struct element *e);

/* Compute elements of a row, starting at `column`: random numbers in double, or values read, in float or double. */
void element_draw(const struct element *e, const struct bindings *bindings, double *to, int64_t row, int64_t column,
                  int64_t count);
void element_read(const struct element *e, void *const *values, void *to, int64_t row, int64_t column, int64_t count);

#endif
