/* SPDX-License-Identifier: Apache-2.0 */
/* Moving elements: what the operations that only rearrange (reshape, transpose, slice, concat) share. */
#ifndef WEFT_GRAPH_OPS_MOVE_H
#define WEFT_GRAPH_OPS_MOVE_H

#include "graph/op.h"

/* Copies one element, by offsets as view_offset gives them: exactly between equal types (a NaN stays some NaN), else
   converted as stores do. */
static inline void move_element(const struct view *to, int64_t to_offset, const struct view *from,
                                int64_t from_offset) {
    if (dtype_is_float(from->type))
        dtype_store(to->type, to->data, to_offset, dtype_load(from->type, from->data, from_offset));
    else
        dtype_store_i64(to->type, to->data, to_offset, dtype_load_i64(from->type, from->data, from_offset));
}

#endif
