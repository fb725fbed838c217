/* SPDX-License-Identifier: Apache-2.0 */
/* Operations whose elements are each made from their place: what makes a part of a row of them. Columns are one dim of
   the result, rows all others, row-major. */
#ifndef WEFT_ENGINES_CPU_ELEMENT_H
#define WEFT_ENGINES_CPU_ELEMENT_H

#include "graph/op.h"

/* A tensor that is read by the coordinates of the result. */
struct element_source {
    const struct tensor *tensor;
    int value; /* of the graph */
    weftDataType_t type;
    int64_t offset, strides[WEFT_DIM_MAX]; /* elements; along dims of the result */
    int64_t shares[WEFT_DIM_MAX];          /* neighbours of the result that read one element */
};

enum { ELEMENT_PARTS = 16 }; /* of a concatenation, at most */

struct element {
    const struct descriptor *op;
    const struct tensor *y;
    bool is_wide;       /* made in double, else in float */
    double nanoseconds; /* of an element */
    bool has_scale;     /* x times scale, not x alone */
    struct element_source scale;
    int axis, part_count; /* no parts: random numbers */
    struct element_source parts[ELEMENT_PARTS];
    int64_t starts[ELEMENT_PARTS + 1]; /* along the axis */
    double sign;                       /* of the scale */
    int column_dim;                    /* the last, or where neighbours lie in memory */
    int64_t rows, columns;
};

/* What the operation of each kind needs, or why it is not made here. */
weftStatus_t element_random(struct element *e);
weftStatus_t element_dequantize(struct element *e);
weftStatus_t element_move(struct element *e);
weftStatus_t element_concat(struct element *e);

/* Elements of a row from `column` on, to `to` of double: random numbers; of float or double: what is read. */
void element_draw(const struct element *e, const struct bindings *bindings, double *to, int64_t row, int64_t column,
                  int64_t count);
void element_read(const struct element *e, void *const *values, void *to, int64_t row, int64_t column, int64_t count);

#endif
