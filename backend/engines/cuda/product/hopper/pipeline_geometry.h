/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory of the Hopper products. */
#ifndef WEFT_ENGINES_CUDA_PRODUCT_HOPPER_PIPELINE_GEOMETRY_H
#define WEFT_ENGINES_CUDA_PRODUCT_HOPPER_PIPELINE_GEOMETRY_H

#include "engines/cuda/product/hopper/epilogue_geometry.h"

enum { HOPPER_K_BYTES = 128 }; /* bytes of k per step: a row of the 128-byte swizzle */

/* The constants of the kernel that determine its memory, in lower case. */
struct pipeline_shape {
    int block_m, block_n, group_rows, stages, consumer_warps, cluster_splits;
    int result_bytes, results, is_staged, epilogue_tiles, column_reductions, own_barriers, aux_load;
};

struct pipeline_memory {
    unsigned a_bytes, b_bytes, slot_bytes; /* bytes of A, of B, and of both per stage */
    unsigned epilogue_slot_bytes,
        partials_bytes;      /* bytes of an epilogue tile of all results, and of partial sums, per warp */
    unsigned exchange_bytes; /* sums from the other block of a tile */
    unsigned epilogue, exchange, partials, barriers, aux_barriers; /* offsets; the slots are at 0 */
    unsigned bytes;                                                /* bytes per block */
};

/* The slots of A and B; the warps' epilogue tiles; the sums that one block of a cluster split sends to the other;
   partial sums of columns, one line per warp; two barriers per slot, those of the schedule, and one per warp with an
   auxiliary load. */
GEOMETRY struct pipeline_memory pipeline_memory_of(struct pipeline_shape s) {
    struct pipeline_memory m = {0};
    m.a_bytes = s.block_m * HOPPER_K_BYTES;
    m.b_bytes = s.block_n * HOPPER_K_BYTES;
    m.slot_bytes = m.a_bytes + m.b_bytes;
    m.epilogue_slot_bytes = s.results * epilogue_tile_bytes(s.result_bytes, s.block_n);
    m.partials_bytes = s.column_reductions * s.block_n * 4;
    m.exchange_bytes = s.cluster_splits > 1 ? s.group_rows * s.block_n * 4 : 0;
    m.epilogue = s.stages * m.slot_bytes;
    m.exchange = m.epilogue + (s.is_staged ? s.consumer_warps * s.epilogue_tiles * m.epilogue_slot_bytes : 0);
    m.partials = m.exchange + m.exchange_bytes;
    m.barriers = m.partials + s.consumer_warps * m.partials_bytes;
    m.aux_barriers = m.barriers + (2 * s.stages + s.own_barriers) * BARRIER_BYTES;
    m.bytes = m.aux_barriers + (s.aux_load ? s.consumer_warps * BARRIER_BYTES : 0);
    return m;
}

#endif
