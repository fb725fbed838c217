/* producer: one thread keeps STAGES slots filled; load_a and load_b are generated, each a TMA copy of one box
   Early     an operand that existed before the plan started (p.a_is_early, p.b_is_early): its first slots need not wait
             for the previous kernel */

DEVICE void fill_a(const arguments &p, const tile_scheduler &at, const k_cursor &k, u32 slot) {
#pragma unroll
    for (int box = 0; box < A_BOXES; ++box)
        load_a(p, at, k, at.row + box * (BLOCK_M / A_BOXES), a_slot(slot) + box * A_BOX_BYTES, arrived(slot));
}
DEVICE void fill_b(const arguments &p, const tile_scheduler &at, const k_cursor &k, u32 slot) {
    constexpr int B_SHARE = B_BOXES / CLUSTER;
    const int first_box = CLUSTER > 1 ? cluster_rank() * B_SHARE : 0;
#pragma unroll
    for (int box = first_box; box < first_box + B_SHARE; ++box)
        load_b(p, at, k, at.column + box * (BLOCK_N / B_BOXES), b_slot(slot) + box * B_BOX_BYTES, arrived(slot));
}

/* Loads the first slots of a block's first tile and returns their number. */
DEVICE i32 fill_early(const arguments &p, const tile_scheduler &at) {
    const i32 steps = p.a_is_early || p.b_is_early ? at.steps(p) : 0, count = steps < STAGES ? steps : STAGES;
    k_cursor k(p, at, at.first_step(p));
    for (i32 slot = 0; slot < count; ++slot, k.advance(p, at)) {
        arrive_expecting(arrived(slot), MEMORY.slot_bytes);
        if (p.a_is_early)
            fill_a(p, at, k, slot);
        if (p.b_is_early)
            fill_b(p, at, k, slot);
    }
    return count;
}

DEVICE void load_tiles(const arguments &p, tile_scheduler at) {
    i32 early = fill_early(p, at); /* steps for which the slot is already partly loaded */
    wait_for_previous_kernel();
    pipeline_cursor fill;
    for (; at.more(p); at.advance(p)) {
        k_cursor k(p, at, at.first_step(p));
        for (i32 step = at.steps(p); step > 0; --step, --early) {
            if (early <= 0) {
                wait(released(fill.slot), fill.phase ^ 1);
                if constexpr (THREADS_READ_A)
                    publish_to_async_proxy(); /* order the consumers' reads before the loads that overwrite them */
                /* boxes that extend past an edge still count in full */
                arrive_expecting(arrived(fill.slot), MEMORY.slot_bytes);
            }
            if (early <= 0 || !p.a_is_early)
                fill_a(p, at, k, fill.slot);
            if (early <= 0 || !p.b_is_early)
                fill_b(p, at, k, fill.slot);
            k.advance(p, at);
            fill.advance();
        }
    }
}
