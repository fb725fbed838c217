/* producer: one thread keeps STAGES slots full; load_a and load_b are printed, a TMA copy of one box each */

DEVICE void load_tiles(const arguments &p, tile_scheduler at) {
    constexpr int B_SHARE = B_BOXES / CLUSTER;
    const int first_box = CLUSTER > 1 ? cluster_rank() * B_SHARE : 0;
    pipeline_cursor fill;
    for (; at.more(p); at.advance(p)) {
        k_cursor k(p, at, at.first_step(p));
        for (i32 step = at.steps(p); step > 0; --step) {
            const u32 a = a_slot(fill.slot), b = b_slot(fill.slot), full = arrived(fill.slot);
            wait(released(fill.slot), fill.phase ^ 1);
            arrive_expecting(full, SLOT_BYTES); /* boxes that hang over an edge still count in full */
#pragma unroll
            for (int box = 0; box < A_BOXES; ++box)
                load_a(p, at, k, at.row + box * (BLOCK_M / A_BOXES), a + box * A_BOX_BYTES, full);
#pragma unroll
            for (int box = first_box; box < first_box + B_SHARE; ++box)
                load_b(p, at, k, at.column + box * (BLOCK_N / B_BOXES), b + box * B_BOX_BYTES, full);
            k.advance(p, at);
            fill.advance();
        }
    }
}
