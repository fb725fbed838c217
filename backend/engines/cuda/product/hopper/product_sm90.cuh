/* product_sm90: C[z,i,j] = epilogue(sum over k of A[z,i,k] * B[z,k,j])      f16, bf16, tf32 and int8, wgmma; sm_90a
   Formula   load_a and load_b are generated: each is one TMA copy, of a plain matrix or of an image (im2col), so that a
             matmul and the three convolutions are one kernel; epilogue() is generated, too
   Tile      a block computes BLOCK_M x BLOCK_N of one batch entry; each consumer warpgroup owns ROW_BLOCKS * 64 of its
             rows; k in steps of 128 bytes; persistent over tiles
   Cluster   CLUSTER blocks stacked along i share the tile of B: each loads its boxes of it and multicasts them to all
   Roles     warpgroup 0: load_tiles (one thread);   warpgroups 1 .. CONSUMER_GROUPS: main loop, then epilogue
   Pipeline  producer  |fill 0|fill 1|fill 2|fill 3|fill 0|...   STAGES slots; arrived[s]: slot s is full
             consumer         |mma 0 |mma 1 |mma 2 |mma 3 |...   released[s]: slot s may be refilled, in every block
   Read      tile_scheduler.cuh, producer.cuh, main_loop.cuh, epilogue.cuh, schedule_cooperative.cuh, then roles.cuh;
             each documents the generated constants that it requires
   Siblings  product_promoted_sm90.cuh, product_prologue_sm90.cuh: other main loops;   product_pingpong_sm90.cuh,
             product_cluster_split_sm90.cuh, product_cluster_split_promoted_sm90.cuh: other schedules
   Limits    16-byte aligned strides; elements past ragged extents are read as zeros; elements outside C are not stored
   Params    BLOCK_M BLOCK_N ROW_BLOCKS STAGES CLUSTER sum_t index, and multiply_accumulate (m64 x BLOCK_N x 32 bytes)
   Measured  docs/kernels.md, with rejected variants */

constexpr int CONSUMER_GROUPS = BLOCK_M / (ROW_BLOCKS * 64), TILE_GROUPS = CONSUMER_GROUPS, CLUSTER_SPLITS = 1;
constexpr int OWN_BARRIERS = 0, ADDRESS_REGISTERS = CLUSTER > 1 ? 44 : 40;
constexpr bool NEEDS_MOST_REGISTERS = ROW_BLOCKS * BLOCK_N > 256;
constexpr bool THREADS_READ_A = false;
#include "product/hopper/pipeline.cuh"
#include "product/hopper/tile_scheduler.cuh"
#include "product/hopper/producer.cuh"
#include "product/hopper/main_loop.cuh"
#include "product/hopper/epilogue.cuh"
#include "product/hopper/schedule_cooperative.cuh"
#include "product/hopper/roles.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) product_sm90(const __grid_constant__ arguments p) {
    run_roles(p);
}
