/* pipeline: registers and shared memory of the Hopper products, and the barriers between their roles
   Memory    STAGES slots of A and B, epilogue tiles of each consumer warp, the sums from a peer, partial sums of
             columns, barriers
   Barriers  arrived[s], released[s]: slot s is full, may be refilled;   own_barrier[i]: used by the schedule;
             aux_arrived[w]: the auxiliary load of consumer warp w has arrived
   Requires  CONSUMER_GROUPS TILE_GROUPS CLUSTER_SPLITS OWN_BARRIERS ADDRESS_REGISTERS NEEDS_MOST_REGISTERS
             THREADS_READ_A of the kernel, and the generated BLOCK_M BLOCK_N ROW_BLOCKS STAGES CLUSTER STORED_BYTES
             A_IS_MN_MAJOR B_IS_MN_MAJOR IS_STAGED AUX_LOAD */

constexpr int GROUP_ROWS = ROW_BLOCKS * 64; /* rows of a tile per consumer warpgroup */
constexpr int CONSUMER_WARPS = CONSUMER_GROUPS * 4, THREADS = (1 + CONSUMER_GROUPS) * 128;
constexpr int CLUSTER_BLOCKS = CLUSTER * CLUSTER_SPLITS;

/* Registers per thread. With three consumer warpgroups fewer are left; the single producer thread needs few. */
constexpr int PRODUCER_REGISTERS = CONSUMER_GROUPS > 2 ? 32 : NEEDS_MOST_REGISTERS ? 40 : 56;
constexpr int CONSUMER_REGISTERS = CONSUMER_GROUPS > 2 ? 160 : NEEDS_MOST_REGISTERS ? 232 : 224;
/* Registers in addition to accumulators and addresses. */
constexpr int ACCUMULATOR_SPARE_REGISTERS = CONSUMER_REGISTERS - ROW_BLOCKS * BLOCK_N / 2 - ADDRESS_REGISTERS;

#include "engines/cuda/product/hopper/pipeline_geometry.h"
#include "product/hopper/reductions.cuh"
#include "product/hopper/epilogue_staged.cuh"
#include "product/hopper/reductions_staged.cuh"

constexpr pipeline_memory MEMORY = pipeline_memory_of(
    pipeline_shape{BLOCK_M, BLOCK_N, GROUP_ROWS, STAGES, CONSUMER_WARPS, CLUSTER_SPLITS, RESULT_BYTES, RESULTS,
                   IS_STAGED, EPILOGUE_TILES, COLUMN_REDUCTIONS, OWN_BARRIERS, AUX_LOAD});
constexpr int PRODUCTS_PER_SLOT = 4; /* each covers 32 bytes of k */
/* K-major: rows of 128 bytes along k. MN-major: adjacent panels of 64 elements, [BLOCK_K][64]. In these, 32 bytes of k
   are 2 units of 16 bytes or 16 rows of 128 bytes, respectively. */
constexpr u32 PANEL_BYTES = 64 * 128;
constexpr u32 A_PANEL = A_IS_MN_MAJOR ? PANEL_BYTES : 0, B_PANEL = B_IS_MN_MAJOR ? PANEL_BYTES : 0;
constexpr u32 A_STEP = A_IS_MN_MAJOR ? 128 : 2, B_STEP = B_IS_MN_MAJOR ? 128 : 2;
/* A box is a panel, or all rows, or the share of each block of a cluster. */
constexpr int A_BOXES = A_IS_MN_MAJOR ? BLOCK_M / 64 : 1, B_BOXES = B_IS_MN_MAJOR ? BLOCK_N / 64 : CLUSTER;
static_assert((!A_IS_MN_MAJOR || BLOCK_M % 64 == 0) && (!B_IS_MN_MAJOR || BLOCK_N % 64 == 0) &&
                  BLOCK_N % B_BOXES == 0 && B_BOXES % CLUSTER == 0,
              "boxes cover the tile, and blocks of a cluster load equally many");
constexpr u32 A_BOX_BYTES = MEMORY.a_bytes / A_BOXES, B_BOX_BYTES = MEMORY.b_bytes / B_BOXES;

static_assert(BLOCK_M == TILE_GROUPS * GROUP_ROWS && BLOCK_N % 8 == 0 && BLOCK_N <= 256,
              "wgmma makes 64 rows and up to 256 columns");
static_assert(B_BOXES % CLUSTER == 0, "each block of a cluster loads its share of B");
static_assert(MEMORY.bytes <= SHARED_MAX, "227 KB is all a block can have");
/* Registers are redistributed within the launch's allocation of this block; growing beyond it would never return. */
static_assert(PRODUCER_REGISTERS + CONSUMER_GROUPS * CONSUMER_REGISTERS <=
                  (1 + CONSUMER_GROUPS) * (65536 / THREADS / 8 * 8),
              "growing would hang");

extern __shared__ __align__(1024) unsigned char s_memory[]; /* the swizzle requires slots aligned to 1024 bytes */

DEVICE u32 a_slot(u32 slot) { return shared_address(s_memory) + slot * MEMORY.slot_bytes; }
DEVICE u32 b_slot(u32 slot) { return a_slot(slot) + MEMORY.a_bytes; }
DEVICE u32 epilogue_tiles(u32 consumer_warp) {
    return shared_address(s_memory) + MEMORY.epilogue + consumer_warp * EPILOGUE_TILES * MEMORY.epilogue_slot_bytes;
}
DEVICE u32 arrived(u32 slot) { return shared_address(s_memory) + MEMORY.barriers + slot * 8; }
DEVICE u32 released(u32 slot) { return arrived(slot) + STAGES * 8; }
DEVICE u32 own_barrier(u32 i) { return released(STAGES) + i * 8; }
DEVICE u32 aux_arrived(u32 consumer_warp) { return shared_address(s_memory) + MEMORY.aux_barriers + consumer_warp * 8; }

#include "product/hopper/pipeline_cursor.cuh"

/* Lane i notifies block i of the cluster that this warp has read the slot. */
DEVICE void release_slot(u32 slot) {
    if (lane_index() < CLUSTER) {
        if constexpr (CLUSTER == 1)
            arrive(released(slot));
        else
            arrive_at_peer(released(slot), lane_index());
    }
}

using accumulators = sum_t[ROW_BLOCKS][BLOCK_N / 2]; /* a thread's share of [GROUP_ROWS, BLOCK_N] */

/* Waits for a tile's last products. The slot is released before the epilogue, because the producer waits for it. */
DEVICE void complete_products(accumulators &r_c, u32 last_slot, i32 steps) {
    mma_wait<0>();
    if (steps > 0)
        release_slot(last_slot);
    stay_in_order();
#pragma unroll
    for (int block = 0; block < ROW_BLOCKS; ++block)
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; ++i)
            fence_register(r_c[block][i]);
}
