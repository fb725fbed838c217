/* portable_mma: C[z,i,j] = epilogue(sum over k of A[z,i,k] * B[z,k,j])
   Types     f16, bf16, tf32 and 8-bit operands by mma.sync, any strides; sm_80 and up, f16 from sm_75
   Formula   addresses of A and B are generated from the graph: a_outer, a_k, b_outer, b_k give parts of an offset and
             of the coordinates that must be inside an image; epilogue() processes the sums
   Tile      a block computes BLOCK_M x BLOCK_N of one batch entry z in steps of BLOCK_K; WARPS_M x WARPS_N warps share
             the tile
   Pipeline  two stages: product/staging.cuh; loop over tiles: product/tiles.cuh
   Limits    none: partial tiles are predicated; RUN of an operand follows from its strides and alignment
   Split     IS_SPLIT: the block sums part of k into the workspace, and combine_splits.cuh finishes, always in the same
             order
   Params    BLOCK_M BLOCK_N BLOCK_K THREADS BLOCKS WARPS_M WARPS_N HAS_K16 RUN LEAD_IS_ROW IS_SPLIT HAS_FILL sum_t
             index operand_a operand_b */
#include "core/mma.cuh"

constexpr bool READS_K_MAJOR = true;
#include "product/staging.cuh"

struct sums {
    static constexpr int WARP_M = BLOCK_M / WARPS_M, WARP_N = BLOCK_N / WARPS_N;
    static constexpr int HALF = 16 / sizeof(operand_a::staged); /* elements of k in 16 bytes */
    static constexpr int EPILOGUE_TILES = WARP_M / 16, EPILOGUE_ROWS = BLOCK_M / EPILOGUE_TILES;
    static_assert(WARP_M % 16 == 0 && WARP_N % 16 == 0 && BLOCK_K % (2 * HALF) == 0, "whole products only");
    static_assert(WARP_M * WARPS_M == BLOCK_M && WARP_N * WARPS_N == BLOCK_N && WARPS_M * WARPS_N * 32 == THREADS,
                  "the warps cover the tile");
    sum_t at[WARP_M / 16][WARP_N / 8][4];

    static DEVICE int lane() { return threadIdx.x % 32; }
    static DEVICE int warp_m() { return threadIdx.x / 32 % WARPS_M; }
    static DEVICE int warp_n() { return threadIdx.x / 32 / WARPS_M; }

    DEVICE void multiply(stage &s) {
#pragma unroll
        for (int k = 0; k < BLOCK_K; k += 2 * HALF) {
            u32 a[WARP_M / 16][4], b[WARP_N / 16][4];
#pragma unroll
            for (int m = 0; m < WARP_M / 16; m++) {
                const int row = warp_m() * WARP_M + m * 16;
                if constexpr (stage_of<operand_a, BLOCK_M>::IS_K_MAJOR)
                    load_blocks(a[m], s.a.address(row + lane() % 16, k + lane() / 16 * HALF));
                else
                    load_blocks_transposed(a[m],
                                           s.a.address(row + lane() / 8 % 2 * 8, k + lane() / 16 * 8 + lane() % 8));
            }
#pragma unroll
            for (int n = 0; n < WARP_N / 16; n++) {
                const int column = warp_n() * WARP_N + n * 16;
                if constexpr (stage_of<operand_b, BLOCK_N>::IS_K_MAJOR)
                    load_blocks(b[n], s.b.address(column + lane() / 16 * 8 + lane() % 8, k + lane() / 8 % 2 * HALF));
                else
                    load_blocks_transposed(b[n], s.b.address(column + lane() / 16 * 8, k + lane() % 16));
            }
#pragma unroll
            for (int m = 0; m < WARP_M / 16; m++)
#pragma unroll
                for (int n = 0; n < WARP_N / 8; n++)
                    product<operand_a::staged, operand_b::staged>::add<HAS_K16>(at[m][n], a[m], b[n / 2] + n % 2 * 2);
        }
    }
    static DEVICE int tile_row(int epilogue_tile, int row) { return row / 16 * WARP_M + epilogue_tile * 16 + row % 16; }
    template <class F> DEVICE void for_each(int epilogue_tile, F visit) {
#pragma unroll
        for (int n = 0; n < WARP_N / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                visit(warp_m() * 16 + lane() / 4 + e / 2 * 8, warp_n() * WARP_N + n * 8 + lane() % 4 * 2 + e % 2,
                      at[epilogue_tile][n][e]);
    }
};

#include "product/tiles.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) portable_mma(const __grid_constant__ arguments p) {
    compute_tiles(p);
}
