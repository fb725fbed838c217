/* gather: selects slices or elements by indices
   Types     any, converted by way of number_t unless the types are equal
   Tile      a thread selects RUN adjacent lines of one index. M_FIRST: adjacent threads have adjacent indices,
             otherwise adjacent lines
   Params    THREADS RUN M_FIRST HAS_SLICES number_t position */
#include "core/gather.cuh"

template <class A, class B> struct converted {
    static DEVICE B of(A x) { return from<B>::number(as<number_t>::of(x)); }
};
template <class A> struct converted<A, A> {
    static DEVICE A of(A x) { return x; }
};

extern "C" __global__ void __launch_bounds__(THREADS) gather(const __grid_constant__ arguments p) {
    for (i64 at = (i64)blockIdx.x * THREADS + threadIdx.x; at < p.total; at += (i64)gridDim.x * THREADS) {
        position rest = (position)at;
        const i64 first = (i64)split(rest, p.inner);
        const i64 m = M_FIRST ? first : (i64)rest;
        const u32 line = (u32)(M_FIRST ? (i64)rest : first) * RUN;
        const i64 selected = to_integer(p.index[(HAS_SLICES ? 0 : index_line(p, line)) + m * p.index_stride]);
        const bool is_inside = 0 <= selected && selected < p.extent;
        const x_t *x = p.x + x_line(p, line) + (is_inside ? selected : 0) * p.x_step;
        y_t *y = p.y + y_line(p, line) + m * p.y_step;
        if constexpr (RUN > 1) {
            run<y_t, RUN> out = {};
            if (is_inside) {
                const run<x_t, RUN> in = load_run<x_t, RUN>(x);
#pragma unroll
                for (int e = 0; e < RUN; e++)
                    out.at[e] = converted<x_t, y_t>::of(in.at[e]);
            }
            store_run<y_t, RUN>(y, out);
        } else {
            *y = is_inside ? converted<x_t, y_t>::of(*x) : from<y_t>::number((number_t)0);
        }
    }
}
