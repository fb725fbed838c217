/* SPDX-License-Identifier: Apache-2.0 */
/* Moving elements: shared by the operations that only rearrange (reshape, transpose, slice, concat). */
#ifndef WEFT_GRAPH_OPS_MOVE_H
#define WEFT_GRAPH_OPS_MOVE_H

#include "graph/op.h"

/* Copies one element, given offsets from view_offset. Equal types are copied exactly (a NaN stays a NaN, but may change
   its bits); others are converted as in any store. */
static inline void move_element(const struct view *to, int64_t to_offset, const struct view *from,
                                int64_t from_offset) {
    if (dtype_is_float(from->type))
        dtype_store(to->type, to->data, to_offset, dtype_load(from->type, from->data, from_offset));
    else
        dtype_store_i64(to->type, to->data, to_offset, dtype_load_i64(from->type, from->data, from_offset));
}

#endif
