/* elements: runs U vectors of a strip through one pass. Include after the emitted code
   P::element processes the e-th element of a vector: it computes the inputs of the pass's reductions, and its results.
   A row's elements are accumulated N at a time, those of one vector (WIDTH, or 1 for head and tail); those of
   interleaved rows U at a time, one from each vector of the thread
   Params    WIDTH COLUMNS VECTOR_STEP */

template <class P, int U, int N = WIDTH>
DEVICE void elements(kept *own, const broadcast *all, const typename P::inputs *in, const row *now,
                     typename P::accumulators *sums, column *columns, const arguments &a, const base &at, position q) {
    constexpr int OUTER = COLUMNS ? WIDTH : U, INNER = COLUMNS ? U : N;
    typename P::places places[U];
    typename P::template results<N> results[U];
    for (int u = 0; u < U; u++)
        P::template locate<N>(places[u], a, at, q + u * VECTOR_STEP);
#pragma unroll
    for (int outer = 0; outer < OUTER; outer++) {
        typename P::template values<INNER> x;
#pragma unroll
        for (int inner = 0; inner < INNER; inner++) {
            const int u = COLUMNS ? inner : outer, e = COLUMNS ? outer : inner;
            P::element(x, inner, results[u], own + u, all + u, in + u, now[COLUMNS ? e : 0], columns, places[u], a, at,
                       e);
        }
        P::add(sums[COLUMNS ? outer : 0], x);
    }
    for (int u = 0; u < U; u++)
        P::store(results[u], a, at, q + u * VECTOR_STEP);
}
