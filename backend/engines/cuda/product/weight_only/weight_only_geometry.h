/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory of weight_only. */
#ifndef WEFT_ENGINES_CUDA_PRODUCT_WEIGHT_ONLY_WEIGHT_ONLY_GEOMETRY_H
#define WEFT_ENGINES_CUDA_PRODUCT_WEIGHT_ONLY_WEIGHT_ONLY_GEOMETRY_H

#include "engines/cuda/core/geometry.h"

/* length: weights of a lane and step. The others are the constants of the kernel in lower case. */
struct weight_only_shape {
    int warps_across, warps_deep, blocks, tokens, length, stages_a, stages;
};

struct weight_only_memory {
    int w_slots, a_slots;   /* slots of weights and of A per warp and stage, with 16 bytes for each lane */
    int pitch;              /* row pitch of the sums, which avoids bank conflicts */
    int stage_bytes, bytes; /* bytes per stage and per block */
};

/* Each lane has a slot for a row of weights, two per block of 16 columns; if A is staged, warps along columns share the
   slots of their rows. The stages and the final sums use the same memory at different times. Sums of 8 rows of A are
   stored at a time. */
GEOMETRY struct weight_only_memory weight_only_memory_of(struct weight_only_shape s) {
    struct weight_only_memory m = {0};
    m.w_slots = 2 * s.blocks;
    m.a_slots = s.stages_a ? s.tokens * s.length / 8 : 0;
    m.pitch = 16 * s.blocks * s.warps_across + 4;
    m.stage_bytes = s.warps_deep * (s.warps_across * m.w_slots + m.a_slots) * 32 * 16;
    m.bytes = geometry_max(s.stages * m.stage_bytes, s.warps_deep * 8 * m.pitch * 4);
    return m;
}

#endif
