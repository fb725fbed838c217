/* columns_shared: as columns.cuh, for rows that do not fit in registers                                 sm_80 and newer
   Formula   as registers.cuh
   Tile      as columns.cuh, GROUP threads of each of CLUSTER blocks per strip
   Memory    each thread copies its own STEPS vectors to shared memory (cp.async), KEPT_BYTES each; UNROLL at a time
             go through a pass. Shared memory holds SLOT_VECTORS vectors
   Limits    as columns.cuh; vectors of an operand have at least 4 bytes
   Params    WIDTH GROUP ACROSS CLUSTER THREADS MIN_BLOCKS STEPS UNROLL PASSES IS_WHOLE SLOT_VECTORS KEPT_BYTES TRIGGER
             position
   Measured  H200, batch norm of 128x2048x7x7: half a cache line per block 25 us, a full line 37 */

static_assert(COLUMNS && COLUMN_SUMS == 0 && STEPS > 0, "interleaved rows without column sums");

constexpr int UNALIGNED = 0, GUARANTEED = 0;

#include "rows/strip.cuh"

#include "rows/reduce_columns.cuh"
template <class P> DEVICE void reduce_strip(typename P::total (&sum)[WIDTH], const span &s) {
    reduce_columns<P>(sum, s);
}

#include "rows/passes.cuh"

extern __shared__ __align__(16) words4 s_vectors[]; // [STEPS][THREADS] of KEPT_BYTES

DEVICE int slot_of(int step) { return step * THREADS + (int)threadIdx.x; }

DEVICE void copy_own(const arguments &a, const span &s, const base &at) {
    for (int step = 0; step < STEPS; step++)
        if (has_vector(a, s, step))
            copy_vector((char *)s_vectors, slot_of(step), a, at, vector_of(s, step));
    commit_copies();
}

template <class P>
DEVICE void accumulate(typename P::accumulators (&sums)[WIDTH], const span &s, const row *now, const arguments &a,
                       const base &at) {
#pragma unroll UNROLL
    for (int step = 0; step < STEPS; step++) {
        if (!has_vector(a, s, step))
            continue;
        kept values;
        typename P::inputs in[1];
        read_kept(values, (const char *)s_vectors, slot_of(step));
        P::load(in[0], a, at, vector_of(s, step));
        elements<P, 1>(&values, nullptr, in, now, sums, nullptr, a, at, vector_of(s, step));
    }
}

template <int P> DEVICE void run_passes(const span &s, row *now, const arguments &a, const base &at) {
    if constexpr (P < PASSES) {
        typename pass<P>::total sum[WIDTH];
        typename pass<P>::accumulators sums[WIDTH];
        clear<pass<P>>(sums);
        accumulate<pass<P>>(sums, s, now, a, at);
        if constexpr (pass<P>::CLOSES) {
            reduce<pass<P>>(sum, sums, s);
            close<pass<P>>(sum, now, a);
        }
        run_passes<P + 1>(s, now, a, at);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    rows_columns_shared(const __grid_constant__ arguments a) {
    const int rank = CLUSTER > 1 ? (int)(blockIdx.x % CLUSTER) : 0;
    const i64 step = gridDim.x / CLUSTER;
    i64 tile = blockIdx.x / CLUSTER;
    begin_launch<TRIGGER>();
    if constexpr (CLUSTER > 1)
        arrive_at_cluster();
    for (int buffer = 0; tile < a.jobs; tile += step, buffer ^= 1) {
        const span s = span_of(a, tile, rank, buffer);
        const base at = base_of(a, s.inside ? s.strip : 0);
        row now[WIDTH];
        row_inputs numbers;
        load_row_inputs(numbers, a, at);
        if (CLUSTER > 1 && tile == blockIdx.x / CLUSTER) // all blocks must run before one writes to another
            await_cluster();
        copy_own(a, s, at);
        await_copies<0>();
        open_rows(now, numbers, a, at);
        run_passes<0>(s, now, a, at);
        if (is_leader(s))
            store_rows(now, a, at);
    }
}
