/* schedule_cluster_split: two blocks of a cluster compute one tile, each over half of k. Warpgroup g of the tile runs
   the epilogue in block g, which receives the other block's partial sums of its rows in shared memory. The result is
   the same in every run, because the sum of two numbers does not depend on their order
   Tile      one per cluster, so nothing overlaps
   Barriers  partials_arrived: the peer's sums have arrived */
static_assert(CLUSTER == 1 && !IS_SPLIT && !HAS_PHASES && !HAS_OVERRIDES && !AUX_LOAD,
              "each of two blocks runs the epilogue of one warpgroup's rows");

DEVICE u32 partials_arrived() { return own_barrier(0); }
DEVICE void init_own_barriers() {
    barrier_init(partials_arrived(), 1);
    arrive_expecting(partials_arrived(), MEMORY.exchange_bytes);
}

DEVICE u32 word_of(float sum) { return __float_as_uint(sum); }
DEVICE u32 word_of(i32 sum) { return (u32)sum; }
DEVICE void add_word(float &sum, u32 word) { sum += __uint_as_float(word); }
DEVICE void add_word(i32 &sum, u32 word) { sum += (i32)word; }
DEVICE u32 exchange_address() { return shared_address(s_memory) + MEMORY.exchange + threadIdx.x % 128 * 16; }

DEVICE void send_partials(const accumulators &r_c, u32 block) {
    const u32 peer_sums = peer_address(exchange_address(), block), full = peer_address(partials_arrived(), block);
#pragma unroll
    for (int i = 0; i < ROW_BLOCKS * BLOCK_N / 2; i += 4) {
        const sum_t *r = &r_c[i / (BLOCK_N / 2)][i % (BLOCK_N / 2)];
        send_to_peer(peer_sums + i / 4 * 2048, full,
                     words{{word_of(r[0]), word_of(r[1]), word_of(r[2]), word_of(r[3])}});
    }
}

DEVICE void add_partials(accumulators &r_c) {
    wait(partials_arrived(), 0);
#pragma unroll
    for (int i = 0; i < ROW_BLOCKS * BLOCK_N / 2; i += 4) {
        const words sums = load_words(exchange_address() + i / 4 * 2048);
#pragma unroll
        for (int e = 0; e < 4; ++e)
            add_word(r_c[i / (BLOCK_N / 2)][i % (BLOCK_N / 2) + e], sums.at[e]);
    }
}

template <class P, class R> DEVICE void consume_tiles(const P &p, tile_scheduler at, u32 consumer_warp, R &reductions) {
    accumulators r_c;
    pipeline_cursor use;
    epilogue_cursor to{epilogue_tiles(consumer_warp)};
    if (!at.more(p))
        return;
    const i32 steps = at.steps(p);
    const i32 first_row = first_row_of(at, consumer_warp);
    epilogue_operands<P> operands;
    if (consumer_warp / 4 == cluster_rank())
        operands.read_first(p, at, first_row);
    const u32 last_slot = main_loop::multiply(r_c, p, use, at, consumer_warp, steps);
    operands.read_ahead(p, at, first_row + consumer_warp % 4 * 16);
    main_loop::complete(r_c, last_slot, steps);
    cluster_wait(); /* for the other block's barriers, which were initialised long ago */
    if (consumer_warp / 4 != cluster_rank()) {
        send_partials(r_c, consumer_warp / 4);
        return;
    }
    add_partials(r_c);
    store_tile(r_c, p, at, consumer_warp, first_row, steps, operands, to, reductions);
}
