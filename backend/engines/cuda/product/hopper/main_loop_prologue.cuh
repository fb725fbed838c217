/* main_loop_prologue: accumulates one output tile while pointwise operations transform A on its way from shared memory
   to registers, from which wgmma reads it. Two sets of registers: a step is prepared while the previous one is
   multiplied
   Generated prepare() transforms two adjacent elements along k; read_across loads its operands for a row, once per
             tile, and read_along those for two k. Elements outside an image or past the last k are zeros and stay zeros
   Requires  STORED_BYTES A_IS_MN_MAJOR A_IS_IMAGE K_IS_PIXELS HAS_OVERRIDES
   Measured  2026-11-22, H200, 4096^3 in tiles of 128x256: identity 179 us, scale, bias and relu 231; without a prologue
             171 to 174 in other runs
   Tried     (H200, scale, bias and relu) the consumers transform A in shared memory: forward convolutions 5 % faster to
             8 % slower, filter gradients as fast to 16 % slower; the producer's three other warps do: 2 % faster to 80
             % slower
             16 of k at a time, each as soon as its registers are free: 1x1 with stride 2 a third slower
             one set of registers into which the next step is moved: results differ between runs, because the compiler
             merges both sets while the tensor core still reads them */
#include "product/hopper/overrides.cuh"
#include "product/hopper/auxiliary_load.cuh"

static_assert(STORED_BYTES == 2, "prologues are of 16 bits");

/* Elements of 16 rows and 16 k of a warp: register 2h + r holds row lane / 4 + 8r, k 2 (lane % 4) + 8h and the next
   one. */
using fragment = u32[4];
using step_of_rows = fragment[PRODUCTS_PER_SLOT][ROW_BLOCKS];

template <class P> struct prepared_rows {
    static constexpr bool HAS_PIXEL_ROWS = A_IS_IMAGE && !K_IS_PIXELS, HAS_PIXEL_K = A_IS_IMAGE && K_IS_PIXELS;
    using along = decltype(read_along(*(const P *)0, 0, true));
    using across = decltype(read_across(*(const P *)0, 0));

    k_cursor k;
    i32 k_end;
    u32 within; /* offset in a slot of this lane's row of the first 8 x 8 block */
    across rows[ROW_BLOCKS][2];
    pixel from[ROW_BLOCKS][2]; /* HAS_PIXEL_ROWS: the pixel under the first tap */
    i32 tap[ROW_BLOCKS][3];    /* HAS_PIXEL_K: a block of rows is the channels of one tap */

    DEVICE prepared_rows(const P &p, const tile_coordinates &tile, i32 row, i32 first_step) : k(p, tile, first_step) {
        const u32 lane = lane_index(), warp = warp_index() % 4;
        within = A_IS_MN_MAJOR ? (lane / 16 * 8 + lane % 8) * 128 + ((warp * 2 + lane / 8 % 2) ^ lane % 8) * 16
                               : (warp * 16 + lane % 16) * 128 + (lane / 16 ^ lane % 8) * 16;
        k_end = HAS_OVERRIDES ? tile.used[2] : (i32)p.channels;
#pragma unroll
        for (int block = 0; block < ROW_BLOCKS; ++block) {
            i32 first = row + block * 64;
            if constexpr (HAS_PIXEL_K)
                split_taps(p, first, tap[block]);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const i32 mine = first + (i32)(warp * 16 + lane / 4) + 8 * r;
                rows[block][r] = read_across(p, mine);
                if constexpr (HAS_PIXEL_ROWS)
                    from[block][r] = find_pixel(p, (u32)mine);
            }
        }
    }

    /* Loads a step, with a faster version for steps that are entirely inside k and the image. The two versions also
       prevent the compiler from moving inlined code between the products, which would have to wait for it. */
    DEVICE void load_step(step_of_rows &r, const P &p, const tile_coordinates &tile, u32 slot) const {
        const i32 begin = K_IS_PIXELS ? k.position : k.c;
        u32 pixels[ROW_BLOCKS][2];
        bool is_whole = begin + BLOCK_K <= k_end;
        if constexpr (HAS_PIXEL_K)
#pragma unroll
            for (int i = 0; i < ROW_BLOCKS * 2; ++i)
                is_whole &= (pixels[i / 2][i % 2] = find_pixels(p, tile, begin + i % 2 * 32, tap[i / 2])) == ~0u;
        if (is_whole)
            load_step_of<true>(r, p, tile, slot, begin, pixels);
        else
            load_step_of<false>(r, p, tile, slot, begin, pixels);
    }

    template <bool IS_WHOLE>
    DEVICE void load_step_of(step_of_rows &r, const P &p, const tile_coordinates &tile, u32 slot, i32 begin,
                             const u32 (&pixels)[ROW_BLOCKS][2]) const {
        const i32 mine = (i32)(lane_index() % 4 * 2);
        along in[PRODUCTS_PER_SLOT][2];
#pragma unroll
        for (int i = 0; i < PRODUCTS_PER_SLOT * 2; ++i)
            in[i / 2][i % 2] = read_along(p, begin + mine + i * 8, IS_WHOLE);
#pragma unroll
        for (int product = 0; product < PRODUCTS_PER_SLOT; ++product)
#pragma unroll
            for (int block = 0; block < ROW_BLOCKS; ++block)
                load(r[product][block], slot + block * 64 * 128, product);
#pragma unroll
        for (int block = 0; block < ROW_BLOCKS; ++block) {
            bool is_inside_image[2];
            if constexpr (HAS_PIXEL_ROWS)
                for (int row = 0; row < 2; ++row)
                    is_inside_image[row] = is_inside(p, tile, from[block][row], k.tap);
#pragma unroll
            for (int i = 0; i < PRODUCTS_PER_SLOT * 4; ++i) {
                const int product = i / 4, h = i / 2 % 2, row = i % 2;
                const i32 first = product * 16 + h * 8 + mine; /* k within the step */
                u32 &pair = r[product][block][i % 4];
                prepare(p, &pair, in[product][h], rows[block][row]);
                if constexpr (HAS_PIXEL_ROWS)
                    pair = is_inside_image[row] ? pair : 0;
                if constexpr (!IS_WHOLE && HAS_PIXEL_K)
                    pair &=
                        mask_of(pixels[block][product / 2] >> first % 32, pixels[block][product / 2] >> first % 32 + 1);
                if constexpr (!IS_WHOLE && !HAS_PIXEL_K)
                    pair &= mask_of(begin + first < k_end, begin + first + 1 < k_end);
            }
        }
#pragma unroll
        for (int i = 0; i < PRODUCTS_PER_SLOT * ROW_BLOCKS * 4; ++i)
            fence_register(r[i / 4 / ROW_BLOCKS][i / 4 % ROW_BLOCKS][i % 4]);
    }

    DEVICE void load(fragment &r, u32 at, int product) const {
        if constexpr (A_IS_MN_MAJOR)
            load_matrices_transposed(r, at + within + product * 16 * 128);
        else
            load_matrices(r, at + (within ^ product * 32));
    }

    /* Mask of those of 32 pixels that are inside the image at this tap. */
    DEVICE u32 find_pixels(const P &p, const tile_coordinates &tile, i32 first, const i32 (&tap)[3]) const {
        const i32 position = first + (i32)lane_index();
        return __ballot_sync(~0u, position < k_end && is_inside(p, tile, find_pixel(p, (u32)position), tap));
    }

    /* Returns a mask of the two elements of a pair, from one bit each. */
    static DEVICE u32 mask_of(u32 first, u32 second) {
        return (first & 1 ? 0xffffu : 0) | (second & 1 ? 0xffff0000u : 0);
    }
};

struct main_loop {
    static constexpr bool LOADS_AUX = true; /* the auxiliary operand is loaded after the first k-step is issued */

    /* Multiplies all steps of a tile and waits for them. */
    template <class P>
    static DEVICE u32 multiply(accumulators &r_c, const P &p, pipeline_cursor &use, const tile_scheduler &tile,
                               u32 consumer_warp, i32 steps) {
        constexpr int BUFFERS = 2;
        const int group = consumer_warp / 4;
        prepared_rows<P> rows(p, tile, tile.row + group * GROUP_ROWS, tile.first_step(p));
        step_of_rows r_a[BUFFERS];
        u32 previous = 0;
        for (i32 step = 0; step < steps; step += BUFFERS) {
#pragma unroll
            for (int buffer = 0; buffer < BUFFERS; ++buffer) {
                if (buffer > 0 && step + buffer >= steps)
                    break;
                ready_slot(p, use, tile, group, step + buffer);
                rows.load_step(r_a[buffer], p, tile, a_slot(use.slot) + group * GROUP_ROWS * 128);
                const u64 b = operand(b_slot(use.slot), B_PANEL);
                mma_fence();
#pragma unroll
                for (int k = 0; k < PRODUCTS_PER_SLOT; ++k)
#pragma unroll
                    for (int block = 0; block < ROW_BLOCKS; ++block)
                        multiply_accumulate(r_c[block], r_a[buffer][k][block], b + k * B_STEP, step + buffer + k > 0);
                mma_commit();
                if constexpr (AUX_LOAD)
                    if (step + buffer == 0)
                        load_aux(p, tile, consumer_warp);
                mma_wait<1>();
                if (step + buffer > 0)
                    release_slot(previous);
                previous = use.slot;
                use.advance();
                rows.k.advance(p, tile);
            }
        }
        complete_products(r_c, previous, steps);
        return 0;
    }

    static DEVICE void complete(accumulators &, u32, i32) {}
};
