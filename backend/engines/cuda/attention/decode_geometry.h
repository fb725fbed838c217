/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory of attention_decode. */
#ifndef WEFT_ENGINES_CUDA_ATTENTION_DECODE_GEOMETRY_H
#define WEFT_ENGINES_CUDA_ATTENTION_DECODE_GEOMETRY_H

#include "engines/cuda/core/geometry.h"

enum {
    KEYS = 16,              /* keys per slice */
    RUN_BYTES = 16,         /* bytes of a thread's access */
    BOX_BYTES = 128,        /* bytes per row of a TMA box */
    SLICE_ALIGNMENT = 1024, /* alignment of a swizzled slice */
    ROW_PAD = 8,            /* elements after a row of queries, and floats after a row of sums */
};

/* element: bytes of a key's element. */
struct decode_shape {
    int element, uses_tma, has_row_scales, rows, heads, key_groups, stages;
    long long depth, values;
};

struct decode_memory {
    long long k_bytes, v_bytes, slice_bytes; /* keys and values of a slice, and both */
    long long q;                             /* elements of the queries of a head */
    int scales;                              /* floats per slice: of keys, then of values */
    long long bytes;                         /* bytes per CTA */
};

/* Bytes of a row of a slice. Rows copied by threads are padded by 16 bytes against bank conflicts; TMA boxes are
   swizzled instead. */
GEOMETRY long long decode_row_bytes(long long bytes, int uses_tma) {
    return uses_tma ? geometry_round_up(bytes, BOX_BYTES) : bytes + RUN_BYTES;
}

/* The groups' sums, each with a row's maximum and sum, are exchanged after the stages are no longer needed, so they
   share memory. In addition, each slice has the scales of its rows, flags of values that are not finite, and a barrier.
   */
GEOMETRY struct decode_memory decode_memory_of(struct decode_shape s) {
    struct decode_memory m = {0};
    long long slices = s.key_groups * s.stages;
    m.k_bytes = KEYS * decode_row_bytes(s.depth * s.element, s.uses_tma);
    m.v_bytes = KEYS * decode_row_bytes(s.values * s.element, s.uses_tma);
    m.slice_bytes = s.uses_tma ? geometry_round_up(m.k_bytes + m.v_bytes, SLICE_ALIGNMENT) : m.k_bytes + m.v_bytes;
    m.q = s.rows * (s.depth + ROW_PAD);
    m.scales = s.has_row_scales ? 2 * KEYS : 4;
    long long rings = slices * m.slice_bytes + s.heads * m.q * 2;
    long long sums = s.key_groups * s.rows * (s.values + ROW_PAD + 2) * 4;
    long long begin = geometry_round_up(geometry_max(rings, sums), SLICE_ALIGNMENT);
    m.bytes = geometry_round_up(begin + slices * (m.scales * 4 + KEYS * 4 + 8), SLICE_ALIGNMENT);
    return m;
}

#endif
