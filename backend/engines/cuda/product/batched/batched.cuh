/* batched: C[z,i,j] = epilogue(sum over k of A[z,i,k] * B[z,k,j]) for a batch of small matrices, each contiguous
   Types     f16 and bf16 by mma.sync, sm_80 and up
   Formula   epilogue() is generated; it numbers results by z, then as they are stored in a matrix: ROWS_FIRST
   Tile      a block computes MATRICES matrices; a warp sums UNIT_M * 16 rows x UNIT_N * 8 columns of one, a unit, or
             one of SHARERS interleaved parts of its k, which warp 0 of the unit then adds in order
   Operands  DIRECT: contiguous along k in multiples of 16 bytes; fragments are read from memory
             LINES: contiguous along the other index, likewise; lines of one k are copied into shared memory, where
             the products transpose blocks of them
             WHOLE: any other layout; the matrices of a block are copied unchanged, and read element by element
   Order     a step multiplies 32 k; lane quarter q has k 8 q .. 8 q + 7 of it, as the 16 bytes that DIRECT loads
   Limits    rows and columns after the last one repeat others, and are not stored; k after the last one are zeros
   Params    THREADS BLOCKS MATRICES SHARERS UNIT_M UNIT_N UNROLL A_ACCESS B_ACCESS A_IS_K_MAJOR B_IS_K_MAJOR
             A_IS_PAIRED B_IS_PAIRED IS_PAIRED ROWS_FIRST RUN sum_t index factor_t result_t */
#include "core/async.cuh"
#include "core/mma.cuh"
#include "engines/cuda/product/batched/batched_geometry.h"

constexpr int WARPS = THREADS / 32;
extern __shared__ __align__(16) unsigned char s_memory[];

DEVICE int lane() { return threadIdx.x % 32; }
DEVICE int warp() { return threadIdx.x / 32; }

/* Where one operand of a block's matrices is, and the sizes of its matrices. IS_PAIRED: contiguous along k, of which
   there is an even number. */
template <int ACCESS, bool IS_K_MAJOR, bool IS_PAIRED> struct factor {
    const factor_t *global;
    factor_t *shared;
    int outers, ks, elements;

    /* Copies `count` matrices from memory. */
    DEVICE void stage(int count) const {
        if constexpr (ACCESS == BATCHED_WHOLE) {
            const int bytes = count * elements * (int)sizeof(factor_t);
            for (int at = threadIdx.x * 16; at < bytes; at += THREADS * 16)
                ptx::cp_async_cg(ptx::shared_address((unsigned char *)shared + at), (const unsigned char *)global + at,
                                 bytes - at < 16 ? bytes - at : 16);
        } else if constexpr (ACCESS == BATCHED_LINES) {
            /* Line 8 q + 2 j + e of a step is stored as line 8 j + 2 q + e, so that the lines which a transposed load
               reads are adjacent, in different banks. */
            const int runs = outers / 8, padded = (ks + BATCHED_STEP - 1) / BATCHED_STEP * BATCHED_STEP;
            for (int at = threadIdx.x; at < count * padded * runs; at += THREADS) {
                const int line = at / runs, across = at % runs * 8, matrix = line / padded, k = line % padded;
                const int stored = k / 32 * 32 + k / 2 % 4 * 8 + k / 8 % 4 * 2 + k % 2;
                copy_async<16>(shared + (matrix * padded + stored) * pitch() + across,
                               global + (i64)matrix * elements + (k < ks ? k * outers + across : 0), k < ks);
            }
        }
    }
    DEVICE int pitch() const { return outers + BATCHED_PAD; }

    /* Register j of a lane: k 8 q + 2 j and the next one of this step, of index `first` + lane / 4. */
    DEVICE void fetch(u32 (&r)[4], int matrix, int first, int k) const {
        if constexpr (ACCESS == BATCHED_LINES) {
            const int padded = (ks + BATCHED_STEP - 1) / BATCHED_STEP * BATCHED_STEP;
            const int from = first + 8 > outers ? outers - 8 : first;
            load_blocks_transposed(r, shared + (matrix * padded + k + lane()) * pitch() + from);
            return;
        }
        const int outer = first + lane() / 4 < outers ? first + lane() / 4 : outers - 1, start = k + lane() % 4 * 8;
        if constexpr (ACCESS == BATCHED_DIRECT) {
            run<u32, 4> words = {};
            if (start < ks)
                words = load_run<u32, 4>((const u32 *)(global + ((i64)matrix * elements + outer * ks + start)));
#pragma unroll
            for (int j = 0; j < 4; j++)
                r[j] = words.at[j];
            return;
        }
        const factor_t *from = shared + matrix * elements + (IS_K_MAJOR ? outer * ks : outer);
        if (k + BATCHED_STEP <= ks)
            gather<false>(r, from, start);
        else
            gather<true>(r, from, start);
    }
    /* Reads pairs of elements from shared memory; IS_LAST: some are after the last k. */
    template <bool IS_LAST> DEVICE void gather(u32 (&r)[4], const factor_t *from, int start) const {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int at = start + 2 * j;
            if constexpr (IS_PAIRED) {
                r[j] = !IS_LAST || at < ks ? *(const u32 *)(from + at) : 0;
            } else {
                const u32 low = !IS_LAST || at < ks ? from[IS_K_MAJOR ? at : at * outers].bits : 0u;
                const u32 high = !IS_LAST || at + 1 < ks ? from[IS_K_MAJOR ? at + 1 : (at + 1) * outers].bits : 0u;
                r[j] = low | high << 16;
            }
        }
    }
};

struct unit_sums {
    float at[UNIT_M][UNIT_N][4];
};

/* Adds the steps of one sharer: k from * 32, (from + SHARERS) * 32 .. */
template <class A, class B>
DEVICE void multiply_unit(unit_sums &sum, const A &a, const B &b, int matrix, int row, int column, int from) {
#pragma unroll UNROLL
    for (int k = from * BATCHED_STEP; k < a.ks; k += SHARERS * BATCHED_STEP) {
        u32 rows[UNIT_M][2][4];
#pragma unroll
        for (int m = 0; m < UNIT_M * 2; m++)
            a.fetch(rows[m / 2][m % 2], matrix, row + m * 8, k);
#pragma unroll
        for (int n = 0; n < UNIT_N; n++) {
            u32 columns[4];
            b.fetch(columns, matrix, column + n * 8, k);
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int m = 0; m < UNIT_M; m++) {
                    const u32 fragment[4] = {rows[m][0][half * 2], rows[m][1][half * 2], rows[m][0][half * 2 + 1],
                                             rows[m][1][half * 2 + 1]};
                    product<factor_t, factor_t>::add<true>(sum.at[m][n], fragment, columns + half * 2);
                }
        }
    }
}

/* Adds the sums of a unit's other sharers to those of its first one. All threads of the block call it. */
DEVICE void join_sharers(unit_sums &sum, float *partial) {
    constexpr int SUMS = UNIT_M * UNIT_N * 4;
    const int sharer = warp() % SHARERS;
    float *of_unit = partial + warp() / SHARERS * (SHARERS - 1) * SUMS * 32 + lane();
    if (sharer > 0)
#pragma unroll
        for (int e = 0; e < SUMS; e++)
            of_unit[((sharer - 1) * SUMS + e) * 32] = sum.at[e / 4 / UNIT_N][e / 4 % UNIT_N][e % 4];
    __syncthreads();
    if (sharer == 0)
        for (int other = 0; other < SHARERS - 1; other++)
#pragma unroll
            for (int e = 0; e < SUMS; e++)
                sum.at[e / 4 / UNIT_N][e / 4 % UNIT_N][e % 4] += of_unit[(other * SUMS + e) * 32];
}

/* Stores up to `count` of two results. IS_PAIRED: both or none, and they are one word. */
template <class T> DEVICE void store_pair(T *first, T *second, float low, float high, int count) {
    if constexpr (same<T, float>::value) {
        if (count > 0)
            *first = low;
        if (count > 1)
            *second = high;
    } else {
        const u32 pair = rounded_pair<T>(low, high);
        if constexpr (IS_PAIRED) {
            if (count > 0)
                *(u32 *)first = pair;
        } else {
            if (count > 0)
                first->bits = (u16)pair;
            if (count > 1)
                second->bits = (u16)(pair >> 16);
        }
    }
}

/* Stores a unit's sums as result_t in the order of the results. */
DEVICE void stage_sums(const unit_sums &sum, result_t *results, int rows, int columns, int row, int column) {
#pragma unroll
    for (int m = 0; m < UNIT_M * 2; m++) {
        const int i = row + m * 8 + lane() / 4;
        if (i >= rows)
            continue;
#pragma unroll
        for (int n = 0; n < UNIT_N; n++) {
            const int j = column + n * 8 + lane() % 4 * 2;
            const float low = sum.at[m / 2][n][m % 2 * 2], high = sum.at[m / 2][n][m % 2 * 2 + 1];
            result_t *to = results + (ROWS_FIRST ? i * columns + j : j * rows + i);
            store_pair(to, to + (ROWS_FIRST ? 1 : rows), low, high, columns - j);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) batched(const __grid_constant__ arguments p) {
    const int rows = (int)p.rows, columns = (int)p.columns, ks = (int)p.ks, elements = rows * columns;
    const i64 first = (i64)blockIdx.x * MATRICES;
    const int matrices = p.matrices - first < MATRICES ? (int)(p.matrices - first) : MATRICES;
    const factor<A_ACCESS, A_IS_K_MAJOR, A_IS_PAIRED> a{p.a + first * rows * ks, (factor_t *)s_memory, rows, ks,
                                                        rows * ks};
    const factor<B_ACCESS, B_IS_K_MAJOR, B_IS_PAIRED> b{p.b + first * columns * ks, (factor_t *)(s_memory + p.b_at),
                                                        columns, ks, columns * ks};
    result_t *results = (result_t *)(s_memory + p.results_at);
    if constexpr (A_ACCESS != BATCHED_DIRECT || B_ACCESS != BATCHED_DIRECT) {
        a.stage(matrices);
        b.stage(matrices);
        commit_copies();
        await_copies<0>();
        __syncthreads();
    }
    const int units_m = (int)p.units_m, units = units_m * (int)p.units_n;
    /* With sharers, the block has a warp for each part of each unit, so that all warps take one turn. */
    for (int unit = warp() / SHARERS; unit < MATRICES * units; unit += WARPS / SHARERS) {
        const int matrix = unit / units, row = unit % units % units_m * UNIT_M * 16,
                  column = unit % units / units_m * UNIT_N * 8;
        unit_sums sum = {};
        if (matrix < matrices)
            multiply_unit(sum, a, b, matrix, row, column, warp() % SHARERS);
        if constexpr (SHARERS > 1)
            join_sharers(sum, (float *)(s_memory + p.partial_at));
        if (warp() % SHARERS == 0 && matrix < matrices)
            stage_sums(sum, results + matrix * elements, rows, columns, row, column);
    }
    __syncthreads();
    for (int at = threadIdx.x * RUN; at < matrices * elements; at += THREADS * RUN) {
        const run<result_t, RUN> staged = load_run<result_t, RUN>(results + at);
        run<sum_t, RUN> sum;
#pragma unroll
        for (int e = 0; e < RUN; e++)
            sum.at[e] = to_float(staged.at[e]);
        epilogue(p, (index)(first * elements + at), 0, 0, sum);
    }
}
