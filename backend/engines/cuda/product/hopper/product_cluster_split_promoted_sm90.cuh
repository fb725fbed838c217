/* product_cluster_split_promoted_sm90: product_cluster_split_sm90 with the main loop of product_promoted_sm90
   Types     fp8, wgmma; sm_90a */

constexpr int CONSUMER_GROUPS = 2, TILE_GROUPS = 2, CLUSTER_SPLITS = 2;
constexpr int OWN_BARRIERS = 1, ADDRESS_REGISTERS = 40;
constexpr bool NEEDS_MOST_REGISTERS = (ROW_BLOCKS + 1) * BLOCK_N > 256; /* includes the sums of one step */
constexpr bool THREADS_READ_A = false;
#include "product/hopper/pipeline.cuh"
#include "product/hopper/tile_scheduler.cuh"
#include "product/hopper/producer.cuh"
#include "product/hopper/main_loop_promoted.cuh"
#include "product/hopper/epilogue.cuh"
#include "product/hopper/schedule_cluster_split.cuh"
#include "product/hopper/roles.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    product_cluster_split_promoted_sm90(const __grid_constant__ arguments p) {
    run_roles(p);
}
