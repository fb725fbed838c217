/* product_promoted_sm90: product_sm90 for fp8: float registers accumulate the tensor cores' sum of each step    sm_90a
   Main loop main_loop_promoted.cuh; with HAS_SCALES, sums are multiplied by the scales of both blocks
   Rest      as in product_sm90.cuh, which documents roles, pipeline and parameters */

constexpr int CONSUMER_GROUPS = BLOCK_M / (ROW_BLOCKS * 64), TILE_GROUPS = CONSUMER_GROUPS, CLUSTER_SPLITS = 1;
constexpr int OWN_BARRIERS = 0, ADDRESS_REGISTERS = CLUSTER > 1 ? 44 : 40;
constexpr bool NEEDS_MOST_REGISTERS = (ROW_BLOCKS + 1) * BLOCK_N > 256; /* includes the sums of one step */
constexpr bool THREADS_READ_A = false;
#include "product/hopper/pipeline.cuh"
#include "product/hopper/tile_scheduler.cuh"
#include "product/hopper/producer.cuh"
#include "product/hopper/main_loop_promoted.cuh"
#include "product/hopper/epilogue.cuh"
#include "product/hopper/schedule_cooperative.cuh"
#include "product/hopper/roles.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) product_promoted_sm90(const __grid_constant__ arguments p) {
    run_roles(p);
}
