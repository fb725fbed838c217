/* forward_epilogue: epilogue of 16 queries of a warp for forward_sm90: computes the statistics, divides O by the row
   sums, and stores O through shared memory. */

/* Adds the sink to the row sum, stores the statistics, and returns the factor of O. */
template <class P> DEVICE float end_row(const P &a, const tile &t, i32 query, float row_max, float sum, bool stores) {
    float rescale = 1.0f;
    if constexpr (HAS_SINK) {
        const float sink = query < t.queries ? to_float(a.sink[t.head * a.sink_step]) * 1.44269504f : -infinity();
        const float now = fmaxf(row_max, sink), reference = now == -infinity() ? 0.0f : now;
        rescale = exp2_approx(row_max - reference);
        sum = sum * rescale + exp2_approx(sink - reference);
        row_max = now;
    }
    if (stores) {
        constexpr float LN_2 = 0.693147181f;
        const float lse = sum == 0 ? -infinity() : (row_max + __log2f(sum)) * LN_2;
        [[maybe_unused]] const bool is_used = query < t.queries; /* ragged rows past the end belong to other entries */
        if constexpr (HAS_STATS)
            if (is_used || !is_ragged(a.stats_batch))
                a.stats[t.batch * a.stats_batch + t.head * a.stats_head + query * a.stats_row] =
                    from<stats_t>::number(lse);
        if constexpr (HAS_MAX)
            if (is_used || !is_ragged(a.max_batch))
                a.max[t.batch * a.max_batch + t.head * a.max_head + query * a.max_row] =
                    from<max_t>::number(row_max * LN_2);
        if constexpr (HAS_SUM_EXP)
            if (is_used || !is_ragged(a.sum_exp_batch))
                a.sum_exp[t.batch * a.sum_exp_batch + t.head * a.sum_exp_head + query * a.sum_exp_row] =
                    from<sum_exp_t>::number(sum);
    }
    return sum == 0 ? 0.0f : rescale / sum;
}

/* TRACKS_LARGEST_P: moves row_max from the exponents' reference to the true maximum of the scores, which follows from
   the largest P. Returns the factor by which O has to be multiplied. */
DEVICE float find_true_row_max(const row_pair &rows, int h, float &row_max, float &sum) {
    const float top = TRACKS_LARGEST_P ? quad_max(rows.top[h]) : 0.0f;
    if (top == 0)
        return 1;
    const float shrink = reciprocal_approx(top); /* a true division would be a call */
    row_max += __log2f(top);
    sum *= shrink;
    return shrink;
}

/* Returns the row in the tile of the warp's first query. */
DEVICE i32 first_row_of(u32 group) { return (i32)group * GROUP_Q + (i32)(warp_index() % 4) * 16; }

/* Stores 32 bytes of each row of a panel (part 0 .. 3) of O x rescale. FP8: a lane holds columns 4t .. 4t + 3 of each
   16, t = lane % 4 (see forward_values). */
template <class T> DEVICE void stage_columns(u32 s_panel, int part, const float *x, const float (&rescale)[2]) {
    const u32 lane = lane_index(), panel_row = lane % 16;
    const u32 s_sixteen_bytes = s_panel + panel_row * PANEL_ROW + ((part * 2 + lane / 16) ^ panel_row % 8) * 16;
    if constexpr (!IS_FP8 && sizeof(T) == 1) {
        u32 four[4]; /* after an exchange within a quad: columns 4t .. 4t + 3 of 16 */
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float *y = x + i / 2 * 8 + i % 2 * 2, to = rescale[i % 2];
            const u32 word = rounded_four<T>(y[0] * to, y[1] * to, y[4] * to, y[5] * to), from = lane % 2 * 2;
            const u32 low = __shfl_sync(~0u, word, from, 4), high = __shfl_sync(~0u, word, from + 1, 4);
            four[i] = __byte_perm(low, high, lane % 4 < 2 ? 0x5410 : 0x7632);
        }
        store_matrices(s_sixteen_bytes, four);
    } else if constexpr (!IS_FP8) {
        const u32 four[4] = {rounded_pair<T>(x[0] * rescale[0], x[1] * rescale[0]),
                             rounded_pair<T>(x[2] * rescale[1], x[3] * rescale[1]),
                             rounded_pair<T>(x[4] * rescale[0], x[5] * rescale[0]),
                             rounded_pair<T>(x[6] * rescale[1], x[7] * rescale[1])};
        store_matrices(s_sixteen_bytes, four);
    } else if constexpr (sizeof(T) == 1) {
        u32 four[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float *y = x + i / 2 * 8 + i % 2 * 2, to = rescale[i % 2];
            four[i] = rounded_four<T>(y[0] * to, y[4] * to, y[1] * to, y[5] * to);
        }
        store_matrices(s_sixteen_bytes, four);
    } else {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const u32 r = lane / 4 + 8 * h, t = lane % 4;
            const float *y = x + 2 * h, to = rescale[h];
            const u64 low = rounded_pair<T>(y[0] * to, y[4] * to), high = rounded_pair<T>(y[1] * to, y[5] * to);
            store_pair(s_panel + r * PANEL_ROW + ((part * 2 + t / 2) ^ r % 8) * 16 + t % 2 * 8, low | high << 32);
        }
    }
}

/* Stages O in panels of 128-byte rows at s_o, with a stride of `panel_bytes`, and stores them by TMA. */
DEVICE void store_tile(const arguments &a, const tile &t, const o_tile &o, const row_pair &rows, i32 row, u32 s_o,
                       u32 panel_bytes, largest &amax) {
    constexpr int PANEL = PANEL_ROW / sizeof(out_t), PART = PANEL / 4;
    const u32 lane = lane_index();
    const i32 first = t.row + row;
    float rescale[2]; /* factor of O per row */
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const i32 query = first + (i32)lane / 4 + 8 * h;
        const bool is_there = query < (i32)a.queries;
        float row_max = rows.row_max[h], sum = quad_sum(rows.row_sum[h]);
        const float shrink = find_true_row_max(rows, h, row_max, sum);
        const float inverse_sum = end_row(a, t, query, row_max, sum, lane % 4 == 0 && is_there);
        rescale[h] = inverse_sum * shrink * dropout_scale_of<float>(a) * value_scale_of(a, t.batch, t.head);
        amax.note_row(is_there ? inverse_sum : 0.0f);
        float largest_o = 0;
#pragma unroll
        for (int i = 2 * h; HAS_AMAX_O && i < HEAD_V / 2; i += 4)
            largest_o = fmaxf(largest_o, fmaxf(fabsf(o[i]), fabsf(o[i + 1])));
        amax.note(is_there ? largest_o * rescale[h] : 0.0f);
        rescale[h] *= result_scale_of(a);
    }
    if (!STAGES_O_IN_Q) {
        wait_stores_read<0>();
        __syncwarp();
    }
#pragma unroll
    for (int panel = 0; panel < O_PANELS; ++panel) {
        const u32 s_panel = s_o + (STAGES_O_IN_Q ? panel : panel % O_STAGES) * panel_bytes;
        if (!STAGES_O_IN_Q && panel >= O_STAGES) {
            wait_stores_read<STAGES_O_IN_Q ? 0 : O_STAGES - 1>();
            __syncwarp();
        }
#pragma unroll
        for (int part = 0; part < 4 && panel * PANEL + part * PART < HEAD_V; ++part)
            stage_columns<out_t>(s_panel, part, o + (panel * PANEL + part * PART) / 2, rescale);
        publish_to_async_proxy();
        __syncwarp();
        if (lane == 0) {
            if constexpr (!O_IS_RAGGED)
                store_box(a.o_map, s_panel, panel * PANEL, first, t.head, t.batch);
            else if (first < t.queries)
                store_box(a.o_map, s_panel, panel * PANEL, (i32)a.queries - t.queries + first, t.head, t.o_outer);
            commit_stores();
        }
    }
}
