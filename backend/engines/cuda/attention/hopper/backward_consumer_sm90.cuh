/* backward_consumer: warpgroups 1 and 2 of backward_sm90: P, dS, and the gradients of resident rows */

/* S and dP: resident rows x streamed rows. */
DEVICE void issue_s_tile(s_tile &s, u32 resident, u32 streamed) {
    mma_s_first(s, resident, streamed);
#pragma unroll
    for (int k = 1; k < CONFIG.head / STEP; ++k)
        mma_s(s, resident + k / 4 * (MEMORY.resident_panel >> 4) + k % 4 * 2,
              streamed + k / 4 * (MEMORY.streamed_panel >> 4) + k % 4 * 2);
}
DEVICE void issue_dp_tile(s_tile &dp, u32 resident, u32 streamed) {
    mma_dp_first(dp, resident, streamed);
#pragma unroll
    for (int k = 1; k < CONFIG.value_head / STEP; ++k)
        mma_dp(dp, resident + k / 4 * (MEMORY.resident_panel >> 4) + k % 4 * 2,
               streamed + k / 4 * (MEMORY.streamed_panel >> 4) + k % 4 * 2);
}
DEVICE void issue_dqk(float (&sum)[CONFIG.head / 2], const p_tile &operand, u32 streamed) {
#pragma unroll
    for (int k = 0; k < CONFIG.block_streamed / 16; ++k)
        mma_dqk(sum, operand + 4 * k, streamed + mn_major(MEMORY.streamed_panel) + k * 128);
}
DEVICE void issue_dv(float (&sum)[CONFIG.value_head / 2], const p_tile &operand, u32 streamed) {
#pragma unroll
    for (int k = 0; k < CONFIG.block_streamed / 16; ++k)
        mma_dv(sum, operand + 4 * k, streamed + mn_major(MEMORY.streamed_panel) + k * 128);
}

/* Products of pairs, rounded to the operand type. */
DEVICE u32 multiply_pairs(u32 a, u32 b) {
    constexpr u32 NEGATIVE_ZERO = 0x80008000; /* -0, the neutral addend */
    return IS_BF16 ? ptx::fma_bf16x2(a, b, NEGATIVE_ZERO) : ptx::fma_f16x2(a, b, NEGATIVE_ZERO);
}

constexpr int KEEP_WORDS = CONFIG.block_streamed / 64;

/* P is rounded after dS has been computed from it. Otherwise it is unpacked for dS, which costs an instruction per
   element but needs fewer registers. */
constexpr bool ROUNDS_P_LAST =
    CONFIG.has_dqk && !CONFIG.has_derivatives && !HAS_DROPOUT && (!CONFIG.reduces_dq || CONFIG.has_fp8_mma);

/* dS = P (dP - delta), from rounded P, or from exact P with ROUNDS_P_LAST. HAS_DROPOUT: computes P' dP - P delta, where
   P' is P with dropped elements zeroed, and replaces P by P'; the statistics include the keep probability, see
   backward_rows. */
DEVICE void compute_ds(p_tile &ds, fp8_words &ds_fp8, p_tile &p_pairs, const s_tile &p_exact,
                       const derivative_pairs &derivatives, const s_tile &dp, const row_statistics &resident,
                       u32 s_delta, const u32 (&keep_mask)[KEEP_WORDS], score_factors &factors) {
#pragma unroll
    for (int c = 0; c < CONFIG.block_streamed / 8; ++c) {
        float delta[4];
        row_statistics::load(delta, s_delta + c * 32, resident.delta);
        const auto scaled_dp = [&](int i) { return IS_FP8 ? dp[i] * factors.dp_factor : dp[i]; };
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const u32 pair = p_pairs[2 * c + h];
            const int i = 4 * c + 2 * h;
            float low, high;
            if constexpr (HAS_DROPOUT) {
                drop_pair(p_pairs[2 * c + h], keep_mask, i);
                const u32 p_pair = p_pairs[2 * c + h];
                low = low_half(p_pair) * dp[i] - low_half(pair) * delta[2 * h];
                high = high_half(p_pair) * dp[i + 1] - high_half(pair) * delta[2 * h + 1];
            } else if constexpr (ROUNDS_P_LAST) {
                low = p_exact[i] * (scaled_dp(i) - delta[2 * h]);
                high = p_exact[i + 1] * (scaled_dp(i + 1) - delta[2 * h + 1]);
            } else {
                const u32 p_pair = FUSES_DERIVATIVES ? derivatives[2 * c + h] : pair;
                low = low_half(p_pair) * (scaled_dp(i) - delta[2 * h]);
                high = high_half(p_pair) * (scaled_dp(i + 1) - delta[2 * h + 1]);
            }
            if constexpr (CONFIG.has_derivatives &&
                          !FUSES_DERIVATIVES) { /* derivatives may be infinite or NaN if P is 0 */
                low = low == 0 ? 0.0f : low * low_half(derivatives[2 * c + h]);
                high = high == 0 ? 0.0f : high * high_half(derivatives[2 * c + h]);
            }
            factors.note(low, high);
            if constexpr (CONFIG.has_fp8_mma)
                ds_fp8[c] = (h == 0 ? 0 : ds_fp8[c]) | (u32)byte_pair<ds_operand_t>(low, high) << 16 * h;
            else
                ds[2 * c + h] = IS_FP8 ? factor_pair<ds_operand_t>(low, high) : rounded_pair<in_t>(low, high);
        }
    }
}

/* Stores the dS of this warp's 16 keys, transposed for dQ. */
DEVICE void store_ds(const p_tile &ds, u32 s_row) {
#pragma unroll
    for (int c = 0; c < CONFIG.block_streamed / 16; ++c) {
        const u32 four[4] = {ds[4 * c], ds[4 * c + 1], ds[4 * c + 2], ds[4 * c + 3]};
        store_matrices(s_row + c / 4 * MEMORY.resident_panel +
                           ((2 * (c & 3) + lane_index() / 16) ^ (lane_index() & 7)) * 16,
                       four);
    }
}

/* Clears rows `from` .. `last` - 1 of COUNT panels, 16 bytes at a time. */
template <int COUNT> DEVICE void clear_rows(u32 s_tile, i32 from, i32 last, u32 panel, u32 thread, u32 threads) {
    for (i32 i = from * 8 + (i32)thread; i < last * 8; i += (i32)threads)
#pragma unroll
        for (int s = 0; s < COUNT; ++s)
            store_words(s_tile + s * panel + i * 16, words{});
}
/* Clears resident rows past the length in use. */
DEVICE void clear_resident(const work &w, u32 base, int half) {
    const i32 used = w.resident_used() - w.resident - half * HALF;
    if (used >= HALF)
        return;
    clear_rows<S_PANELS>(base + MEMORY.resident_qk + half * HALF * 128, max(used, 0), HALF, MEMORY.resident_panel,
                         threadIdx.x & 127, 128);
    if constexpr (CONFIG.has_dqk)
        clear_rows<DP_PANELS>(base + MEMORY.resident_vdo + half * HALF * 128, max(used, 0), HALF, MEMORY.resident_panel,
                              threadIdx.x & 127, 128);
    publish_to_async_proxy();
    sync_threads(RESIDENT_CLEARED + half, 128);
}
/* Clears streamed rows past the length in use. Both consumers execute this for such a step. */
DEVICE void clear_streamed(const work &w, u32 base, const barriers &b, i32 streamed, i32 stage, i32 vdo_stage,
                           i32 vdo_phase) {
    const i32 used = w.streamed_used() - streamed;
    if (used >= CONFIG.block_streamed)
        return;
    wait(b.vdo_full + 8 * vdo_stage, vdo_phase);
    clear_rows<MEMORY.qk_bytes / MEMORY.streamed_panel>(base + MEMORY.streamed_qk + stage * MEMORY.qk_bytes, used,
                                                        CONFIG.block_streamed, MEMORY.streamed_panel, threadIdx.x - 128,
                                                        256);
    clear_rows<MEMORY.vdo_bytes / MEMORY.streamed_panel>(base + MEMORY.streamed_vdo + vdo_stage * MEMORY.vdo_bytes,
                                                         used, CONFIG.block_streamed, MEMORY.streamed_panel,
                                                         threadIdx.x - 128, 256);
    publish_to_async_proxy();
    sync_threads(STREAMED_CLEARED, 256);
}
constexpr bool CLEARS_RESIDENT =
    (CONFIG.kv_resident ? HAS_SEQ_LEN_KV : HAS_SEQ_LEN_Q) && !(RESIDENT_QK_IS_RAGGED && RESIDENT_VDO_IS_RAGGED);
constexpr bool CLEARS_STREAMED =
    (CONFIG.kv_resident ? HAS_SEQ_LEN_Q : HAS_SEQ_LEN_KV) && !(STREAMED_QK_IS_RAGGED && STREAMED_VDO_IS_RAGGED);

/* True if nothing in this step is visible to the second consumer. The first step can be such a step if streamed blocks
   are half as long as resident ones. A step whose rows must be cleared needs both consumers. */
DEVICE bool is_step_hidden(const work &w, i32 resident, i32 streamed) {
    const bool is_whole = !CLEARS_STREAMED || streamed + CONFIG.block_streamed <= w.streamed_used();
    return CONFIG.kv_resident && HAS_LOW && CONFIG.block_streamed <= HALF && is_whole &&
           w.low(resident) >= streamed + CONFIG.block_streamed;
}

/* Releases a stage of streamed qk and its statistics. Every lane has read statistics, so every lane arrives unless
   another barrier follows: an arrival orders only the reads of its own thread. */
constexpr bool LANES_ARRIVE = CONFIG.kv_resident && !CONFIG.reduces_dq;
DEVICE void release_qk(u32 qk_empty) {
    if (LANES_ARRIVE || lane_index() == 0)
        arrive(qk_empty);
}

/* A consumer's step: its number, first streamed row, query head, and stage. */
struct consumer_step {
    i32 streamed, stage = 0, phase = 0, number = 0, head;

    template <class P>
    DEVICE consumer_step(const P &p, const work &w)
        : streamed(w.first * CONFIG.block_streamed), head(first_head(p, w)) {
        if constexpr (HAS_BLOCK_MASK)
            if (!is_active_for_warp(p, w, head, w.first)) {
                advance(p, w);
                stage = phase = number = 0;
            }
    }
    template <class P> DEVICE void advance(const P &p, const work &w) {
        do {
            streamed += CONFIG.block_streamed;
            if (streamed == w.last * CONFIG.block_streamed) {
                streamed = w.first * CONFIG.block_streamed;
                ++head;
            }
        } while (HAS_BLOCK_MASK && !is_active_for_warp(p, w, head, streamed / CONFIG.block_streamed));
        if (++stage == CONFIG.stages)
            stage = 0, phase ^= 1;
        ++number;
    }
    DEVICE i32 vdo_stage() const { return CONFIG.vdo_stages == CONFIG.stages ? stage : number % CONFIG.vdo_stages; }
    DEVICE i32 vdo_phase() const { return CONFIG.vdo_stages == CONFIG.stages ? phase : number / CONFIG.vdo_stages & 1; }
};

/* RELOADS: the current head of the resident tensor whose gradient this CTA does not compute. */
struct resident_head {
    i32 head, phase = 0;

    DEVICE explicit resident_head(i32 first) : head(first) {}
    /* Releases the current head and waits for the next one. */
    DEVICE void follow(i32 now, const work &w, u32 base, const barriers &b, int half) {
        if (!RELOADS || now == head)
            return;
        head = now, phase ^= 1;
        if (lane_index() == 0)
            arrive(b.resident_empty);
        wait(CONFIG.has_dqk ? b.resident_vdo : b.resident_qk, phase);
        if (CLEARS_RESIDENT)
            clear_resident(w, base, half);
    }
};

DEVICE void await_resident(const work &w, u32 base, const barriers &b, int half) {
    wait(b.resident_qk, 0);
    if constexpr (CONFIG.has_dqk)
        wait(b.resident_vdo, 0);
    if (CLEARS_RESIDENT)
        clear_resident(w, base, half);
}

/* Publishes dS of a step for dQ; s_ds: this warp's address. */
DEVICE void publish_ds(const p_tile &ds, const fp8_words &ds_fp8, u32 s_ds, int half, u32 full) {
    if constexpr (CONFIG.has_fp8_mma)
        store_ds_fp8(ds_fp8, s_ds, half);
    else
        store_ds(ds, s_ds);
    publish_to_async_proxy();
    __syncwarp();
    if (lane_index() == 0)
        arrive(full);
}

/* Skips the first step, which is hidden from this consumer. */
DEVICE void skip_first_step(u32 s_ds, int half, const barriers &b) {
    wait(b.vdo_full, 0);
    if constexpr (CONFIG.has_tma_bias)
        wait(b.bias_full, 0);
    if (lane_index() == 0) {
        if constexpr (CONFIG.has_tma_bias)
            arrive(b.bias_empty);
        arrive(b.vdo_empty);
    }
    if constexpr (CONFIG.reduces_dq)
        publish_ds({}, {}, s_ds, half, b.ds_full);
    release_qk(b.qk_empty);
}

/* Issues S of a step whose qk operands have arrived. */
DEVICE void start_s(s_tile &s, const work &w, u32 base, const barriers &b, u32 resident_rows, const consumer_step &at) {
    if (CLEARS_STREAMED)
        clear_streamed(w, base, b, at.streamed, at.stage, at.vdo_stage(), at.vdo_phase());
    mma_fence();
    issue_s_tile(s, resident_rows + (MEMORY.resident_qk >> 4),
                 k_major(base + MEMORY.streamed_qk + at.stage * MEMORY.qk_bytes));
    mma_commit();
}

DEVICE void round_p(p_tile &p_pairs, const s_tile &s) {
#pragma unroll
    for (int c = 0; c < CONFIG.block_streamed / 4; ++c)
        p_pairs[c] = rounded_pair<in_t>(s[2 * c], s[2 * c + 1]);
}

/* Computes rounded P of a step from S. FUSES_DERIVATIVES: multiplies `derivatives` by P. */
template <class P>
DEVICE void finish_p(p_tile &p_pairs, s_tile &s, derivative_pairs &derivatives, const P &p, const work &w,
                     const consumer_step &at, const row_statistics &statistics, u32 s_statistics, u32 s_bias,
                     const barriers &b, float scale2, i32 resident) {
    if constexpr (CONFIG.has_tma_bias)
        wait(b.bias_full, at.number & 1);
    if constexpr (HAS_SCORES)
        compute_p_with_terms(s, derivatives, p, w.batch, at.head, statistics, s_statistics, s_bias, score_scale_of(p),
                             slope2_of(p, at.head), resident, at.streamed);
    else
        compute_p(s, statistics, s_statistics, scale2, slope2_of(p, at.head), resident, at.streamed);
    if constexpr (CONFIG.has_tma_bias) {
        publish_to_async_proxy(); /* order these reads before the TMA load that overwrites them */
        arrive_where(b.bias_empty, lane_index() == 0);
    }
    if (needs_mask(w, resident, at.streamed))
        mask_p(s, w, resident, at.streamed);
    if constexpr (!ROUNDS_P_LAST)
        round_p(p_pairs, s);
    if constexpr (FUSES_DERIVATIVES)
#pragma unroll
        for (int c = 0; c < CONFIG.block_streamed / 4; ++c)
            derivatives[c] = multiply_pairs(p_pairs[c], derivatives[c]);
}

/* Fully unrolled, so that round keys are in uniform registers and nothing is spilled. */
template <class P>
DEVICE void compute_all_keep_masks(u32 (&keep_mask)[KEEP_WORDS], const P &p, const work &w, const consumer_step &at,
                                   i32 resident) {
    const fragment_position position; /* recomputed here; keeping it would cost registers */
#pragma unroll
    for (int i = 0; i < KEEP_WORDS; ++i)
        keep_mask[i] = compute_keep_mask<CONFIG.kv_resident, 8>(p, w.batch, at.head, resident + position.row,
                                                                at.streamed + position.column + 64 * i);
}

/* Keeps the compiler from moving the computation of these operands across the next MMA. */
DEVICE void fence_factors(p_tile &p_pairs, derivative_pairs &derivatives, s_tile &dp, u32 (&keep_mask)[KEEP_WORDS]) {
    if constexpr (CONFIG.has_derivatives)
        fence_registers(derivatives);
    if constexpr (HAS_DROPOUT) { /* otherwise both are unpacked earlier, which needs more registers */
        fence_registers(p_pairs);
        fence_registers(keep_mask);
    }
    fence_registers(dp);
}

/* Releases both stages after the MMAs have read them. */
DEVICE void release_step(u32 qk_empty, u32 vdo_empty) {
    if constexpr (LANES_ARRIVE) /* order the reads of the statistics before the TMA load that overwrites them */
        publish_to_async_proxy();
    if (lane_index() == 0 && (CONFIG.vdo_stages == CONFIG.stages || !CONFIG.has_dqk))
        arrive(vdo_empty);
    release_qk(qk_empty);
}

template <class P>
DEVICE void accumulate_gradients(const P &p, const work &w, u32 base, const barriers &b, int half, gradients &sum,
                                 score_factors &factors) {
    const i32 resident = w.resident + half * HALF;
    const u32 lane = lane_index(), resident_rows = k_major(base + half * HALF * 128);
    const u32 s_ds =
        base + MEMORY.ds + (CONFIG.has_fp8_mma ? 0 : (half * HALF + 16 * (warp_index() & 3) + lane % 16) * 128);
    const row_statistics statistics(p, w, resident);
    const float scale2 = score_scale_of(p) * 1.44269504f;
    s_tile s;
    p_tile p_pairs, ds;
    [[maybe_unused]] fp8_words ds_fp8;
    [[maybe_unused]] s_tile dp;
    [[maybe_unused]] u32 keep_mask[KEEP_WORDS] = {};
    derivative_pairs derivatives = {};
    consumer_step at(p, w);
    resident_head other(other_head(p, at.head));
    await_resident(w, base, b, half);
    wait(b.qk_full, 0);
    if (half == 1 && w.steps > 1 && is_step_hidden(w, resident, at.streamed)) {
        skip_first_step(s_ds, half, b);
        at.advance(p, w);
        other.follow(other_head(p, at.head), w, base, b, half);
        wait(b.qk_full + 8 * at.stage, at.phase);
    }
    start_s(s, w, base, b, resident_rows, at);
    for (;;) {
        const u32 qk_empty = b.qk_empty + 8 * at.stage, vdo_empty = b.vdo_empty + 8 * at.vdo_stage();
        const u32 qk = k_major(base + MEMORY.streamed_qk + at.stage * MEMORY.qk_bytes),
                  vdo = k_major(base + MEMORY.streamed_vdo + at.vdo_stage() * MEMORY.vdo_bytes);
        const u32 s_statistics = base + MEMORY.statistics + at.stage * MEMORY.statistics_bytes + (lane & 3) * 8;
        mma_wait<0>();
        fence_registers(s);
        finish_p(p_pairs, s, derivatives, p, w, at, statistics, s_statistics,
                 base + MEMORY.bias + half * MEMORY.streamed_panel, b, scale2, resident);
        wait(b.vdo_full + 8 * at.vdo_stage(), at.vdo_phase());
        if constexpr (CONFIG.has_dqk) {
            mma_fence();
            issue_dp_tile(dp, resident_rows + (MEMORY.resident_vdo >> 4), vdo);
            mma_commit();
        }
        if constexpr (HAS_DROPOUT)
            compute_all_keep_masks(keep_mask, p, w, at, resident);
        if constexpr (CONFIG.has_dqk) {
            mma_wait<0>();
            fence_factors(p_pairs, derivatives, dp, keep_mask);
            if (CONFIG.vdo_stages != CONFIG.stages &&
                lane == 0) /* vdo has been read, and the next step needs this stage */
                arrive(vdo_empty);
            compute_ds(ds, ds_fp8, p_pairs, s, derivatives, dp, statistics, s_statistics + CONFIG.block_streamed * 4,
                       keep_mask, factors);
        }
        if constexpr (HAS_DROPOUT && !CONFIG.has_dqk)
#pragma unroll
            for (int k = 0; k < CONFIG.block_streamed / 4; ++k)
                drop_pair(p_pairs[k], keep_mask, 2 * k);
        if constexpr (IS_FP8)
#pragma unroll
            for (int k = 0; k < CONFIG.block_streamed / 4; ++k)
                p_pairs[k] = ROUNDS_P_LAST ? factor_pair<p_operand_t>(s[2 * k], s[2 * k + 1])
                                           : factor_pair<p_operand_t>(p_pairs[k]);
        else if constexpr (ROUNDS_P_LAST)
            round_p(p_pairs, s);
        if constexpr (CONFIG.has_dv) {
            mma_fence();
            issue_dv(sum.dv, p_pairs, CONFIG.has_fp8_mma ? vdo + (MEMORY.dp_operand_bytes >> 4) : vdo);
            mma_commit();
        }
        if constexpr (CONFIG.reduces_dq) {
            const u32 slot = at.number % DS_STAGES;
            wait(b.ds_empty + 8 * slot, at.number / DS_STAGES & 1 ^ 1);
            publish_ds(ds, ds_fp8, s_ds + slot * MEMORY.ds_bytes, half, b.ds_full + 8 * slot);
        }
        if constexpr (CONFIG.has_fp8_mma)
            widen_ds(ds, ds_fp8);
        if constexpr (CONFIG.has_dqk) {
            mma_fence();
            issue_dqk(sum.dqk, ds, CONFIG.loads_twice ? qk + (MEMORY.s_operand_bytes >> 4) : qk);
            mma_commit();
        }
        if (at.number + 1 == w.steps)
            break;
        at.advance(p, w);
        mma_wait<0>();
        fence_registers(p_pairs);
        if constexpr (CONFIG.has_dqk)
            fence_registers(ds);
        release_step(qk_empty, vdo_empty);
        other.follow(other_head(p, at.head), w, base, b, half);
        wait(b.qk_full + 8 * at.stage, at.phase);
        start_s(s, w, base, b, resident_rows, at);
    }
    mma_wait<0>();
}
