/* patch_reductions: reductions in registers of the results of evaluate() or, with REDUCES_STORED, of the stored 16 bits
   (elements_of): per filter, where a block keeps to its filters and a thread to two of them, so that partial results
   are combined only after the last tile; or of everything. combine_partials.cuh combines the blocks' partial sums
   Tried     reducing the patch when it is stored, by the consumers or by the storing warps: convolutions of 64 channels
             45 and 100 % slower than from registers
             reducing a tile after all its pairs: up to 3 % slower than between them; with a predicate per pixel: within
             noise */

/* Partial results of a thread: those of the two filters whose sums it holds, and those of everything. A template, so
   that functions that were not generated are not looked up. */
template <class P> struct register_reductions {
    static constexpr int COLUMNS = column_reductions::COUNT, WHOLES = whole_reductions::COUNT;
    static constexpr bool EXIST = COLUMNS + WHOLES > 0;
    float r_columns[COLUMNS > 0 ? COLUMNS : 1][2], r_whole[WHOLES > 0 ? WHOLES : 1];

    DEVICE register_reductions() {
#pragma unroll
        for (int i = 0; i < 2 * COLUMNS; ++i)
            r_columns[i / 2][i % 2] = column_reductions::none(i / 2);
#pragma unroll
        for (int t = 0; t < WHOLES; ++t)
            r_whole[t] = whole_reductions::none(t);
    }

    template <class F> DEVICE void add(const F &out, int h, int e) {
        if constexpr (COLUMNS > 0) {
#pragma unroll
            for (int t = 0; t < COLUMNS; ++t)
                r_columns[t][h] = column_reductions::joined(t, r_columns[t][h], out.columns[t].at[e]);
        }
        if constexpr (WHOLES > 0) {
#pragma unroll
            for (int t = 0; t < WHOLES; ++t)
                r_whole[t] = whole_reductions::joined(t, r_whole[t], out.wholes[t].at[e]);
        }
    }

    template <class T, int LANES> static DEVICE float combine_lanes(int t, float total) {
#pragma unroll
        for (int mask = 1; mask < LANES; mask *= 2)
            total = T::joined(t, total, __shfl_xor_sync(~0u, total, mask));
        return total;
    }
    DEVICE void end_all(const P &p, i32 filter, int group) {
        const i64 line = blockIdx.x / p.filter_tiles.value * CONSUMER_GROUPS + group,
                  warp = (blockIdx.x * CONSUMER_GROUPS + group) * 4 + warp_index() % 4;
        if constexpr (COLUMNS > 0) {
#pragma unroll
            for (int i = 0; i < 2 * COLUMNS; ++i) {
                const int t = i / 2, h = i % 2;
                const float total = combine_lanes<column_reductions, 4>(t, r_columns[t][h]);
                const i32 column = filter + (i32)(warp_index() % 4 * 16 + lane_index() / 4) + 8 * h;
                if (lane_index() % 4 == 0 && column < (i32)p.columns)
                    p.column_partials[(t * p.column_lines + line) * p.columns + column] = total;
            }
        }
        if constexpr (WHOLES > 0) {
#pragma unroll
            for (int t = 0; t < WHOLES; ++t) {
                const float total = combine_lanes<whole_reductions, 32>(t, r_whole[t]);
                if (lane_index() == 0)
                    p.whole_partials[t * p.whole_lines + warp] = total;
            }
        }
    }
};
