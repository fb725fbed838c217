/* copy: copies elements to other positions, converted if the types differ                            any chip, any type
   Formula   a part is one copy: the emitted from() and to() give the addresses of a position; the emitted copy_parts()
             assigns the blocks
   Tile      a thread copies UNROLL runs of RUN adjacent elements, THREADS runs apart, and loops over the rest; loads
             precede stores
   Limits    RUN is what strides, extents and alignment of both sides allow, at most 16 bytes; if no run fills bytes, a
             thread processes bytes of the destination and finds the positions in them
   Params    THREADS UNROLL, and of each part from_t to_t RUN position find() */

#include "core/dependent_launch.cuh"

template <class part> DEVICE void copy_part(const arguments &p, i64 block, i64 blocks) {
    using position = typename part::position;
    using from_t = typename part::from_t;
    using to_t = typename part::to_t;
    constexpr int RUN = part::RUN;
    const i64 runs = part::runs(p);
    for (i64 first = block * THREADS * UNROLL + threadIdx.x; first < runs; first += blocks * THREADS * UNROLL) {
        run<from_t, RUN> in[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u * THREADS < runs)
                in[u] = load_run<from_t, RUN>(part::from(p, (position)((first + u * THREADS) * RUN)));
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (first + u * THREADS >= runs)
                continue;
            run<to_t, RUN> out;
#pragma unroll
            for (int e = 0; e < RUN; e++)
                out.at[e] = convert<to_t>(in[u].at[e]);
            store_run<to_t, RUN>(part::to(p, (position)((first + u * THREADS) * RUN)), out);
        }
    }
}

/* One thread writes each byte of the destination, and leaves the bits between elements unchanged. */
template <class part> DEVICE void copy_bytes(const arguments &p, i64 block, i64 blocks) {
    using position = typename part::position;
    using from_t = typename part::from_t;
    using to_t = typename part::to_t;
    constexpr int EACH = 8 / BITS<to_t>;
    for (i64 byte = block * THREADS + threadIdx.x; byte < part::runs(p); byte += blocks * THREADS) {
        const packed_pointer<to_t> to = part::to(p, 0) + byte * EACH;
        run<to_t, EACH> out;
        bool is_there[EACH], is_whole = true;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            position at;
            is_there[e] = part::find(p, byte * EACH + e, at);
            is_whole = is_whole && is_there[e];
            if (is_there[e])
                out.at[e] = convert<to_t>(load_run<from_t, 1>(part::from(p, at)).at[0]);
        }
        if (is_whole) {
            store_run<to_t, EACH>(to, out);
            continue;
        }
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (is_there[e])
                store_run<to_t, 1>(to + e, {out.at[e]});
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) copy(const __grid_constant__ arguments p) {
    begin_overlapped();
    copy_parts(p);
}
