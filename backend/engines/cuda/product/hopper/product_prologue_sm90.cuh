/* product_prologue_sm90: product_sm90 with pointwise operations on A, through registers          f16 and bf16, sm_90a
   Main loop main_loop_prologue.cuh, which documents the generated functions
   Rest      as in product_sm90.cuh, which documents roles, pipeline and parameters */

constexpr int CONSUMER_GROUPS = BLOCK_M / (ROW_BLOCKS * 64), TILE_GROUPS = CONSUMER_GROUPS, CLUSTER_SPLITS = 1;
constexpr int OWN_BARRIERS = 0, ADDRESS_REGISTERS = CLUSTER > 1 ? 44 : 40;
constexpr bool NEEDS_MOST_REGISTERS = true; /* two steps of A */
constexpr bool THREADS_READ_A = true;       /* not only the tensor core does */
#include "product/hopper/pipeline.cuh"
#include "product/hopper/tile_scheduler.cuh"
#include "product/hopper/producer.cuh"
#include "product/hopper/main_loop_prologue.cuh"
#include "product/hopper/epilogue.cuh"
#include "product/hopper/schedule_cooperative.cuh"
#include "product/hopper/roles.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) product_prologue_sm90(const __grid_constant__ arguments p) {
    run_roles(p);
}
