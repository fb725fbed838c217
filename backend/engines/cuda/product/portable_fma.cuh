/* portable_fma: C[z,i,j] = epilogue(sum over k of A[z,i,k] * B[z,k,j])
   Types     any types in float, double, i32 or i64, any strides; sm_75 and up
   Formula   addresses of A and B are generated from the graph: a_outer, a_k, b_outer, b_k give parts of an offset and
             of the coordinates that must be inside an image; epilogue() processes the sums
   Tile      a block computes BLOCK_M x BLOCK_N of one batch entry z in steps of BLOCK_K; a thread computes THREAD_M x
             THREAD_N of it
   Pipeline  two stages: product/staging.cuh; loop over tiles: product/tiles.cuh
   Limits    none: partial tiles are predicated; RUN of an operand follows from its strides and alignment
   Split     IS_SPLIT: the block sums part of k into the workspace, and combine_splits.cuh finishes, always in the same
             order
   Params    BLOCK_M BLOCK_N BLOCK_K THREADS BLOCKS THREAD_M THREAD_N RUN LEAD_IS_ROW IS_SPLIT HAS_FILL sum_t index
             operand_a operand_b */
constexpr bool READS_K_MAJOR = false;
#include "product/staging.cuh"

struct sums {
    static constexpr int M = THREAD_M, N = THREAD_N;
    /* Threads per dimension. Each computes several squares of 4 x 4 elements, which are strided by the extent that all
       threads cover together. */
    static constexpr int ACROSS = BLOCK_N / N, DOWN = BLOCK_M / M;
    static constexpr int EPILOGUE_TILES = M / 4, EPILOGUE_ROWS = DOWN * 4;
    static_assert(M % 4 == 0 && N % 4 == 0 && ACROSS * N == BLOCK_N && DOWN * M == BLOCK_M && ACROSS * DOWN == THREADS,
                  "the threads cover the tile");
    sum_t at[M][N];

    static DEVICE int row_of(int m) { return m / 4 * EPILOGUE_ROWS + (int)threadIdx.x / ACROSS * 4 + m % 4; }
    static DEVICE int column_of(int n) { return n / 4 * (ACROSS * 4) + (int)threadIdx.x % ACROSS * 4 + n % 4; }

    DEVICE void multiply(stage &s) {
#pragma unroll
        for (int k = 0; k < BLOCK_K; k++) {
            run<operand_a::staged, 4> a[M / 4];
            run<operand_b::staged, 4> b[N / 4];
#pragma unroll
            for (int m = 0; m < M; m += 4)
                a[m / 4] = load_run<operand_a::staged, 4>(s.a.address(row_of(m), k));
#pragma unroll
            for (int n = 0; n < N; n += 4)
                b[n / 4] = load_run<operand_b::staged, 4>(s.b.address(column_of(n), k));
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int n = 0; n < N; n++)
                    at[m][n] += (sum_t)a[m / 4].at[m % 4] * (sum_t)b[n / 4].at[n % 4];
        }
    }
    static DEVICE int tile_row(int epilogue_tile, int row) { return epilogue_tile * EPILOGUE_ROWS + row; }
    template <class F> DEVICE void for_each(int epilogue_tile, F visit) {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < N; n++)
                if (m / 4 == epilogue_tile)
                    visit(row_of(m % 4), column_of(n), at[m][n]);
    }
};

#include "product/tiles.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) portable_fma(const __grid_constant__ arguments p) {
    compute_tiles(p);
}
