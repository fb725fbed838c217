/* passes: how a pass over the elements of a strip begins and ends
   Each thread accumulates elements; the accumulators become partial results, which the threads of the strip reduce;
   close() computes numbers of the rows from them. Include after strip.cuh and a file that defines reduce_strip() */

#include "rows/elements.cuh"

template <class P> DEVICE void clear(typename P::accumulators (&sums)[LANES]) {
#pragma unroll
    for (int l = 0; l < LANES; l++)
        sums[l] = P::nothing();
}

template <class P>
DEVICE void reduce(typename P::total (&sum)[LANES], const typename P::accumulators (&sums)[LANES], const span &s) {
#pragma unroll
    for (int l = 0; l < LANES; l++)
        sum[l] = P::finished(sums[l]);
    reduce_strip<P>(sum, s);
}

template <class P> DEVICE void close(const typename P::total (&sum)[LANES], row *now, const arguments &a) {
#pragma unroll
    for (int l = 0; l < LANES; l++)
        P::close(sum[l], now[l], a);
}
