/* affine_grid_bwd: the sums over o of dgrid[n,o,i] * at(o, j), of a part of the positions  any float types, any chip
   Tile      a block adds up one part of one grid: threads step through its positions, then warps and the block join
             their sums
   Order     fixed, also in affine_combine.cuh: every run gives the same bits
   Params    THREADS grid_t and those of affine_positions.cuh */
#include "grid/affine_positions.cuh"

constexpr int SUMS = SPATIAL * (SPATIAL + 1);

extern "C" __global__ void __launch_bounds__(THREADS) affine_grid_bwd(const __grid_constant__ arguments p) {
    __shared__ real shared[THREADS / 32][SUMS];
    for (i64 n = blockIdx.y; n < p.batch; n += gridDim.y) {
        real sums[SUMS] = {};
        for (i64 o = (i64)blockIdx.x * THREADS + threadIdx.x; o < p.positions; o += (i64)gridDim.x * THREADS) {
            real at[SPATIAL + 1];
            i64 rest = o;
            const grid_t *grid = p.grid + (n * p.grid_n + find_position(at, p, rest));
#pragma unroll
            for (int i = 0; i < SPATIAL; i++) {
                const real given = as<real>::of(grid[i * p.grid_c]);
#pragma unroll
                for (int j = 0; j <= SPATIAL; j++)
                    sums[i * (SPATIAL + 1) + j] += given * at[j];
            }
        }
#pragma unroll
        for (int k = 0; k < SUMS; k++) {
#pragma unroll
            for (int mask = 1; mask < 32; mask *= 2)
                sums[k] += shuffle_xor(sums[k], mask);
            if (threadIdx.x % 32 == 0)
                shared[threadIdx.x / 32][k] = sums[k];
        }
        __syncthreads();
        if (threadIdx.x < SUMS) {
            real sum = 0;
            for (int w = 0; w < THREADS / 32; w++)
                sum += shared[w][threadIdx.x];
            p.partial[(n * gridDim.x + blockIdx.x) * SUMS + threadIdx.x] = sum;
        }
        __syncthreads();
    }
}
