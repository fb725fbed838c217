/* affine_grid: grid[n,o,i] = theta[n,i,S] + sum over j of theta[n,i,j] * at(o, j)     any float types, any chip
   Tile      a thread computes one position
   Params    THREADS theta_t grid_t and those of affine_positions.cuh */
#include "grid/affine_positions.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) affine_grid(const __grid_constant__ arguments p) {
    for (i64 item = (i64)blockIdx.x * THREADS + threadIdx.x; item < p.items; item += (i64)gridDim.x * THREADS) {
        real at[SPATIAL + 1];
        i64 rest = item;
        const i64 offset = find_position(at, p, rest);
        const theta_t *theta = p.theta + rest * p.theta_n;
        grid_t *grid = p.grid + (rest * p.grid_n + offset);
#pragma unroll
        for (int i = 0; i < SPATIAL; i++) {
            real sum = 0;
#pragma unroll
            for (int j = 0; j <= SPATIAL; j++)
                sum += as<real>::of(theta[i * p.theta_i + j * p.theta_j]) * at[j];
            grid[i * p.grid_c] = from<grid_t>::number(sum);
        }
    }
}
