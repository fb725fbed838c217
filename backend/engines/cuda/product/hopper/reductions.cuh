/* totals: reductions behind a product. A thread takes in what it finishes, in pairs as the sums lie; lanes, warps and, where a block
     keeps to one column of tiles (STAYS), its tiles join theirs, always in the same order. What a block comes to goes to the
     workspace as one line of parts, which combine_partials.cuh joins.
   Demands BLOCK_M BLOCK_N CLUSTER MATH_GROUPS TILE_GROUPS STAYS TOTALS_OF_SLABS SUM_SPARE_REGISTERS, and the printed column_totals, row_totals, whole_totals. */

constexpr int COLUMN_TOTALS = column_totals::COUNT, ROW_TOTALS = row_totals::COUNT, WHOLE_TOTALS = whole_totals::COUNT;
constexpr bool HAS_TOTALS = COLUMN_TOTALS + ROW_TOTALS + WHOLE_TOTALS > 0;
constexpr int UNITS = BLOCK_N / 32; /* of 32 columns: eight numbers per lane, which eight lanes share */
/* Lanes meet when all tiles are done if registers hold what each has until then; else after each unit. */
constexpr bool LANES_MEET_LATE = STAYS && !TOTALS_OF_SLABS && COLUMN_TOTALS * UNITS * 8 <= SUM_SPARE_REGISTERS - 56;
constexpr int SPARE_REGISTERS = SUM_SPARE_REGISTERS - COLUMN_TOTALS * (LANES_MEET_LATE   ? UNITS * 8
                                                                       : TOTALS_OF_SLABS ? UNITS
                                                                                         : 8);
constexpr u32 PARTS_BYTES = COLUMN_TOTALS * BLOCK_N * 4; /* of a warp */

DEVICE constexpr int at_least_one(int n) { return n > 0 ? n : 1; } /* arrays are never empty */

/* The four warps of a group bring their columns together; s_parts is the warp's own. */
template <class P> DEVICE void leave_columns(const P &p, u32 s_parts, i32 first_column, i64 line, int group) {
    const u32 s_first = s_parts - warp_index() % 4 * PARTS_BYTES; /* found by all lanes together */
    sync_threads(1 + group, 128);
    for (int column = threadIdx.x % 128; column < BLOCK_N && first_column + column < (i32)p.columns; column += 128)
#pragma unroll
        for (int t = 0; t < COLUMN_TOTALS; ++t) {
            const u32 s = s_first + (t * BLOCK_N + column) * 4;
            float total = load_shared(s);
#pragma unroll
            for (int warp = 1; warp < 4; ++warp)
                total = column_totals::joined(t, total, load_shared(s + warp * PARTS_BYTES));
            p.column_parts[(t * p.column_lines + line) * p.columns + first_column + column] = total;
        }
    __syncwarp();
    sync_threads(1 + group, 128);
}

/* Where a group's columns go: of each tile, or of all that a block has made. */
template <class P> DEVICE i64 line_of_tile(const P &p, const place &at, int group) {
    return at.z * p.column_lines_per_entry + at.row / BLOCK_M * TILE_GROUPS + group % TILE_GROUPS;
}
template <class P> DEVICE i64 line_of_block(const P &p, int math_warp) {
    const u32 cluster = blockIdx.x / CLUSTER, rank = blockIdx.x % CLUSTER;
    return (i64)(cluster / (u32)p.tiles_n * CLUSTER + rank) * MATH_GROUPS + math_warp / 4;
}

template <class P> struct taken_totals {
    static constexpr int HELD = LANES_MEET_LATE ? UNITS : 1;
    float r_columns[at_least_one(COLUMN_TOTALS)][HELD][8], r_rows[at_least_one(ROW_TOTALS)][2],
        r_whole[at_least_one(WHOLE_TOTALS)];
    u32 s_parts; /* [COLUMN_TOTALS][BLOCK_N] of this warp */
    bool is_first = true;

    DEVICE taken_totals(u32 s_warp) : s_parts(s_warp) {
#pragma unroll
        for (int unit = 0; unit < HELD; ++unit)
            clear_unit(unit);
        clear_rows();
#pragma unroll
        for (int t = 0; t < WHOLE_TOTALS; ++t)
            r_whole[t] = whole_totals::none(t);
    }
    DEVICE void clear_unit(int unit) {
#pragma unroll
        for (int t = 0; t < COLUMN_TOTALS; ++t)
#pragma unroll
            for (int i = 0; i < 8; ++i)
                r_columns[t][unit][i] = column_totals::none(t);
    }
    DEVICE void clear_rows() {
#pragma unroll
        for (int t = 0; t < ROW_TOTALS; ++t)
            r_rows[t][0] = r_rows[t][1] = row_totals::none(t);
    }

    template <class T, int COUNT, class R>
    static DEVICE void add(const run<float, RUN> (&elements)[COUNT], int i, bool counts, R total) {
#pragma unroll
        for (int t = 0; t < COUNT; ++t)
            if (counts)
                total(t) = T::joined(t, total(t), elements[t].at[i]);
    }

    /* Takes in a run of finished results at (row, column), which exist together or not at all: of register pair `octet`, `half`, as sums
       lie, from its element `e` on. Columns that do not exist have totals that nobody keeps. */
    template <class F>
    DEVICE void take(const P &p, index z, i32 row, i32 column, int octet, int half, const F &out, int e = 0) {
        const bool has_row = row < (i32)p.rows && exists(p, z, row, 0),
                   counts = has_row && column < (i32)p.columns && exists(p, z, row, column);
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            if constexpr (COLUMN_TOTALS > 0)
                add<column_totals>(out.columns, i, has_row, [&](int t) -> float & {
                    return r_columns[t][LANES_MEET_LATE ? octet / 4 : 0][octet % 4 * 2 + e + i];
                });
            if constexpr (ROW_TOTALS > 0)
                add<row_totals>(out.rows, i, counts, [&](int t) -> float & { return r_rows[t][half]; });
            if constexpr (WHOLE_TOTALS > 0)
                add<whole_totals>(out.wholes, i, counts, [&](int t) -> float & { return r_whole[t]; });
        }
        if (!LANES_MEET_LATE && COLUMN_TOTALS > 0 && octet % 4 == 3 && half == 1 && e + RUN == 2) {
            meet(0, octet / 4);
            clear_unit(0);
        }
    }

    DEVICE void take_slab(const P &, u32, int, bool) {}

    /* Eight numbers of each lane become one: lane 4r + q gets the total of the numbers r of lanes q, 4 + q, 8 + q, .. */
    static DEVICE float share_out(int t, float (&x)[8]) {
#pragma unroll
        for (int width = 4; width > 0; width /= 2)
#pragma unroll
            for (int i = 0; i < width; ++i) {
                const bool is_high = lane_index() & width * 4;
                const float received = __shfl_xor_sync(~0u, is_high ? x[i] : x[i + width], width * 4);
                x[i] = column_totals::joined(t, is_high ? x[i + width] : x[i], received);
            }
        return x[0];
    }

    /* Number octet % 4 * 2 + e of lane 4r + q is column 8 (octet % 4) + 2q + e of the unit. */
    DEVICE void meet(int held, int unit) {
        const u32 lane = lane_index(), column = unit * 32 + lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2;
#pragma unroll
        for (int t = 0; t < COLUMN_TOTALS; ++t) {
            const float total = share_out(t, r_columns[t][held]);
            const u32 s = s_parts + (t * BLOCK_N + column) * 4;
            store_shared(s, LANES_MEET_LATE || is_first ? total : column_totals::joined(t, load_shared(s), total));
        }
    }

    /* The compiler may put off additions until after the next products have begun to overwrite what they read. */
    DEVICE void settle_all() {
#pragma unroll
        for (int i = 0; i < COLUMN_TOTALS * HELD * 8; ++i)
            settle(r_columns[i / 8 / HELD][i / 8 % HELD][i % 8]);
#pragma unroll
        for (int i = 0; i < ROW_TOTALS * 2; ++i)
            settle(r_rows[i / 2][i % 2]);
#pragma unroll
        for (int t = 0; t < WHOLE_TOTALS; ++t)
            settle(r_whole[t]);
    }

    template <class T, int FIRST, int LAST> static DEVICE float lanes_total(int t, float x) {
#pragma unroll
        for (int mask = FIRST; mask <= LAST; mask *= 2)
            x = T::joined(t, x, __shfl_xor_sync(~0u, x, mask));
        return x;
    }

    /* After a block of 64 rows. */
    DEVICE void end_rows(const P &p, const place &at, i32 warp_row) {
        is_first = false;
        settle_all();
        if constexpr (ROW_TOTALS > 0) {
#pragma unroll
            for (int t = 0; t < ROW_TOTALS; ++t)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float total = lanes_total<row_totals, 1, 2>(t, r_rows[t][half]);
                    const i32 row = warp_row + lane_index() / 4 + half * 8;
                    const i64 line = t * p.row_lines + at.z * p.row_lines_per_entry + at.column / BLOCK_N;
                    if (lane_index() % 4 == 0 && row < (i32)p.rows)
                        p.row_parts[line * p.rows + row] = total;
                }
            clear_rows();
        }
    }

    DEVICE void end_tile(const P &p, const place &at, int group) {
        if constexpr (COLUMN_TOTALS > 0 && !STAYS) {
            leave_columns(p, s_parts, at.column, line_of_tile(p, at, group), group);
            is_first = true;
        }
    }

    /* After the last tile, which stood in column `column`. */
    DEVICE void end_all(const P &p, i32 column, int math_warp) {
        if constexpr (COLUMN_TOTALS > 0 && STAYS) {
#pragma unroll
            for (int unit = 0; unit < UNITS; ++unit)
                if (LANES_MEET_LATE || is_first)
                    meet(LANES_MEET_LATE ? unit : 0, unit); /* a group may have seen no tile */
            leave_columns(p, s_parts, column, line_of_block(p, math_warp), math_warp / 4);
        }
        if constexpr (WHOLE_TOTALS > 0) {
#pragma unroll
            for (int t = 0; t < WHOLE_TOTALS; ++t) {
                const float total = lanes_total<whole_totals, 1, 16>(t, r_whole[t]);
                if (lane_index() == 0)
                    p.whole_parts[t * p.whole_lines + blockIdx.x * MATH_WARPS + math_warp] = total;
            }
        }
    }
};
