/* schedule_pingpong: each tile belongs to one of two warpgroups, which alternate
   Barriers  main_loop_issued[g]: the last products of a tile of group g have been issued, and those of the next tile
             may follow. One barrier for both groups would not suffice: if tiles have no steps, a warp may be a tile
             ahead of the rest of its group, and would mistake a phase for the previous one */
static_assert(CONSUMER_GROUPS == 2 && TILE_GROUPS == 1 && !HAS_OVERRIDES, "the warpgroups meet nowhere");

DEVICE u32 main_loop_issued(u32 group) { return own_barrier(group); }
DEVICE void init_own_barriers() {
    for (u32 group = 0; group < 2; ++group)
        barrier_init(main_loop_issued(group), 4);
}

template <class P, class R> DEVICE void consume_tiles(const P &p, tile_scheduler at, u32 consumer_warp, R &reductions) {
    accumulators r_c;
    pipeline_cursor use;
    epilogue_cursor to{epilogue_tiles(consumer_warp)};
    [[maybe_unused]] u32 aux_loads = 0;
    const u32 group = consumer_warp / 4;
    for (u32 number = 0; at.more(p); at.advance(p), ++number) {
        const i32 steps = at.steps(p);
        if (number % 2 != group) { /* the tile of the other warpgroup */
            use.skip(steps);
            continue;
        }
        if (number > 0)
            wait(main_loop_issued(1 - group), (number - 1) / 2 % 2);
        if constexpr (AUX_LOAD)
            if (steps <= 0)
                load_aux(p, at, consumer_warp);
        const i32 first_row = first_row_of(at, consumer_warp);
        epilogue_operands<P> operands;
        operands.read_first(p, at, first_row);
        const u32 last_slot = main_loop::multiply(r_c, p, use, at, consumer_warp, steps);
        if (lane_index() == 0)
            arrive(main_loop_issued(group));
        operands.read_ahead(p, at, first_row + consumer_warp % 4 * 16);
        main_loop::complete(r_c, last_slot, steps);
        if constexpr (AUX_LOAD)
            wait(aux_arrived(consumer_warp), aux_loads++ & 1);
        store_tile(r_c, p, at, consumer_warp, first_row, steps, operands, to, reductions);
    }
}
