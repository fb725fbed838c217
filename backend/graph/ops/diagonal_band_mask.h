/* SPDX-License-Identifier: Apache-2.0 */
/* The diagonal band mask: composite, so that graphs and engines only see the operations that it is decomposed into. */
#ifndef WEFT_GRAPH_OPS_DIAGONAL_BAND_MASK_H
#define WEFT_GRAPH_OPS_DIAGONAL_BAND_MASK_H

#include "graph/op.h"

extern const struct op diagonal_band_mask_op;

#endif
