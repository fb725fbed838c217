/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory of attention_bwd and attention_bwd_bias. */
#ifndef WEFT_ENGINES_CUDA_ATTENTION_BACKWARD_GEOMETRY_H
#define WEFT_ENGINES_CUDA_ATTENTION_BACKWARD_GEOMETRY_H

#include "engines/cuda/core/geometry.h"

/* element, sum: bytes of a staged element and of an accumulator; needs_scratch: P passes through shared memory, as
   without tensor cores. */
struct backward_shape {
    int element, sum, needs_scratch, kv_resident, has_dqk, is_sliced, rows, columns, stages;
    long long depth, value_depth; /* columns in shared memory */
};

/* Elements of the parts of a block's memory, of which only the streamed ones are stored in stages. */
struct backward_memory {
    long long streamed_qk, streamed_vdo;
    long long statistics; /* number of queries whose lse and delta are stored */
    long long resident_qk, resident_vdo;
    long long slice; /* columns of the streamed side that are loaded in turn */
    long long p;
    int sum_pitch;               /* row pitch of the sums of a bias, padded by one element against bank conflicts */
    long long bytes, bias_bytes; /* bytes per block of attention_bwd, and of attention_bwd_bias */
};

/* Rows are padded by 16 bytes, so that adjacent rows use different banks. The last term of `bytes` stores, for each row
   of a stage, whether its values are not finite. */
GEOMETRY struct backward_memory backward_memory_of(struct backward_shape s) {
    struct backward_memory m = {0};
    int pad = 16 / s.element;
    m.streamed_qk = s.columns * (s.depth + pad);
    m.streamed_vdo = s.columns * (s.value_depth + pad);
    m.statistics = s.kv_resident ? s.columns : 16 / s.sum;
    m.resident_qk = s.rows * (s.depth + pad);
    m.resident_vdo = s.has_dqk ? s.rows * (s.value_depth + pad) : pad;
    m.slice = s.is_sliced ? s.columns * (geometry_max(s.depth, s.value_depth) + pad) : pad;
    m.p = s.needs_scratch ? s.rows * (s.columns + pad) : pad;
    m.sum_pitch = s.columns + 1;
    long long streamed = (m.streamed_qk + m.streamed_vdo) * s.element + 2 * m.statistics * s.sum;
    long long resident = (m.resident_qk + m.resident_vdo + m.slice) * s.element;
    m.bytes = s.stages * streamed + resident + m.p * s.element + s.stages * s.columns * 4;
    m.bias_bytes = streamed + resident + s.rows * m.sum_pitch * s.sum;
    return m;
}

#endif
