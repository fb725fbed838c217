/* main_loop_promoted: accumulates one output tile of fp8. Tensor cores keep only 13 bits below the largest term of a
   sum, so they sum one step of one block of 64 rows from zero, and float registers sum the steps, while another
   warpgroup multiplies
   Scales    HAS_SCALES: the sums are multiplied by the scales of both blocks, one per row and one per SCALE_COLUMNS
             columns of the tile
   Requires  HAS_SCALES SCALE_COLUMNS; a_scale_at, a_scale_step, a_scale and those of b are generated
   Tried     promoting 64 columns while the next 64 are multiplied: 2 to 6 % slower than all at once
             scales that idle warps of the producer copy into shared memory: 2 % slower
             one warpgroup a step or two later than the other: 5 % slower */
#include "product/hopper/overrides.cuh"
#include "product/hopper/auxiliary_load.cuh"

/* Block scales of a step: register 4j + 2h + e of a block is multiplied by the scale of its row h and that of its group
   of SCALE_COLUMNS columns. They are loaded two steps ahead into two buffers, because the compiler waits for them
   before it starts the tensor cores. */
template <class P, bool EXIST = HAS_SCALES> struct step_scales {
    static constexpr int BUFFERS = 2, ROWS = ROW_BLOCKS * 2, COLUMNS = BLOCK_N / SCALE_COLUMNS;
    static_assert(!EXIST || BLOCK_N % SCALE_COLUMNS == 0, "scales cover the tile");
    i32 a_at[ROWS], b_at[COLUMNS], step, until;
    float a[BUFFERS][ROWS], b[BUFFERS][COLUMNS], now[COLUMNS][ROWS];
    DEVICE step_scales(const P &p, const tile_coordinates &tile, i32 row, i32 first, i32 steps)
        : step(first), until(first + steps) {
        /* Hides that the scale of B is uniform in a warp. Otherwise the compiler would keep it in a uniform register,
           for which it must wait immediately. */
        const i32 nothing = (i32)(lane_index() / ((u32)p.columns + 32));
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
            a_at[i] =
                a_scale_at(p, tile.z, row + i / 2 * 64 + warp_index() % 4 * 16 + lane_index() / 4 + i % 2 * 8, first);
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j)
            b_at[j] = b_scale_at(p, tile.z, tile.column + j * SCALE_COLUMNS, first) + nothing;
#pragma unroll
        for (int buffer = 0; buffer < BUFFERS; ++buffer)
            fetch(p, buffer);
    }
    /* After the last step the offsets stay the same; this avoids a branch, which must not occur while products are
       executing. */
    DEVICE void fetch(const P &p, int buffer) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
            a[buffer][i] = a_scale(p, a_at[i]);
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j)
            b[buffer][j] = b_scale(p, b_at[j]);
        ++step;
        const i32 a_step = step < until ? a_scale_step(p, step) : 0, b_step = step < until ? b_scale_step(p, step) : 0;
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
            a_at[i] += a_step;
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j)
            b_at[j] += b_step;
    }
    DEVICE void use(const P &p, int buffer) {
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                now[j][i] = a[buffer][i] * b[buffer][j];
                fence_register(now[j][i]);
            }
        }
        fetch(p, buffer);
    }
    DEVICE float add(float sum, int block, int i, float r_step) const {
        return sum + r_step * now[i / 4 * 8 / SCALE_COLUMNS][block * 2 + i / 2 % 2];
    }
};
template <class P> struct step_scales<P, false> {
    static constexpr int BUFFERS = 1;
    DEVICE step_scales(const P &, const tile_coordinates &, i32, i32, i32) {}
    DEVICE void use(const P &, int) {}
    DEVICE float add(float sum, int, int, float r_step) const { return sum + r_step; }
};

/* Sums one step of one block at a time. */
struct main_loop {
    static constexpr bool LOADS_AUX = false;

    template <class P>
    static DEVICE u32 multiply(accumulators &r_c, const P &p, pipeline_cursor &use, const tile_scheduler &tile,
                               u32 consumer_warp, i32 steps) {
        constexpr int BUFFERS = step_scales<P>::BUFFERS;
        const int group = consumer_warp / 4;
        step_scales<P> scales(p, tile, tile.row + group * GROUP_ROWS, tile.first_step(p), steps);
#pragma unroll
        for (int block = 0; block < ROW_BLOCKS; ++block)
#pragma unroll
            for (int i = 0; i < BLOCK_N / 2; ++i)
                r_c[block][i] = 0;
        for (i32 step = 0; step < steps; step += BUFFERS) {
#pragma unroll
            for (int buffer = 0; buffer < BUFFERS; ++buffer) {
                if (buffer > 0 && step + buffer >= steps)
                    break;
                sum_t r_step[BLOCK_N / 2];
                ready_slot(p, use, tile, group, step + buffer);
                multiply_step(r_c, r_step, p, use.slot, group, scales, buffer);
                use.advance();
            }
        }
        return 0;
    }

    /* r_step belongs to the caller, so that its registers are not reused while wgmma writes them. */
    template <class P>
    static DEVICE void multiply_step(accumulators &r_c, sum_t (&r_step)[BLOCK_N / 2], const P &p, u32 slot, int group,
                                     step_scales<P> &scales, int buffer) {
        const u64 a = operand(a_slot(slot) + group * GROUP_ROWS * 128, A_PANEL), b = operand(b_slot(slot), B_PANEL);
#pragma unroll
        for (int block = 0; block < ROW_BLOCKS; ++block) {
            mma_fence();
#pragma unroll
            for (int k = 0; k < PRODUCTS_PER_SLOT; ++k)
                multiply_accumulate(r_step, a + (block * 64 * 128 >> 4) + k * A_STEP, b + k * B_STEP, k > 0);
            mma_commit();
            if (block == 0)
                scales.use(p, buffer);
            mma_wait<0>();
            if (block == ROW_BLOCKS - 1)
                release_slot(slot);
#pragma unroll
            for (int i = 0; i < BLOCK_N / 2; ++i) {
                fence_register(r_step[i]);
                r_c[block][i] = scales.add(r_c[block][i], block, i, r_step[i]);
            }
        }
    }

    static DEVICE void complete(accumulators &, u32, i32) {}
};
