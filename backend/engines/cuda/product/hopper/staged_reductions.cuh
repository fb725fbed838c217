/* slab_totals: totals of columns, of nothing but the 16 bits that leave, taken from the slabs that these leave from. A lane keeps to the
     same two columns of every slab, so that lanes have nothing to exchange and no row asks whether it exists but the last ones of all.
   Demands what product/hopper/reductions.cuh and product/hopper/staging.cuh do; elements_of is printed. A template, so that what was not printed is not looked up.
   Measured (H200) genstats behind 3x3 of 256 filters on 128x14x14: 4 instructions per element and not 9, 45.4 us and not 46.5. Where
             warpgroups do not take turns, waiting for the slab takes longer: 1x1 of 64 to 256 on 128x56x56 79.8 us and not 76.0; one total
             of a column, behind 8192x4096x1024 with relu_backward, 125.6 and not 122.4 */

template <class P> struct slab_totals {
    static constexpr int SLABS = at_least_one(BLOCK_N / SLAB_N), LANES = SLAB_N / 2, ROWS_AT_ONCE = 32 / LANES;
    float r_total[at_least_one(COLUMN_TOTALS)][SLABS][2];
    u32 s_parts; /* [COLUMN_TOTALS][BLOCK_N] of this warp */

    DEVICE slab_totals(u32 s_warp) : s_parts(s_warp) { clear(); }
    DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < COLUMN_TOTALS * SLABS * 2; ++i)
            r_total[i / 2 / SLABS][i / 2 % SLABS][i % 2] = column_totals::none(i / 2 / SLABS);
    }
    template <class F> DEVICE void take(const P &, index, i32, i32, int, int, const F &, int = 0) {}

    DEVICE void take_pair(const P &p, u32 s_slab, int slab, u32 slab_row) {
        const u32 pair = lane_index() % LANES,
                  s = s_slab + slab_row * SLAB_ROW_BYTES + (pair / 4 ^ slab_swizzle(slab_row)) * 16 + pair % 4 * 4;
        const u32 bits = __float_as_uint(load_shared(s));
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const auto out = elements_of(p, (u16)(bits >> 16 * e));
#pragma unroll
            for (int t = 0; t < COLUMN_TOTALS; ++t)
                r_total[t][slab][e] = column_totals::joined(t, r_total[t][slab][e], out.columns[t].at[0]);
        }
    }
    /* Takes in a slab that the warp has written; lane l knows whether row l % 16 exists. */
    DEVICE void take_slab(const P &p, u32 s_slab, int slab, bool has_row) {
        const u32 first = lane_index() / LANES, rows = __ballot_sync(~0u, has_row) & 0xffff;
        if (rows == 0xffff) {
#pragma unroll
            for (u32 i = 0; i < 16; i += ROWS_AT_ONCE)
                take_pair(p, s_slab, slab, first + i);
        } else {
#pragma unroll 1
            for (u32 i = first; i < 16; i += ROWS_AT_ONCE)
                if (rows >> i & 1)
                    take_pair(p, s_slab, slab, i);
        }
    }

    template <class L> DEVICE void end_rows(const P &, const L &, i32) {
#pragma unroll
        for (int i = 0; i < COLUMN_TOTALS * SLABS * 2; ++i)
            settle(r_total[i / 2 / SLABS][i / 2 % SLABS][i % 2]);
    }
    DEVICE void leave(const P &p, i32 first_column, i64 line, int group) {
#pragma unroll
        for (int i = 0; i < COLUMN_TOTALS * SLABS * 2; ++i) {
            const int t = i / 2 / SLABS, slab = i / 2 % SLABS, e = i % 2;
            float total = r_total[t][slab][e];
            if constexpr (ROWS_AT_ONCE > 1)
                total = column_totals::joined(t, total, __shfl_xor_sync(~0u, total, LANES));
            if (lane_index() < LANES)
                store_shared(s_parts + (t * BLOCK_N + slab * SLAB_N + lane_index() * 2 + e) * 4, total);
        }
        leave_columns(p, s_parts, first_column, line, group);
        clear();
    }
    DEVICE void end_tile(const P &p, const place &at, int group) {
        if constexpr (!STAYS)
            leave(p, at.column, line_of_tile(p, at, group), group);
    }
    DEVICE void end_all(const P &p, i32 column, int math_warp) {
        if constexpr (STAYS)
            leave(p, column, line_of_block(p, math_warp), math_warp / 4);
    }
};
