/* forward_epilogue: epilogue of 16 queries of a warp for forward_sm90: computes the statistics, divides O by the row
   sums, and stores O through shared memory. */

/* Adds the sink to the row sum, stores the statistics, and returns the factor of O. */
template <class P> DEVICE float end_row(const P &a, const tile &t, i32 query, float maximum, float sum, bool stores) {
    float rescale = 1.0f;
    if constexpr (HAS_SINK) {
        const float sink = query < t.queries ? to_float(a.sink[t.head * a.sink_step]) * 1.44269504f : -infinity();
        const float now = fmaxf(maximum, sink), reference = now == -infinity() ? 0.0f : now;
        rescale = exp2_approx(maximum - reference);
        sum = sum * rescale + exp2_approx(sink - reference);
        maximum = now;
    }
    if (stores) {
        constexpr float LN_2 = 0.693147181f;
        const float lse = sum == 0 ? -infinity() : (maximum + __log2f(sum)) * LN_2;
        [[maybe_unused]] const bool is_used = query < t.queries; /* ragged rows past the end belong to other entries */
        if constexpr (HAS_STATS)
            if (is_used || !is_ragged(a.stats_batch))
                a.stats[t.batch * a.stats_batch + t.head * a.stats_head + query * a.stats_row] =
                    from<stats_t>::number(lse);
        if constexpr (HAS_MAX)
            if (is_used || !is_ragged(a.max_batch))
                a.max[t.batch * a.max_batch + t.head * a.max_head + query * a.max_row] =
                    from<max_t>::number(maximum * LN_2);
        if constexpr (HAS_SUM_EXP)
            if (is_used || !is_ragged(a.sum_exp_batch))
                a.sum_exp[t.batch * a.sum_exp_batch + t.head * a.sum_exp_head + query * a.sum_exp_row] =
                    from<sum_exp_t>::number(sum);
    }
    return sum == 0 ? 0.0f : rescale / sum;
}

/* TRACKS_LARGEST_P: moves row_max from the exponents' reference to the true maximum of the scores, which follows from
   the largest P. Returns the factor by which O has to be multiplied. */
DEVICE float find_largest_score(const row_pair &rows, int h, float &maximum, float &sum) {
    const float top = NOTES_TOP ? maximum_of_quad(rows.top[h]) : 0.0f;
    if (top == 0)
        return 1;
    const float shrink = reciprocal_approx(top); /* a true division would be a call */
    maximum += __log2f(top);
    sum *= shrink;
    return shrink;
}

/* Row in the tile of the warp's first query. */
DEVICE i32 first_row_of(u32 group) { return (i32)group * GROUP_Q + (i32)(warp_index() % 4) * 16; }

/* Stores 32 bytes of each row of a panel (part 0 .. 3) of O x rescale. FP8: a lane holds columns 4t .. 4t + 3 of each
   16, t = lane % 4 (see forward_values). */
template <class T> DEVICE void put_columns(u32 s_panel, int part, const float *x, const float (&by)[2]) {
    const u32 lane = lane_index(), panel_row = lane % 16;
    const u32 s_sixteen_bytes = s_panel + panel_row * ROW_BYTES + ((part * 2 + lane / 16) ^ panel_row % 8) * 16;
    if constexpr (!IS_FP8 && sizeof(T) == 1) {
        u32 four[4]; /* after an exchange within a quad: columns 4t .. 4t + 3 of 16 */
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float *y = x + i / 2 * 8 + i % 2 * 2, to = by[i % 2];
            const u32 own = rounded_four<T>(y[0] * to, y[1] * to, y[4] * to, y[5] * to), from = lane % 2 * 2;
            const u32 low = __shfl_sync(~0u, own, from, 4), high = __shfl_sync(~0u, own, from + 1, 4);
            four[i] = __byte_perm(low, high, lane % 4 < 2 ? 0x5410 : 0x7632);
        }
        store_matrices(s_sixteen_bytes, four);
    } else if constexpr (!IS_FP8) {
        const u32 four[4] = {rounded_pair<T>(x[0] * by[0], x[1] * by[0]), rounded_pair<T>(x[2] * by[1], x[3] * by[1]),
                             rounded_pair<T>(x[4] * by[0], x[5] * by[0]), rounded_pair<T>(x[6] * by[1], x[7] * by[1])};
        store_matrices(s_sixteen_bytes, four);
    } else if constexpr (sizeof(T) == 1) {
        u32 four[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float *y = x + i / 2 * 8 + i % 2 * 2, to = by[i % 2];
            four[i] = rounded_four<T>(y[0] * to, y[4] * to, y[1] * to, y[5] * to);
        }
        store_matrices(s_sixteen_bytes, four);
    } else {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const u32 r = lane / 4 + 8 * h, t = lane % 4;
            const float *y = x + 2 * h, to = by[h];
            const u64 low = rounded_pair<T>(y[0] * to, y[4] * to), high = rounded_pair<T>(y[1] * to, y[5] * to);
            store_pair(s_panel + r * ROW_BYTES + ((part * 2 + t / 2) ^ r % 8) * 16 + t % 2 * 8, low | high << 32);
        }
    }
}

/* Stages O in panels of 128-byte rows at s_o, with a stride of `panel_bytes`, and stores them by TMA. */
DEVICE void store_tile(const arguments &a, const tile &t, const results &o, const row_pair &rows, i32 row, u32 s_o,
                       u32 panel_bytes, largest &amax) {
    constexpr int PANEL = ROW_BYTES / sizeof(out_t), PART = PANEL / 4;
    const u32 lane = lane_index();
    const i32 first = t.row + row;
    float by[2]; /* factor of O per row */
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const i32 query = first + (i32)lane / 4 + 8 * h;
        const bool is_there = query < (i32)a.queries;
        float maximum = rows.maximum[h], sum = sum_of_quad(rows.sum[h]);
        const float shrink = find_largest_score(rows, h, maximum, sum);
        const float weight = end_row(a, t, query, maximum, sum, lane % 4 == 0 && is_there);
        by[h] = weight * shrink * growth_of<float>(a) * value_scale_of(a, t.batch, t.head);
        amax.note_row(is_there ? weight : 0.0f);
        float most = 0;
#pragma unroll
        for (int i = 2 * h; HAS_AMAX_O && i < HEAD_V / 2; i += 4)
            most = fmaxf(most, fmaxf(fabsf(o[i]), fabsf(o[i + 1])));
        amax.note(is_there ? most * by[h] : 0.0f);
        by[h] *= result_scale_of(a);
    }
    if (!O_LEAVES_THROUGH_Q) {
        wait_stores_read<0>();
        __syncwarp();
    }
#pragma unroll
    for (int panel = 0; panel < O_PANELS; ++panel) {
        const u32 s_panel = s_o + (O_LEAVES_THROUGH_Q ? panel : panel % O_STAGES) * panel_bytes;
        if (!O_LEAVES_THROUGH_Q && panel >= O_STAGES) {
            wait_stores_read<O_LEAVES_THROUGH_Q ? 0 : O_STAGES - 1>();
            __syncwarp();
        }
#pragma unroll
        for (int part = 0; part < 4 && panel * PANEL + part * PART < HEAD_V; ++part)
            put_columns<out_t>(s_panel, part, o + (panel * PANEL + part * PART) / 2, by);
        publish_to_async_proxy();
        __syncwarp();
        if (lane == 0) {
            if constexpr (!O_IS_RAGGED)
                store_box(a.o_map, s_panel, panel * PANEL, first, t.head, t.batch);
            else if (first < t.queries)
                store_box(a.o_map, s_panel, panel * PANEL, (i32)a.queries - t.queries + first, t.head, t.o_place);
            commit_stores();
        }
    }
}
