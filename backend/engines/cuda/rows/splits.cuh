/* splits: reads the partial results that splits of rows wrote to the workspace, for each pass. Include after strip.cuh
   and a file that defines reduce_strip() */

/* Combines the splits' results of pass P. */
template <int P> DEVICE void gather(typename pass<P>::total (&sum)[LANES], const span &s, const arguments &a) {
    const auto *left = pass<P>::left_by_splits(a) + (s.inside ? s.strip : 0) * LANES;
    if constexpr (pass<P>::IS_JOINED) {
        using words = raw<u32, sizeof(sum) / 4>;
        union {
            words from;
            typename pass<P>::total numbers[LANES];
        } both;
        both.from = words::template load<false>((const u32 *)left);
#pragma unroll
        for (int l = 0; l < LANES; l++)
            sum[l] = both.numbers[l];
    } else {
#pragma unroll
        for (int l = 0; l < LANES; l++)
            sum[l] = pass<P>::none();
        if (s.inside)
            for (i64 split = s.lane; split < pass<P>::splits(a); split += GROUP)
#pragma unroll
                for (int l = 0; l < LANES; l++)
                    sum[l] = pass<P>::joined(sum[l], left[split * a.rows + l]);
        reduce_strip<pass<P>>(sum, s);
    }
}

template <int P> DEVICE void leave(const typename pass<P>::total (&sum)[LANES], const span &s, const arguments &a) {
    if (s.inside && s.lane == 0)
#pragma unroll
        for (int l = 0; l < LANES; l++)
            ((typename pass<P>::total *)a.left)[s.split * a.rows + s.strip * LANES + l] = sum[l];
}
