/* reductions: reductions of the epilogue's results. A thread adds its results, in pairs as in the accumulators; then
   lanes, warps and, if a block keeps to one column of tiles (KEEPS_COLUMN), its tiles are combined, always in the same
   order. The result of a block goes to the workspace as one line of partial sums, which combine_partials.cuh combines
   Requires  BLOCK_M BLOCK_N CLUSTER CONSUMER_GROUPS TILE_GROUPS KEEPS_COLUMN REDUCES_STAGED
             ACCUMULATOR_SPARE_REGISTERS, and the generated column_reductions, row_reductions, whole_reductions */

constexpr int COLUMN_REDUCTIONS = column_reductions::COUNT, ROW_REDUCTIONS = row_reductions::COUNT,
              WHOLE_REDUCTIONS = whole_reductions::COUNT;
constexpr bool HAS_REDUCTIONS = COLUMN_REDUCTIONS + ROW_REDUCTIONS + WHOLE_REDUCTIONS > 0;
constexpr int UNITS = BLOCK_N / 32; /* units of 32 columns: eight numbers per lane, shared by eight lanes */
static_assert(COLUMN_REDUCTIONS == 0 || BLOCK_N % 32 == 0, "units cover the tile");
/* If registers can hold each lane's partial results, lanes are combined after all tiles, otherwise after each unit. */
constexpr bool COMBINES_LANES_LATE =
    KEEPS_COLUMN && !REDUCES_STAGED && COLUMN_REDUCTIONS * UNITS * 8 <= ACCUMULATOR_SPARE_REGISTERS - 56;
constexpr int SPARE_REGISTERS = ACCUMULATOR_SPARE_REGISTERS - COLUMN_REDUCTIONS * (COMBINES_LANES_LATE ? UNITS * 8
                                                                                   : REDUCES_STAGED    ? UNITS
                                                                                                       : 8);
constexpr u32 PARTIALS_BYTES = COLUMN_REDUCTIONS * BLOCK_N * 4; /* per warp */

DEVICE constexpr int at_least_one(int n) { return n > 0 ? n : 1; } /* C++ has no empty arrays */

/* Combines the columns of a group's four warps; s_partials belongs to the warp. */
template <class P> DEVICE void store_columns(const P &p, u32 s_partials, i32 first_column, i64 line, int group) {
    const u32 s_first = s_partials - warp_index() % 4 * PARTIALS_BYTES; /* uniform over the warp */
    sync_threads(1 + group, 128);
    for (int column = threadIdx.x % 128; column < BLOCK_N && first_column + column < (i32)p.columns; column += 128)
#pragma unroll
        for (int t = 0; t < COLUMN_REDUCTIONS; ++t) {
            const u32 s = s_first + (t * BLOCK_N + column) * 4;
            float total = load_shared(s);
#pragma unroll
            for (int warp = 1; warp < 4; ++warp)
                total = column_reductions::joined(t, total, load_shared(s + warp * PARTIALS_BYTES));
            p.column_partials[(t * p.column_lines + line) * p.columns + first_column + column] = total;
        }
    __syncwarp();
    sync_threads(1 + group, 128);
}

/* Returns the line for a group's columns: one per tile, or one for all tiles of a block. */
template <class P> DEVICE i64 line_of_tile(const P &p, const tile_coordinates &at, int group) {
    return at.z * p.column_lines_per_entry + at.row / BLOCK_M * TILE_GROUPS + group % TILE_GROUPS;
}
template <class P> DEVICE i64 line_of_block(const P &p, int consumer_warp) {
    const u32 cluster = blockIdx.x / CLUSTER, rank = blockIdx.x % CLUSTER;
    return (i64)(cluster / (u32)p.tiles_n * CLUSTER + rank) * CONSUMER_GROUPS + consumer_warp / 4;
}

template <class P> struct register_reductions {
    static constexpr int RESIDENT_UNITS = COMBINES_LANES_LATE ? UNITS : 1;
    float r_columns[at_least_one(COLUMN_REDUCTIONS)][RESIDENT_UNITS][8], r_rows[at_least_one(ROW_REDUCTIONS)][2],
        r_whole[at_least_one(WHOLE_REDUCTIONS)];
    u32 s_partials; /* [COLUMN_REDUCTIONS][BLOCK_N] of this warp */
    bool is_first = true;

    DEVICE register_reductions(u32 s_warp) : s_partials(s_warp) {
#pragma unroll
        for (int unit = 0; unit < RESIDENT_UNITS; ++unit)
            clear_unit(unit);
        clear_rows();
#pragma unroll
        for (int t = 0; t < WHOLE_REDUCTIONS; ++t)
            r_whole[t] = whole_reductions::none(t);
    }
    DEVICE void clear_unit(int unit) {
#pragma unroll
        for (int t = 0; t < COLUMN_REDUCTIONS; ++t)
#pragma unroll
            for (int i = 0; i < 8; ++i)
                r_columns[t][unit][i] = column_reductions::none(t);
    }
    DEVICE void clear_rows() {
#pragma unroll
        for (int t = 0; t < ROW_REDUCTIONS; ++t)
            r_rows[t][0] = r_rows[t][1] = row_reductions::none(t);
    }

    template <class T, int COUNT, class R>
    static DEVICE void add_elements(const run<float, RUN> (&elements)[COUNT], int i, bool counts, R total) {
#pragma unroll
        for (int t = 0; t < COUNT; ++t)
            if (counts)
                total(t) = T::joined(t, total(t), elements[t].at[i]);
    }

    /* Adds a run of results at (row, column), which exist either all or not at all: register pair `octet`, `half` of
       the accumulators, starting at its element `e`. Columns that do not exist have partial sums that are never
       stored. */
    template <class F>
    DEVICE void add(const P &p, index z, i32 row, i32 column, int octet, int half, const F &out, int e = 0) {
        const bool has_row = row < (i32)p.rows && exists(p, z, row, 0),
                   counts = has_row && column < (i32)p.columns && exists(p, z, row, column);
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            if constexpr (COLUMN_REDUCTIONS > 0)
                add_elements<column_reductions>(out.columns, i, has_row, [&](int t) -> float & {
                    return r_columns[t][COMBINES_LANES_LATE ? octet / 4 : 0][octet % 4 * 2 + e + i];
                });
            if constexpr (ROW_REDUCTIONS > 0)
                add_elements<row_reductions>(out.rows, i, counts, [&](int t) -> float & { return r_rows[t][half]; });
            if constexpr (WHOLE_REDUCTIONS > 0)
                add_elements<whole_reductions>(out.wholes, i, counts, [&](int t) -> float & { return r_whole[t]; });
        }
        if (!COMBINES_LANES_LATE && COLUMN_REDUCTIONS > 0 && octet % 4 == 3 && half == 1 && e + RUN == 2) {
            combine_lanes(0, octet / 4);
            clear_unit(0);
        }
    }

    DEVICE void add_tile(const P &, u32, int, bool) {}

    /* Combines eight numbers of each lane to one: lane 4r + q gets the sum of the numbers r of lanes q, 4 + q, 8 + q,
       .. */
    static DEVICE float transpose_combine(int t, float (&x)[8]) {
#pragma unroll
        for (int width = 4; width > 0; width /= 2)
#pragma unroll
            for (int i = 0; i < width; ++i) {
                const bool is_high = lane_index() & width * 4;
                const float received = __shfl_xor_sync(~0u, is_high ? x[i] : x[i + width], width * 4);
                x[i] = column_reductions::joined(t, is_high ? x[i + width] : x[i], received);
            }
        return x[0];
    }

    /* Number octet % 4 * 2 + e of lane 4r + q is column 8 (octet % 4) + 2q + e of the unit. */
    DEVICE void combine_lanes(int resident_unit, int unit) {
        const u32 lane = lane_index(), column = unit * 32 + lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2;
#pragma unroll
        for (int t = 0; t < COLUMN_REDUCTIONS; ++t) {
            const float total = transpose_combine(t, r_columns[t][resident_unit]);
            const u32 s = s_partials + (t * BLOCK_N + column) * 4;
            store_shared(s,
                         COMBINES_LANES_LATE || is_first ? total : column_reductions::joined(t, load_shared(s), total));
        }
    }

    /* Without this, the compiler may defer additions until the next products have started to overwrite their inputs. */
    DEVICE void fence_registers() {
#pragma unroll
        for (int i = 0; i < COLUMN_REDUCTIONS * RESIDENT_UNITS * 8; ++i)
            fence_register(r_columns[i / 8 / RESIDENT_UNITS][i / 8 % RESIDENT_UNITS][i % 8]);
#pragma unroll
        for (int i = 0; i < ROW_REDUCTIONS * 2; ++i)
            fence_register(r_rows[i / 2][i % 2]);
#pragma unroll
        for (int t = 0; t < WHOLE_REDUCTIONS; ++t)
            fence_register(r_whole[t]);
    }

    template <class T, int FIRST, int LAST> static DEVICE float combine_all_lanes(int t, float x) {
#pragma unroll
        for (int mask = FIRST; mask <= LAST; mask *= 2)
            x = T::joined(t, x, __shfl_xor_sync(~0u, x, mask));
        return x;
    }

    /* Called after a block of 64 rows. */
    DEVICE void end_rows(const P &p, const tile_coordinates &at, i32 warp_row) {
        is_first = false;
        fence_registers();
        if constexpr (ROW_REDUCTIONS > 0) {
#pragma unroll
            for (int t = 0; t < ROW_REDUCTIONS; ++t)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float total = combine_all_lanes<row_reductions, 1, 2>(t, r_rows[t][half]);
                    const i32 row = warp_row + lane_index() / 4 + half * 8;
                    const i64 line = t * p.row_lines + at.z * p.row_lines_per_entry + at.column / BLOCK_N;
                    if (lane_index() % 4 == 0 && row < (i32)p.rows)
                        p.row_partials[line * p.rows + row] = total;
                }
            clear_rows();
        }
    }

    DEVICE void end_tile(const P &p, const tile_coordinates &at, int group) {
        if constexpr (COLUMN_REDUCTIONS > 0 && !KEEPS_COLUMN) {
            store_columns(p, s_partials, at.column, line_of_tile(p, at, group), group);
            is_first = true;
        }
    }

    /* Called after the last tile, which was in column `column`. */
    DEVICE void end_all(const P &p, i32 column, int consumer_warp) {
        if constexpr (COLUMN_REDUCTIONS > 0 && KEEPS_COLUMN) {
#pragma unroll
            for (int unit = 0; unit < UNITS; ++unit)
                if (COMBINES_LANES_LATE || is_first)
                    combine_lanes(COMBINES_LANES_LATE ? unit : 0, unit); /* a group may have had no tile */
            store_columns(p, s_partials, column, line_of_block(p, consumer_warp), consumer_warp / 4);
        }
        if constexpr (WHOLE_REDUCTIONS > 0) {
#pragma unroll
            for (int t = 0; t < WHOLE_REDUCTIONS; ++t) {
                const float total = combine_all_lanes<whole_reductions, 1, 16>(t, r_whole[t]);
                if (lane_index() == 0)
                    p.whole_partials[t * p.whole_lines + blockIdx.x * CONSUMER_WARPS + consumer_warp] = total;
            }
        }
    }
};
