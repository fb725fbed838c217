/* reductions_staged: reductions of columns that need only the stored 16 bits, computed from the epilogue tiles from
   which the results are stored. A lane keeps to the same two columns of every epilogue tile, so that lanes need no
   exchange, and only the last rows need a test whether they exist
   Requires  as reductions.cuh and epilogue_staged.cuh; elements_of is generated. A template, so that functions that
             were not generated are not looked up
   Measured  H200, genstats after 3x3 of 256 filters on 128x14x14: 4 instead of 9 instructions per element, 45.4 instead
             of 46.5 us. Without ping-pong, waiting for the epilogue tile takes longer: 1x1 of 64 to 256 on 128x56x56
             79.8 instead of 76.0 us; one sum per column, after 8192x4096x1024 with relu_backward, 125.6 instead of
             122.4 */

template <class P> struct staged_reductions {
    static constexpr int TILES = at_least_one(BLOCK_N / EPILOGUE_TILE_N), LANES = EPILOGUE_TILE_N / 2,
                         ROWS_AT_ONCE = 32 / LANES;
    static_assert(LANES == 32 || LANES == 16, "one or two rows at once");
    float r_total[at_least_one(COLUMN_REDUCTIONS)][TILES][2];
    u32 s_partials; /* [COLUMN_REDUCTIONS][BLOCK_N] of this warp */

    DEVICE staged_reductions(u32 s_warp) : s_partials(s_warp) { clear(); }
    DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < COLUMN_REDUCTIONS * TILES * 2; ++i)
            r_total[i / 2 / TILES][i / 2 % TILES][i % 2] = column_reductions::none(i / 2 / TILES);
    }
    template <class F> DEVICE void add(const P &, index, i32, i32, int, int, const F &, int = 0) {}

    DEVICE void add_pair(const P &p, u32 s_tile, int tile, u32 tile_row) {
        const u32 pair = lane_index() % LANES,
                  s = s_tile + tile_row * EPILOGUE_ROW_BYTES + (pair / 4 ^ tile_swizzle(tile_row)) * 16 + pair % 4 * 4;
        const u32 bits = __float_as_uint(load_shared(s));
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const auto out = elements_of(p, (u16)(bits >> 16 * e));
#pragma unroll
            for (int t = 0; t < COLUMN_REDUCTIONS; ++t)
                r_total[t][tile][e] = column_reductions::joined(t, r_total[t][tile][e], out.columns[t].at[0]);
        }
    }
    /* Adds a tile that the warp has written; lane l knows whether row l % 16 exists. */
    DEVICE void add_tile(const P &p, u32 s_tile, int tile, bool has_row) {
        const u32 first = lane_index() / LANES, rows = __ballot_sync(~0u, has_row) & 0xffff;
        if (rows == 0xffff) {
#pragma unroll
            for (u32 i = 0; i < 16; i += ROWS_AT_ONCE)
                add_pair(p, s_tile, tile, first + i);
        } else {
#pragma unroll 1
            for (u32 i = first; i < 16; i += ROWS_AT_ONCE)
                if (rows >> i & 1)
                    add_pair(p, s_tile, tile, i);
        }
    }

    template <class L> DEVICE void end_rows(const P &, const L &, i32) {
#pragma unroll
        for (int i = 0; i < COLUMN_REDUCTIONS * TILES * 2; ++i)
            fence_register(r_total[i / 2 / TILES][i / 2 % TILES][i % 2]);
    }
    DEVICE void store(const P &p, i32 first_column, i64 line, int group) {
#pragma unroll
        for (int i = 0; i < COLUMN_REDUCTIONS * TILES * 2; ++i) {
            const int t = i / 2 / TILES, tile = i / 2 % TILES, e = i % 2;
            float total = r_total[t][tile][e];
            if constexpr (ROWS_AT_ONCE > 1)
                total = column_reductions::joined(t, total, __shfl_xor_sync(~0u, total, LANES));
            if (lane_index() < LANES)
                store_shared(s_partials + (t * BLOCK_N + tile * EPILOGUE_TILE_N + lane_index() * 2 + e) * 4, total);
        }
        store_columns(p, s_partials, first_column, line, group);
        clear();
    }
    DEVICE void end_tile(const P &p, const tile_coordinates &at, int group) {
        if constexpr (!KEEPS_COLUMN)
            store(p, at.column, line_of_tile(p, at, group), group);
    }
    DEVICE void end_all(const P &p, i32 column, int consumer_warp) {
        if constexpr (KEEPS_COLUMN)
            store(p, column, line_of_block(p, consumer_warp), consumer_warp / 4);
    }
};
