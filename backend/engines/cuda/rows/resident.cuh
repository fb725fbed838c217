/* resident: the passes of a strip whose vectors are in a thread's registers
   CONVERTS_AGAIN: vectors stay in their stored type between passes and are converted again. Include after passes.cuh */

/* All data that a strip reads from memory, requested before any of it is used. */
struct loaded {
    kept vectors[OWN];
    row_inputs numbers;
};

DEVICE void load_strip(loaded &in, const arguments &a, const span &s) {
    const base at = base_of(a, s.inside ? s.strip : 0);
#pragma unroll
    for (int step = 0; step < STEPS; step++)
        if (has_vector(a, s, step))
            load_kept(in.vectors[step], a, at, vector_of(s, step));
    if constexpr (UNALIGNED > 0)
        if (has_unaligned(a, s))
            load_kept<1>(in.vectors[KEPT], a, at, s.lane);
    load_row_inputs(in.numbers, a, at);
}

template <class P>
DEVICE void accumulate(typename P::accumulators (&sums)[LANES], const span &s, kept *own, const broadcast *all,
                       const row *now, column *columns, const arguments &a, const base &at) {
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        if (!has_vector(a, s, step))
            continue;
        typename P::inputs in[1];
        if constexpr (!KEEPS_BROADCAST)
            P::load(in[0], a, at, vector_of(s, step));
        elements<P, 1>(own + step, all + step, in, now, sums, columns + step, a, at, vector_of(s, step));
    }
    if constexpr (UNALIGNED > 0)
        if (has_unaligned(a, s)) {
            typename P::inputs in[1];
            if constexpr (!KEEPS_BROADCAST)
                P::template load<1>(in[0], a, at, s.lane);
            elements<P, 1, 1>(own + KEPT, all + KEPT, in, now, sums, columns + KEPT, a, at, s.lane);
        }
}

template <int P>
DEVICE void run_passes(const span &s, kept *own, const broadcast *all, row *now, column *columns, const arguments &a,
                       const base &at) {
    if constexpr (P < PASSES) {
        typename pass<P>::total sum[LANES];
        typename pass<P>::accumulators sums[LANES];
        if constexpr (CONVERTS_AGAIN && P > 0)
#pragma unroll
            for (int step = 0; step < OWN; step++)
                forget_conversions(own[step]);
        clear<pass<P>>(sums);
        accumulate<pass<P>>(sums, s, own, all, now, columns, a, at);
        if constexpr (pass<P>::CLOSES) {
            reduce<pass<P>>(sum, sums, s);
            close<pass<P>>(sum, now, a);
        }
        run_passes<P + 1>(s, own, all, now, columns, a, at);
    }
}
