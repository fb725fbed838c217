/* move: elements copied to other places, converted where the types differ                                  any chip, any type
   Formula   a part is one copy: from() and to(), printed, give the addresses of a position; copy_parts(), printed, deals out the blocks
   Tile      a thread takes UNROLL runs of RUN neighbours, THREADS runs apart, persistent over the rest; loads before stores
   Limits    RUN is what strides, extents and alignment of both sides allow, 16 bytes at most
   Params    THREADS UNROLL, and of each part from_t to_t RUN position */

template <class part> DEVICE void copy_part(const arguments& p, i64 block, i64 blocks) {
    using position = typename part::position;
    using from_t = typename part::from_t;
    using to_t = typename part::to_t;
    constexpr int RUN = part::RUN;
    const i64 runs = part::runs(p);
    for (i64 first = block * THREADS * UNROLL + threadIdx.x; first < runs; first += blocks * THREADS * UNROLL) {
        run<from_t, RUN> in[UNROLL];
        #pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u * THREADS < runs) in[u] = load_run<from_t, RUN>(part::from(p, (position)((first + u * THREADS) * RUN)));
        #pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (first + u * THREADS >= runs) continue;
            run<to_t, RUN> out;
            #pragma unroll
            for (int e = 0; e < RUN; e++) out.at[e] = convert<to_t>(in[u].at[e]);
            store_run<to_t, RUN>(part::to(p, (position)((first + u * THREADS) * RUN)), out);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) move(const __grid_constant__ arguments p) { copy_parts(p); }
