/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory of attention_fwd. */
#ifndef WEFT_ENGINES_CUDA_ATTENTION_FORWARD_GEOMETRY_H
#define WEFT_ENGINES_CUDA_ATTENTION_FORWARD_GEOMETRY_H

#include "engines/cuda/core/geometry.h"

/* element: bytes of a staged element; needs_scratch: P passes through shared memory, as without tensor cores. */
struct forward_shape {
    int element, needs_scratch, rows, keys, stages;
    long long depth, values; /* columns in shared memory */
};

/* Elements of a stage's keys and values, of the queries, and of P; bytes of a block. */
struct forward_memory {
    long long k, v, q, p, bytes;
};

/* Rows are padded by 16 bytes, so that adjacent rows use different banks. The last term stores, for each key of a
   stage, whether its values are not finite. */
GEOMETRY struct forward_memory forward_memory_of(struct forward_shape s) {
    struct forward_memory m = {0};
    int pad = 16 / s.element;
    m.k = s.keys * (s.depth + pad);
    m.v = s.keys * (s.values + pad);
    m.q = s.rows * (s.depth + pad);
    m.p = s.needs_scratch ? s.rows * (s.keys + pad) : pad;
    m.bytes = (s.stages * (m.k + m.v) + m.q + m.p) * s.element + s.stages * s.keys * 4;
    return m;
}

#endif
