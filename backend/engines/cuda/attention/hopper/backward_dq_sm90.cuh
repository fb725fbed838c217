/* backward_dq: warpgroup 0 of backward_sm90 with reduces_dq: computes the dQ of each step and issues the loads */

/* 64 queries x 64 columns of dS K. */
DEVICE void issue_dq(float (&dq)[32], u32 base, u32 slot, int part) {
    const u32 ds = k_major(base + MEMORY.ds + slot * MEMORY.ds_bytes + part / PANELS * MEMORY.resident_panel) +
                   mn_major(MEMORY.resident_panel);
    const u32 keys =
        k_major(base + MEMORY.resident_qk + part % PANELS * MEMORY.resident_panel) + mn_major(MEMORY.resident_panel);
    mma_dq_first(dq, ds, keys);
#pragma unroll
    for (int k = 1; k < BLOCK_RESIDENT / 16; ++k)
        mma_dq(dq, ds + k * 128, keys + k * 128);
}

/* stores_dq: stores 64 columns from `column` on of rows of the gradient's type. */
DEVICE void store_dq_part(const float (&dq)[32], float scale, u32 s_part, const tensor_map &map, i32 column, i32 row,
                          i32 head, i32 batch) {
    const u32 lane = lane_index(), to = s_part + (16 * warp_index() + lane % 16) * 128;
#pragma unroll
    for (int c = 0; c < 8; c += 2) {
        const float *const x = dq + 4 * c;
        const u32 four[4] = {
            rounded_pair<in_t>(x[0] * scale, x[1] * scale), rounded_pair<in_t>(x[2] * scale, x[3] * scale),
            rounded_pair<in_t>(x[4] * scale, x[5] * scale), rounded_pair<in_t>(x[6] * scale, x[7] * scale)};
        store_matrices(to + ((c + lane / 16) ^ (lane & 7)) * 16, four);
    }
    publish_to_async_proxy();
    sync_threads(PART_STAGED, 128);
    if (threadIdx.x != 0)
        return;
    store_box(map, s_part, column, row, head, batch);
    commit_stores();
}

/* Stages a part in accumulator order. */
DEVICE void stage_part(const float (&dq)[32], u32 s_part, u32 warp) {
#pragma unroll
    for (int c = 0; c < 8; ++c)
        store_quad(s_part + sums_offset(c, warp) * 4, dq[4 * c], dq[4 * c + 1], dq[4 * c + 2], dq[4 * c + 3]);
    publish_to_async_proxy();
}
DEVICE void reduce_part(const float (&dq)[32], u32 s_part, float *sum) {
    stage_part(dq, s_part, 0);
    sync_threads(PART_STAGED, 128);
    if (threadIdx.x != 0)
        return;
    add_bytes(sum, s_part, PART_BYTES);
    commit_stores();
}
/* has_fp8_mma: each warp adds its own rows. This is slower with 16-bit operands. */
DEVICE void reduce_warp_part(const float (&dq)[32], u32 s_part, float *sum) {
    constexpr u32 WARP_BYTES = PART_BYTES / 4;
    const u32 warp = warp_index();
    stage_part(dq, s_part, warp);
    __syncwarp();
    if (lane_index() == 0) {
        add_bytes(sum + warp * (WARP_BYTES / 4), s_part + warp * WARP_BYTES, WARP_BYTES);
        commit_stores();
    }
    __syncwarp();
}
/* Waits until TMA has read the previous contents of the staging buffer. */
DEVICE void await_staging(int staged) {
    if constexpr (CONFIG.has_fp8_mma) {
        if (lane_index() == 0)
            wait_stores_read<0>();
        __syncwarp();
    } else if (staged == 0) {
        if (threadIdx.x == 0)
            wait_stores_read<0>();
        __syncwarp();
        sync_threads(PART_STAGED, 128);
    }
}

template <class P> DEVICE void compute_dq(const P &p, u32 base) {
    const work w = find_work(p);
    const barriers b(base);
    cursor at(p, w);
    float dq[32];
    [[maybe_unused]] const float scale = CONFIG.stores_dq ? scale_of(p) * derivative_factor_of(p) : 1.0f;
    if (threadIdx.x == 0 && w.steps > 0)
        load_first_steps(p, w, base, b);
    __syncwarp();
    if (CONFIG.has_fp8_mma && w.steps > 0)
        transpose_k(w, base, b);
    i32 stage = 0; /* of step i */
    for (i32 i = 0; i < w.steps; ++i) {
        const u32 slot = i % DS_STAGES;
        if constexpr (CONFIG.has_tma_bias) {
            if (threadIdx.x == 0)
                load_next_bias(p, w, base, b, at, i);
            __syncwarp();
        }
        wait(b.ds_full + 8 * slot, i / DS_STAGES & 1);
        if (!CONFIG.has_fp8_mma && i == 0)
            wait(b.resident_qk, 0);
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            const int staged = part % MEMORY.parts_staged;
            mma_fence();
            if constexpr (CONFIG.has_fp8_mma)
                issue_dq_fp8(dq, base, slot, part);
            else
                issue_dq(dq, base, slot, part);
            mma_commit();
            if (part == 0 && threadIdx.x == 0)
                load_next_step(p, w, base, b, at, i, stage);
            await_staging(staged);
            mma_wait<0>();
            fence_registers(dq);
            if (part == PARTS - 1 && lane_index() == 0)
                arrive(b.ds_empty + 8 * slot);
            if constexpr (CONFIG.stores_dq)
                store_dq_part(dq, scale, base + MEMORY.dq + staged * PART_BYTES, p.dq_map, part % PANELS * 64,
                              at.block * CONFIG.block_streamed + part / PANELS * 64, at.head, w.batch);
            else {
                float *const sum = p.dq_sum + (q_tile(p, w.batch, at.head, at.block) * PARTS + part) * (PART_BYTES / 4);
                if constexpr (CONFIG.has_fp8_mma)
                    reduce_warp_part(dq, base + MEMORY.dq + staged * PART_BYTES, sum);
                else
                    reduce_part(dq, base + MEMORY.dq + staged * PART_BYTES, sum);
            }
        }
        at.advance(p, w, i + 1 == w.steps);
        if (++stage == CONFIG.stages)
            stage = 0;
    }
    if (CONFIG.has_fp8_mma ? lane_index() == 0 : threadIdx.x == 0)
        wait_stores_read<0>();
}
