/* backward_loads: the producer of backward_sm90, one thread that issues TMA loads in the order of use */

template <u32 BYTES>
DEVICE void load_resident(const tensor_map &map, u32 dst, u32 full, const work &w, i32 head, const box_origin &entry) {
    arrive_expecting(full, BYTES);
#pragma unroll
    for (u32 i = 0; i < BYTES / MEMORY.resident_panel; ++i)
        load_box(dst + i * MEMORY.resident_panel, map, full, i * 64, entry.row + w.resident, head, entry.outer);
}

template <u32 BYTES>
DEVICE void load_streamed(const tensor_map &map, u32 dst, u32 full, const cursor &at, i32 head,
                          const box_origin &entry) {
#pragma unroll
    for (u32 i = 0; i < BYTES / MEMORY.streamed_panel; ++i)
        load_box(dst + i * MEMORY.streamed_panel, map, full, i * 64, entry.row + at.block * CONFIG.block_streamed, head,
                 entry.outer);
}

/* loads_twice: the streamed operand of dQ or dK. */
template <class P> DEVICE void load_dqk_operand(const P &p, u32 dst, u32 full, const cursor &at, const work &w) {
    load_streamed<MEMORY.dqk_operand_bytes>(p.dqk_operand_map, dst, full, at, at.head,
                                            dqk_operand_entry(p, w.batch, w.streamed_used()));
}

/* has_fp8_mma: dO in the version that dV reads. */
template <class P> DEVICE void load_dv_operand(const P &p, u32 dst, u32 full, const cursor &at, const work &w) {
    load_streamed<MEMORY.dv_operand_bytes>(p.dv_operand_map, dst, full, at, vdo_head(p, w, at), w.vdo_at);
}

/* Loads step i after the consumers have released its stages. */
DEVICE void load_step(const arguments &p, const work &w, u32 base, const barriers &b, const cursor &at, i32 i,
                      i32 stage) {
    const i32 vdo_stage = CONFIG.vdo_stages == CONFIG.stages ? stage : i % CONFIG.vdo_stages;
    const u32 qk_full = b.qk_full + 8 * stage, vdo_full = b.vdo_full + 8 * vdo_stage;
    if (i >= CONFIG.stages) {
        wait(b.qk_empty + 8 * stage, i / CONFIG.stages & 1 ^ 1);
        if (CONFIG.vdo_stages == CONFIG.stages)
            wait(b.vdo_empty + 8 * stage, i / CONFIG.stages & 1 ^ 1);
    }
    arrive_expecting(qk_full, MEMORY.qk_bytes + MEMORY.statistics_bytes);
    load_streamed<MEMORY.s_operand_bytes>(p.streamed_qk_map, base + MEMORY.streamed_qk + stage * MEMORY.qk_bytes,
                                          qk_full, at, at.head, w.qk_at);
    if constexpr (CONFIG.loads_twice)
        load_dqk_operand(p, base + MEMORY.streamed_qk + stage * MEMORY.qk_bytes + MEMORY.s_operand_bytes, qk_full, at,
                         w);
    if constexpr (CONFIG.kv_resident)
        load_bytes(base + MEMORY.statistics + stage * MEMORY.statistics_bytes,
                   p.statistics + q_tile(p, w.batch, at.head, at.block) * 2 * CONFIG.block_q, MEMORY.statistics_bytes,
                   qk_full);
    if (CONFIG.vdo_stages != CONFIG.stages && i >= CONFIG.vdo_stages)
        wait(b.vdo_empty + 8 * vdo_stage, i / CONFIG.vdo_stages & 1 ^ 1);
    arrive_expecting(vdo_full, MEMORY.vdo_bytes);
    load_streamed<MEMORY.dp_operand_bytes>(p.streamed_vdo_map,
                                           base + MEMORY.streamed_vdo + vdo_stage * MEMORY.vdo_bytes, vdo_full, at,
                                           vdo_head(p, w, at), w.vdo_at);
    if constexpr (CONFIG.has_fp8_mma)
        load_dv_operand(p, base + MEMORY.streamed_vdo + vdo_stage * MEMORY.vdo_bytes + MEMORY.dp_operand_bytes,
                        vdo_full, at, w);
}

/* has_tma_bias: loads each consumer's bias of a step: its keys of the streamed queries. */
template <class P> DEVICE void load_bias(const P &p, const work &w, u32 base, const barriers &b, const cursor &at) {
    arrive_expecting(b.bias_full, MEMORY.bias_bytes);
#pragma unroll
    for (int half = 0; half < 2; ++half)
        load_box(base + MEMORY.bias + half * MEMORY.streamed_panel, p.bias_map, b.bias_full, w.resident + half * HALF,
                 at.block * CONFIG.block_streamed, p.bias_head ? at.head : 0, p.bias_batch ? w.batch : 0);
}
/* Loads the bias of step i + 1 after the consumers have read that of step i. */
template <class P>
DEVICE void load_next_bias(const P &p, const work &w, u32 base, const barriers &b, cursor at, i32 i) {
    if (i + 1 == w.steps)
        return;
    at.advance(p, w);
    wait(b.bias_empty, i & 1);
    load_bias(p, w, base, b, at);
}

DEVICE void load_first_steps(const arguments &p, const work &w, u32 base, const barriers &b) {
    cursor at(p, w);
    load_resident<MEMORY.resident_qk_bytes>(p.resident_qk_map, base + MEMORY.resident_qk, b.resident_qk, w, w.head,
                                            resident_qk_entry(p, w.batch, w.resident_used()));
    load_step(p, w, base, b, at, 0, 0);
    if constexpr (CONFIG.has_tma_bias)
        load_bias(p, w, base, b, at);
    if constexpr (CONFIG.has_dqk)
        load_resident<MEMORY.resident_vdo_bytes>(p.resident_vdo_map, base + MEMORY.resident_vdo, b.resident_vdo, w,
                                                 w.head, resident_vdo_entry(p, w.batch, w.resident_used()));
    if constexpr (CONFIG.has_fp8_mma)
        load_kt(p, w, base, b);
#pragma unroll 1
    for (i32 i = 1; i < CONFIG.stages && i < w.steps; ++i) {
        at.advance(p, w);
        load_step(p, w, base, b, at, i, i);
    }
}

/* Loads step i + stages - 1 into the stage that step i - 1 released. */
DEVICE void load_next_step(const arguments &p, const work &w, u32 base, const barriers &b, cursor at, i32 i,
                           i32 stage) {
    const i32 next = i + CONFIG.stages - 1;
    if (i == 0 || next >= w.steps)
        return;
#pragma unroll 1
    for (int k = 0; k < CONFIG.stages - 1; ++k)
        at.advance(p, w);
    load_step(p, w, base, b, at, next, stage > 0 ? stage - 1 : CONFIG.stages - 1);
}

/* Reloads the resident tensor whose gradient this CTA does not compute, after the consumers have released the previous
   head; `i` counts the reloads. */
template <class P>
DEVICE void reload_resident(const P &p, const work &w, u32 base, const barriers &b, i32 head, i32 i) {
    wait(b.resident_empty, i & 1);
    if constexpr (CONFIG.has_dqk)
        load_resident<MEMORY.resident_vdo_bytes>(p.resident_vdo_map, base + MEMORY.resident_vdo, b.resident_vdo, w,
                                                 head, resident_vdo_entry(p, w.batch, w.resident_used()));
    else
        load_resident<MEMORY.resident_qk_bytes>(p.resident_qk_map, base + MEMORY.resident_qk, b.resident_qk, w, head,
                                                resident_qk_entry(p, w.batch, w.resident_used()));
}

/* RELOADS: one thread loads in the order of use. */
DEVICE void load_steps_of_heads(const arguments &p, const work &w, u32 base, const barriers &b) {
    cursor at(p, w);
    i32 resident = other_head(p, at.head), reloads = 0;
    load_resident<MEMORY.resident_qk_bytes>(p.resident_qk_map, base + MEMORY.resident_qk, b.resident_qk, w,
                                            CONFIG.has_dqk ? w.head : resident,
                                            resident_qk_entry(p, w.batch, w.resident_used()));
    if constexpr (CONFIG.has_dqk)
        load_resident<MEMORY.resident_vdo_bytes>(p.resident_vdo_map, base + MEMORY.resident_vdo, b.resident_vdo, w,
                                                 resident, resident_vdo_entry(p, w.batch, w.resident_used()));
    for (i32 i = 0; i < w.steps; ++i) {
        if (const i32 now = other_head(p, at.head); now != resident)
            reload_resident(p, w, base, b, resident = now, reloads++);
        load_step(p, w, base, b, at, i, i % CONFIG.stages);
        at.advance(p, w, i + 1 == w.steps);
    }
}

/* For one thread that has no other work. */
DEVICE void load_steps(const arguments &p, u32 base) {
    const work w = find_work(p);
    const barriers b(base);
    if (threadIdx.x != 0 || w.steps == 0)
        return;
    if constexpr (RELOADS) {
        load_steps_of_heads(p, w, base, b);
        return;
    }
    load_first_steps(p, w, base, b);
    cursor at(p, w);
    for (i32 i = 0, stage = 0; i < w.steps; ++i) {
        load_next_step(p, w, base, b, at, i, stage);
        at.advance(p, w, i + 1 == w.steps);
        if (++stage == CONFIG.stages)
            stage = 0;
    }
}
