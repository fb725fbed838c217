/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory of weight_only_sm90. */
#ifndef WEFT_ENGINES_CUDA_PRODUCT_WEIGHT_ONLY_WEIGHT_ONLY_SM90_GEOMETRY_H
#define WEFT_ENGINES_CUDA_PRODUCT_WEIGHT_ONLY_WEIGHT_ONLY_SM90_GEOMETRY_H

#include "engines/cuda/core/geometry.h"

enum { STEP = 128 }; /* elements of k per step */

/* bits: of a weight. The others are the constants of the kernel in lower case. */
struct weight_only_sm90_shape {
    int tokens, rows, bits, scales, stages;
};

/* Sizes of a stage: half of A, A, a row of weights, A and the weights, scales. Offsets; the slots are at 0. */
struct weight_only_sm90_memory {
    unsigned a_box, a_bytes, w_row, slot_bytes, scale_bytes;
    unsigned scales, barriers;
    unsigned stage_bytes, bytes; /* bytes per stage and per block */
};

/* 16-bit A as twice [tokens, 64], swizzled; weights [rows, STEP]; float scales [scales, rows]; two barriers. */
GEOMETRY struct weight_only_sm90_memory weight_only_sm90_memory_of(struct weight_only_sm90_shape s) {
    struct weight_only_sm90_memory m = {0};
    m.a_box = s.tokens * 128;
    m.a_bytes = 2 * m.a_box;
    m.w_row = STEP * s.bits / 8;
    m.slot_bytes = m.a_bytes + s.rows * m.w_row;
    m.scale_bytes = s.scales * s.rows * 4;
    m.scales = s.stages * m.slot_bytes;
    m.barriers = m.scales + s.stages * m.scale_bytes;
    m.stage_bytes = m.slot_bytes + m.scale_bytes + 2 * BARRIER_BYTES;
    m.bytes = s.stages * m.stage_bytes;
    return m;
}

#endif
