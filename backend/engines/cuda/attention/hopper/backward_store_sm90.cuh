/* backward_store: stores the gradients of resident rows for backward_sm90: as rows, through shared memory (16 bits) or
   from registers (FP8), or as partial sums */

struct gradients {
    float dqk[CONFIG.head / 2], dv[CONFIG.value_head / 2]; /* has_dqk, has_dv */
};

/* Stores a gradient through this consumer's resident rows. */
template <bool IS_RAGGED, int N>
DEVICE void store_gradient(const float (&sum)[N], float scale, u32 s_rows, const tensor_map &map, const work &w,
                           const box_origin &entry, int half) {
    const u32 lane = lane_index(), to = s_rows + (16 * (warp_index() & 3) + lane % 16) * 128;
#pragma unroll
    for (int c = 0; c < N / 4; c += 2) {
        const float *const x = sum + 4 * c;
        const u32 four[4] = {
            rounded_pair<in_t>(x[0] * scale, x[1] * scale), rounded_pair<in_t>(x[2] * scale, x[3] * scale),
            rounded_pair<in_t>(x[4] * scale, x[5] * scale), rounded_pair<in_t>(x[6] * scale, x[7] * scale)};
        store_matrices(to + c / 8 * MEMORY.resident_panel + ((c % 8 + lane / 16) ^ (lane & 7)) * 16, four);
    }
    publish_to_async_proxy();
    if (half == 0)
        sync_threads(GRADIENT_STAGED, 128);
    else
        sync_threads(GRADIENT_STAGED + 1, 128);
    if ((threadIdx.x & 127) != 0 || (IS_RAGGED && w.resident + half * HALF >= w.resident_used()))
        return;
#pragma unroll
    for (int s = 0; s < N / 32; ++s)
        store_box(map, s_rows + s * MEMORY.resident_panel, s * 64, entry.row + w.resident + half * HALF, w.head,
                  entry.outer);
    commit_stores();
}

/* HALF resident rows. */
template <int N> DEVICE void store_accumulators(float *to, const float (&sum)[N], float scale) {
#pragma unroll
    for (int c = 0; c < N / 4; ++c) {
        const float *const x = sum + 4 * c;
        const run<float, 4> four = {{x[0] * scale, x[1] * scale, x[2] * scale, x[3] * scale}};
        store_run(to + sums_offset(c, warp_index() % 4), four);
    }
}
template <class P> DEVICE void store_part(const P &p, const work &w, int half, const gradients &sum) {
    const i64 tile =
        ((i64)(w.batch * (i32)p.resident_heads + w.part) * (i32)p.resident_blocks * 2) + w.resident / HALF + half;
    if constexpr (CONFIG.has_dqk)
        store_accumulators(p.dqk_parts + tile * HALF * CONFIG.head, sum.dqk,
                           IS_FP8 ? 1.0f : scale_of(p) * derivative_factor_of(p));
    if constexpr (CONFIG.has_dv)
        store_accumulators(p.dv_parts + tile * HALF * CONFIG.value_head, sum.dv, 1.0f);
}

/* Stores rows of the gradients' type, staged in the buffers of the resident rows. */
template <class P>
DEVICE void store_gradients(const P &p, const work &w, u32 base, const barriers &b, int half, const gradients &sum) {
    constexpr u32 DV_STAGING = CONFIG.has_dqk ? MEMORY.resident_vdo : MEMORY.resident_qk;
    if constexpr (CONFIG.has_dv)
        store_gradient<DV_IS_RAGGED>(sum.dv, 1.0f, base + DV_STAGING + half * HALF * 128, p.dv_map, w,
                                     dv_entry(p, w.batch, w.resident_used()), half);
    const i32 last = w.steps - 1;
    if (CONFIG.reduces_dq && w.steps > 0)
        wait(b.ds_empty + 8 * (last % DS_STAGES), last / DS_STAGES & 1); /* K has been read */
    if constexpr (CONFIG.has_dqk)
        store_gradient<DQK_IS_RAGGED>(sum.dqk, scale_of(p) * derivative_factor_of(p),
                                      base + MEMORY.resident_qk + half * HALF * 128, p.dqk_map, w,
                                      dqk_entry(p, w.batch, w.resident_used()), half);
    if ((threadIdx.x & 127) == 0)
        wait_stores_read<0>();
}

/* IS_FP8: stores this consumer's resident rows from registers; at: the tensor's head. */
template <bool HAS_AMAX, class T, int N>
DEVICE float store_scaled(const float (&sum)[N], float scale, float to_memory, T *at, i64 row_step, i32 first, i32 rows,
                          i32 columns) {
    const fragment_position position;
    float largest = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const i32 row = first + position.row + 8 * h;
        if (row >= rows)
            continue;
#pragma unroll
        for (int c = 0; c < N / 4; ++c)
            if (8 * c + position.column < columns)
                store_scaled_pair<HAS_AMAX>(at + row * row_step + 8 * c + position.column, sum[4 * c + 2 * h] * scale,
                                            sum[4 * c + 2 * h + 1] * scale, to_memory, largest);
    }
    return largest;
}
template <class P> DEVICE void store_scaled_gradients(const P &p, const work &w, const gradients &sum, int half) {
    const i32 rows = (i32)(CONFIG.kv_resident ? p.keys : p.queries), resident = w.resident + half * HALF;
    if constexpr (CONFIG.has_dv) {
        const float largest = store_scaled<HAS_AMAX_DV>(sum.dv, descale_s_of(p) * descale_d_o_of(p), scale_dv_of(p),
                                                        p.dv + w.batch * p.dv_batch + w.head * p.dv_head, p.dv_row,
                                                        resident, rows, (i32)p.value_depth);
        if constexpr (HAS_AMAX_DV)
            raise_amax(p.amax_dv, largest);
    }
    if constexpr (CONFIG.has_dqk) {
        const float largest = store_scaled<HAS_AMAX_DQK>(
            sum.dqk, descale_dp_of(p) * (CONFIG.kv_resident ? descale_q_of(p) : descale_k_of(p)),
            CONFIG.kv_resident ? scale_dk_of(p) : scale_dq_of(p), p.dqk + w.batch * p.dqk_batch + w.head * p.dqk_head,
            p.dqk_row, resident, rows, (i32)p.depth);
        if constexpr (HAS_AMAX_DQK)
            raise_amax(p.amax_dqk, largest);
    }
}
