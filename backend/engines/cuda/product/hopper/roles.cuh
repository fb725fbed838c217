/* roles: the body of the Hopper products: initialises barriers; then warpgroup 0 produces and the others consume. The
   next kernel may start as soon as this one has waited for the previous one (programmatic dependent launch). With
   groups or overrides, that wait comes before the tile coordinates, because the previous kernel may write the sizes */

/* The consumers' work, with or without reductions. */
template <class P> DEVICE void consume(const P &p, const tile_scheduler &at, u32 consumer_warp) {
    const u32 s_partials = shared_address(s_memory) + MEMORY.partials + consumer_warp * MEMORY.partials_bytes;
    if constexpr (REDUCES_STAGED) {
        staged_reductions<P> reductions(s_partials);
        consume_tiles(p, at, consumer_warp, reductions);
        end_epilogue();
        reductions.end_all(p, at.column, consumer_warp);
    } else if constexpr (HAS_REDUCTIONS) {
        register_reductions<P> reductions(s_partials);
        consume_tiles(p, at, consumer_warp, reductions);
        end_epilogue();
        reductions.end_all(p, at.column, consumer_warp);
    } else {
        no_reductions none;
        consume_tiles(p, at, consumer_warp, none);
        end_epilogue();
    }
}

DEVICE void init_barriers() {
    for (u32 slot = 0; slot < STAGES; ++slot) {
        barrier_init(arrived(slot), 1); /* the producer, plus SLOT_BYTES from up to CLUSTER producers */
        barrier_init(released(slot),
                     CLUSTER * TILE_GROUPS * 4); /* every consumer warp that reads what this block loads */
    }
    init_own_barriers();
    for (u32 consumer_warp = 0; consumer_warp < CONSUMER_WARPS && AUX_LOAD; ++consumer_warp)
        barrier_init(aux_arrived(consumer_warp), 1);
    barrier_init_fence();
}

template <class P> DEVICE void run_roles(const P &p) {
    const u32 warp = warp_index();
    if (warp == 0 && elect_one()) {
        prefetch_map(p.a_map);
        prefetch_map(p.b_map);
        init_barriers();
    }
    if constexpr (CLUSTER_BLOCKS > 1) {
        __syncwarp();
        cluster_arrive_relaxed();
    }
    if constexpr (HAS_GROUPS || HAS_OVERRIDES)
        wait_for_previous_kernel();
    const tile_scheduler at(p);
    if constexpr (CLUSTER > 1)
        cluster_wait();
    else
        __syncthreads();
    if (warp < 4) {
        shrink_registers<PRODUCER_REGISTERS>();
        if (warp == 0 && elect_one())
            load_tiles(p, at);
        if constexpr (CLUSTER_SPLITS > 1) {
            __syncwarp();
            cluster_wait();
        }
    } else {
        wait_for_previous_kernel();
        let_next_kernel_start();
        grow_registers<CONSUMER_REGISTERS>();
        consume(p, at, warp - 4);
    }
    if constexpr (CLUSTER > 1) { /* no block may exit while a peer may still write to it or arrive at its barriers */
        __syncwarp();
        cluster_sync();
    }
}
