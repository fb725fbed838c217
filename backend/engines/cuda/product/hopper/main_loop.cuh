/* main_loop: accumulates one output tile with wgmma on operands in shared memory. Each k-step is issued while the
   previous one is still executing */
#include "product/hopper/overrides.cuh"
#include "product/hopper/auxiliary_load.cuh"

struct main_loop {
    static constexpr bool LOADS_AUX = true; /* the auxiliary operand is loaded after the first k-step is issued */

    /* Issues the wgmma instructions of all k-steps and returns the slot of the last step, which is still executing. */
    template <class P>
    static DEVICE u32 multiply(accumulators &r_c, const P &p, pipeline_cursor &use, const tile_scheduler &tile,
                               u32 consumer_warp, i32 steps) {
        const int group = consumer_warp / 4 % TILE_GROUPS;
        u32 previous = 0;
        for (i32 step = 0; step < steps; ++step) {
            ready_slot(p, use, tile, group, step);
            const u64 a = operand(a_slot(use.slot) + group * GROUP_ROWS * 128,
                                  A_PANEL); /* [GROUP_ROWS, 128 bytes] or panels of [k, 64] */
            const u64 b = operand(b_slot(use.slot), B_PANEL);
            mma_fence();
#pragma unroll
            for (int k = 0; k < PRODUCTS_PER_SLOT; ++k)
#pragma unroll
                /* the first product of a tile overwrites the accumulators */
                for (int block = 0; block < ROW_BLOCKS; ++block)
                    multiply_accumulate(r_c[block], a + (block * 64 * 128 >> 4) + k * A_STEP, b + k * B_STEP,
                                        step + k > 0);
            mma_commit();
            if constexpr (AUX_LOAD)
                if (step == 0)
                    load_aux(p, tile, consumer_warp);
            mma_wait<1>(); /* wait for the previous step; the current one continues */
            if (step > 0)
                release_slot(previous);
            previous = use.slot;
            use.advance();
        }
        return previous;
    }

    static DEVICE void complete(accumulators &r_c, u32 last_slot, i32 steps) {
        complete_products(r_c, last_slot, steps);
    }
};
