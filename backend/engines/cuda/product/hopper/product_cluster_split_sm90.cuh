/* product_cluster_split_sm90: product_sm90 with split-K over a cluster, whose two blocks each sum half of k for one
   tile
   Types     16-bit and int8 operands, wgmma; sm_90a
   Why       with few rows, all multiprocessors read the other operand, in tiles that are wide enough for L2
   Schedule  schedule_cluster_split.cuh
   Rest      as in product_sm90.cuh, which documents roles, pipeline and parameters
   Tried     two splits if no dimension fits into one tile: slower */

constexpr int CONSUMER_GROUPS = 2, TILE_GROUPS = 2, CLUSTER_SPLITS = 2;
constexpr int OWN_BARRIERS = 1, ADDRESS_REGISTERS = 40;
constexpr bool NEEDS_MOST_REGISTERS = ROW_BLOCKS * BLOCK_N > 256;
constexpr bool THREADS_READ_A = false;
#include "product/hopper/pipeline.cuh"
#include "product/hopper/tile_scheduler.cuh"
#include "product/hopper/producer.cuh"
#include "product/hopper/main_loop.cuh"
#include "product/hopper/epilogue.cuh"
#include "product/hopper/schedule_cluster_split.cuh"
#include "product/hopper/roles.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    product_cluster_split_sm90(const __grid_constant__ arguments p) {
    run_roles(p);
}
