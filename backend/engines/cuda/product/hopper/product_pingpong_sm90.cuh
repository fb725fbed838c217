/* product_pingpong_sm90: product_sm90 with a separate tile for each of two consumer warpgroups: while one multiplies,
   at the rate of both, the other runs its epilogue
   Types     16-bit and int8 operands, wgmma; sm_90a
   Schedule  schedule_pingpong.cuh
   Rest      as in product_sm90.cuh, which documents roles, pipeline and parameters
   Tried     one warpgroup a step or two later than the other, so that their epilogues do not coincide: within noise */

constexpr int CONSUMER_GROUPS = 2, TILE_GROUPS = 1, CLUSTER_SPLITS = 1;
constexpr int OWN_BARRIERS = 2, ADDRESS_REGISTERS = 64;
constexpr bool NEEDS_MOST_REGISTERS = true;
constexpr bool THREADS_READ_A = false;
#include "product/hopper/pipeline.cuh"
#include "product/hopper/tile_scheduler.cuh"
#include "product/hopper/producer.cuh"
#include "product/hopper/main_loop.cuh"
#include "product/hopper/epilogue.cuh"
#include "product/hopper/schedule_pingpong.cuh"
#include "product/hopper/roles.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) product_pingpong_sm90(const __grid_constant__ arguments p) {
    run_roles(p);
}
