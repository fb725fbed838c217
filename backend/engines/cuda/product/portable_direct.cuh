/* portable_direct: C[z] = epilogue(sum over k of A[z,k] * B[z,k])
   Types     any types, any strides, sm_75 and up
   Formula   z numbers all results, in the order of memory; offsets and epilogue() are generated, see emit.c
   Tile      a thread sums RUN contiguous results z, which share all coordinates; grid.y splits k, and then
             combine_splits.cuh finishes
   Limits    for products that tiles do not suit: depthwise convolutions, batches of tiny products
   Params    THREADS RUN IS_SPLIT sum_t index operand_a operand_b */

/* The operand's elements of RUN consecutive results. */
template <class operand> struct operand_run {
    using T = typename operand::stored;
    T at[RUN];
    DEVICE operand_run(const arguments &p, const T *from) {
        if constexpr (operand::IS_SHARED) {
#pragma unroll
            for (int e = 0; e < RUN; e++)
                at[e] = *from;
        } else if constexpr (operand::RUN == RUN) {
            const run<T, RUN> all = load_run<T, RUN>(from);
#pragma unroll
            for (int e = 0; e < RUN; e++)
                at[e] = all.at[e];
        } else {
#pragma unroll
            for (int e = 0; e < RUN; e++)
                at[e] = from[e * operand::lead(p)];
        }
    }
};

/* A template, so that functions that were not generated are not looked up. */
template <class P> DEVICE void store_sums(const P &p, i64 at, const run<sum_t, RUN> &sum) {
    if constexpr (IS_SPLIT)
        store_run<sum_t, RUN>(p.partial + (blockIdx.y * p.runs + at) * RUN, sum);
    else
        epilogue(p, (index)(at * RUN), 0, 0, sum);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) portable_direct(const __grid_constant__ arguments p) {
    using factor_t = operand_a::staged;
    for (i64 at = (i64)blockIdx.x * THREADS + threadIdx.x; at < p.runs; at += (i64)gridDim.x * THREADS) {
        const index z = (index)(at * RUN);
        const batch g = find_batch(p, z);
        const operand_a::coordinates a_start = a_outer(p, g, 0);
        const operand_b::coordinates b_start = b_outer(p, g, 0);
        const i64 from = blockIdx.y * p.steps_per_split, end = from + p.steps_per_split;
        const index until = (index)(end < (i64)g.k_count ? end : (i64)g.k_count);
        run<sum_t, RUN> sum = {};
        for (index k = (index)from; k < until; k++) {
            const operand_a::coordinates a_step = a_k(p, g, k);
            const operand_b::coordinates b_step = b_k(p, g, k);
            if (!operand_a::is_inside(p, a_start, a_step) || !operand_b::is_inside(p, b_start, b_step))
                continue;
            const operand_run<operand_a> a(p, p.a + (a_start.offset + a_step.offset));
            const operand_run<operand_b> b(p, p.b + (b_start.offset + b_step.offset));
#pragma unroll
            for (int e = 0; e < RUN; e++)
                sum.at[e] += (sum_t)staged_as<factor_t>::of(a.at[e]) * (sum_t)staged_as<factor_t>::of(b.at[e]);
        }
        store_sums(p, at, sum);
    }
}
