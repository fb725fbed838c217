/* forward_epilogue: how a warp's 16 queries of a tile end, for the forward kernel of sm_90: their statistics, and
   results divided by their sums, which leave through shared memory. */

/* Takes the sink in; returns what results are multiplied by. */
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
        [[maybe_unused]] const bool is_used = query < t.queries; /* ragged rows beyond belong to others */
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

/* The tile's row of the warp's first query. */
DEVICE i32 first_row_of(u32 group) { return (i32)group * GROUP_Q + (i32)(warp_index() % 4) * 16; }

/* Through slabs of 64 columns at s_o, `slab_bytes` apart. */
DEVICE void store_tile(const arguments &a, const tile &t, const results &o, const row_pair &rows, i32 row, u32 s_o,
                       u32 slab_bytes) {
    const u32 lane = lane_index(), slab_row = lane % 16;
    const i32 first = t.row + row;
    float by[2]; /* what results are multiplied by */
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const i32 query = first + (i32)lane / 4 + 8 * h;
        by[h] =
            end_row(a, t, query, rows.maximum[h], sum_of_quad(rows.sum[h]), lane % 4 == 0 && query < (i32)a.queries) *
            growth_of(a);
    }
    if (!O_LEAVES_THROUGH_Q) {
        wait_stores_read<0>();
        __syncwarp();
    }
#pragma unroll
    for (int slab = 0; slab < V_SLABS; ++slab) {
        const u32 s_slab = s_o + (O_LEAVES_THROUGH_Q ? slab : slab % O_STAGES) * slab_bytes;
        if (!O_LEAVES_THROUGH_Q && slab >= O_STAGES) {
            wait_stores_read<O_LEAVES_THROUGH_Q ? 0 : O_STAGES - 1>();
            __syncwarp();
        }
#pragma unroll
        for (int pair = 0; pair < 4 && slab * 4 + pair < HEAD_V / 16; ++pair) {
            const float *x = o + slab * 32 + pair * 8;
            const u32 four[4] = {
                rounded_pair<in_t>(x[0] * by[0], x[1] * by[0]), rounded_pair<in_t>(x[2] * by[1], x[3] * by[1]),
                rounded_pair<in_t>(x[4] * by[0], x[5] * by[0]), rounded_pair<in_t>(x[6] * by[1], x[7] * by[1])};
            store_matrices(s_slab + slab_row * ROW_BYTES + ((pair * 2 + lane / 16) ^ slab_row % 8) * 16, four);
        }
        publish_to_async_proxy();
        __syncwarp();
        if (lane == 0) {
            if constexpr (!O_IS_RAGGED)
                store_box(a.o_map, s_slab, slab * 64, first, t.head, t.batch);
            else if (first < t.queries)
                store_box(a.o_map, s_slab, slab * 64, (i32)a.queries - t.queries + first, t.head, t.o_place);
            commit_stores();
        }
    }
}
