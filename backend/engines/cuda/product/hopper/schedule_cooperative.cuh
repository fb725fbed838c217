/* schedule_cooperative: all consumer warpgroups share a tile, and each runs the epilogue of its rows */

DEVICE void init_own_barriers() {}

template <class P, class R> DEVICE void consume_tiles(const P &p, tile_scheduler at, u32 consumer_warp, R &reductions) {
    accumulators r_c;
    pipeline_cursor use;
    epilogue_cursor to{epilogue_tiles(consumer_warp)};
    [[maybe_unused]] u32 aux_loads = 0;
    for (; at.more(p); at.advance(p)) {
        const i32 steps = at.steps(p);
        if constexpr (AUX_LOAD)
            if (!main_loop::LOADS_AUX || steps <= 0)
                load_aux(p, at, consumer_warp);
        const i32 first_row = first_row_of(at, consumer_warp);
        epilogue_operands<P> operands;
        operands.read_first(p, at, first_row);
        const u32 last_slot = main_loop::multiply(r_c, p, use, at, consumer_warp, steps);
        operands.read_ahead(p, at, first_row + consumer_warp % 4 * 16);
        main_loop::complete(r_c, last_slot, steps);
        if constexpr (AUX_LOAD)
            wait(aux_arrived(consumer_warp), aux_loads++ & 1);
        store_tile(r_c, p, at, consumer_warp, first_row, steps, operands, to, reductions);
    }
}
