/* weight_only_sm90: C[i,j] = epilogue(sum over k of A[i,k] * (W[k,j] * scale[k / group, j / block]))
   Types     weights of 4 and 8 bits, some rows i, wgmma; sm_90a
   Formula   weights are converted to f16 or bf16 in registers, exactly; a scale of that type multiplies them there,
             with the rounding of the dequantised weight (SCALES_SUMS 0); other scales multiply the sums of a step, as
             if weights were floats (1)
   Idea      A and B are swapped: weights are the tensor core's 64 rows, which it reads from registers, so that they are
             never stored as 16 bits; rows of A are its columns, in shared memory. A lane must hold pairs of k that are
             2 (lane % 4) from the start of each 8, and would have to read all weights of a row to get them. So A is
             reordered (repack) such that the elements that a lane multiplies are 32 adjacent ones of a row of weights
   Tile      a block computes TOKENS rows i of ROWS columns j, 64 columns j per math warpgroup; k in steps of 128
   Split-K   SPLITS blocks of a cluster share k. At the end the sums are in shared memory, and each block adds those of
             its rows i from the first block to the last
   Roles     warpgroup 0: load_tiles: one thread loads by TMA, all of them the scales
             the others: multiply_tile, then run_epilogue
   Pipeline  producer |fill 0|fill 1|fill 2|fill 0|...   STAGES slots of A, weights and scales; arrived[s]: it is full
             consumer        |step 0|step 1|step 2|...   released[s]: slot s may be refilled
             the tensor core multiplies one part of 32 of a step while the next one is unpacked. The previous kernel
             does not write the weights, so they are loaded before it ends
   Limits    k of W contiguous, in multiples of 16 bytes; 32 adjacent weights share a scale or, if sums are scaled,
             those of a step
   Params    ROWS TOKENS SPLITS STAGES SCALES SCALES_SUMS IS_NEGATIVE LEAD_IS_ROW RUN factor_t weight_t scale_t sum_t
             index, and multiply_accumulate (m64 x TOKENS x 32 bytes, the first operand from registers)
   Tried     splits without clusters, where the last block of a tile adds all sums in the workspace: 3 us slower. Pairs
             of blocks that share A by multicast: within noise. 256-byte promotion of weights: within noise. Unpacking
             only after the previous products have finished: 2 to 8 % slower. Clusters of four: 128 blocks cannot be
             resident at the same time */
#include "engines/cuda/product/weight_only/weight_only_sm90_geometry.h"
#include "product/weight_only/few_bits.cuh"

using numbers = few_bits<weight_t>;

constexpr int SPAN = STEP / 4;                    /* elements of k per lane and step */
constexpr int PARTS = 4;                          /* parts of a step, two products each */
constexpr int WORDS = SPAN * BITS<weight_t> / 32; /* words of weights per lane and row */
constexpr int PART_WORDS = WORDS / PARTS;
constexpr int CONSUMER_GROUPS = ROWS / 64, CONSUMER_THREADS = CONSUMER_GROUPS * 128, THREADS = 128 + CONSUMER_THREADS;
constexpr int PRODUCER_REGISTERS = CONSUMER_GROUPS > 2 ? 32 : 56, CONSUMER_REGISTERS = CONSUMER_GROUPS > 2 ? 112 : 224;
constexpr int PITCH = ROWS + 4;                   /* row pitch of the sums, which avoids bank conflicts between lanes */
constexpr int SHARE = TOKENS / SPLITS;            /* rows i that a block finishes */
constexpr float UNIT = numbers::unit(factor_t{}); /* a weight divided by the result of pair() */
constexpr weight_only_sm90_memory MEMORY =
    weight_only_sm90_memory_of(weight_only_sm90_shape{TOKENS, ROWS, BITS<weight_t>, SCALES, STAGES});

static_assert(ROWS % 64 == 0 && ROWS <= 256 && TOKENS % 8 == 0 && TOKENS <= 256, "what wgmma makes and TMA copies");
static_assert(PRODUCER_REGISTERS + CONSUMER_GROUPS * CONSUMER_REGISTERS <=
                  (1 + CONSUMER_GROUPS) * (65536 / THREADS / 8 * 8),
              "growing would hang");
static_assert(TOKENS % SPLITS == 0, "each block of a cluster ends as many rows");
static_assert(TOKENS * PITCH * 4 <= MEMORY.scales, "sums lie where operands were");
static_assert(MEMORY.bytes <= SHARED_MAX, "227 KB is all a block can have");

extern __shared__ __align__(1024) unsigned char s_memory[]; /* the swizzle requires slots aligned to 1024 bytes */

DEVICE u32 a_slot(u32 slot) { return shared_address(s_memory) + slot * MEMORY.slot_bytes; }
DEVICE u32 w_slot(u32 slot) { return a_slot(slot) + MEMORY.a_bytes; }
DEVICE u32 scale_slot(u32 slot) { return shared_address(s_memory) + MEMORY.scales + slot * MEMORY.scale_bytes; }
DEVICE u32 arrived(u32 slot) { return shared_address(s_memory) + MEMORY.barriers + slot * 8; }
DEVICE u32 released(u32 slot) { return arrived(STAGES + slot); }
DEVICE u32 sum_address(int token, int column) { return shared_address(s_memory) + (token * PITCH + column) * 4; }

#include "product/hopper/pipeline_cursor.cuh"

/* The block's part of the product. */
struct tile {
    i32 token, column, first_step, steps;
    DEVICE tile(const arguments &p)
        : token(blockIdx.y * TOKENS), column(blockIdx.x / SPLITS * ROWS),
          first_step(blockIdx.x % SPLITS * (i32)p.steps_per_split) {
        const i32 left = (i32)p.steps - first_step;
        steps = left < (i32)p.steps_per_split ? left : (i32)p.steps_per_split;
    }
};

/* ---- The producer ---- */

DEVICE u32 duplicate(u16 bits) { return (IS_NEGATIVE ? bits ^ 0x8000u : (u32)bits) * 0x10001u; }

/* The scale as a float for sums, or as a pair for weights. A template, so that scales of other types are not
   compiled. */
template <class S> DEVICE u32 scale_word(S scale) {
    if constexpr (SCALES_SUMS)
        return __float_as_uint((IS_NEGATIVE ? -UNIT : UNIT) * to_float(scale));
    else
        return numbers::times_unit(duplicate(scale.bits), factor_t{});
}

/* The scales of a step, ROWS / 128 per thread. Elements outside repeat the last one; their results are not used. */
struct step_scales {
    scale_t at[SCALES][ROWS / 128];
    DEVICE void fetch(const arguments &p, const u32 (&column)[ROWS / 128], i32 step) {
#pragma unroll
        for (int i = 0; i < SCALES; ++i) {
            const i32 k = step * STEP + i * (STEP / SCALES);
            const u32 along =
                divide((u32)(k < (i32)p.k_count ? k : (i32)p.k_count - 1), p.scale_group) * (u32)p.scale_k;
#pragma unroll
            for (int n = 0; n < ROWS / 128; ++n)
                at[i][n] = p.scale[column[n] + along];
        }
    }
    DEVICE void store(u32 slot) const {
#pragma unroll
        for (int i = 0; i < SCALES; ++i)
#pragma unroll
            for (int n = 0; n < ROWS / 128; ++n)
                store_shared(scale_slot(slot) + (i * ROWS + n * 128 + threadIdx.x) * 4,
                             __uint_as_float(scale_word(at[i][n])));
    }
};

DEVICE void fill_weights(const arguments &p, const tile &tile, i32 step, u32 slot) {
    arrive_expecting(arrived(slot), MEMORY.slot_bytes); /* boxes that extend past an edge still count in full */
    load_box(w_slot(slot), p.w_map, arrived(slot), (tile.first_step + step) * (i32)MEMORY.w_row, tile.column);
}
DEVICE void fill_a(const arguments &p, const tile &tile, i32 step, u32 slot) {
#pragma unroll
    for (int box = 0; box < 2; ++box)
        load_box(a_slot(slot) + box * MEMORY.a_box, p.a_map, arrived(slot), (tile.first_step + step) * STEP + box * 64,
                 tile.token);
}

DEVICE void load_tiles(const arguments &p, const tile &tile) {
    constexpr int AHEAD = SCALES < 4 ? 2 : 1; /* steps whose scales are in flight */
    const bool is_first = threadIdx.x == 0;
    for (i32 step = 0; step < STAGES && step < tile.steps && is_first; ++step)
        fill_weights(p, tile, step, step);
    step_scales scales[AHEAD];
    u32 column[ROWS / 128];
#pragma unroll
    for (int n = 0; n < ROWS / 128; ++n) {
        const u32 at = tile.column + n * 128 + threadIdx.x;
        column[n] = divide(at < (u32)p.columns ? at : (u32)p.columns - 1, p.scale_block) * (u32)p.scale_row;
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
        scales[i].fetch(p, column, tile.first_step + i);
    wait_for_previous_kernel(); /* it repacked A */
    for (i32 step = 0; step < STAGES && step < tile.steps && is_first; ++step)
        fill_a(p, tile, step, step);
    __syncwarp();
    pipeline_cursor fill;
    for (i32 step = 0; step < tile.steps; step += AHEAD)
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            if (step + i >= tile.steps)
                break;
            if (step + i >= STAGES) {
                wait(released(fill.slot), fill.phase ^ 1);
                if (is_first) {
                    publish_to_async_proxy(); /* order the consumers' reads before the loads that overwrite them */
                    fill_weights(p, tile, step + i, fill.slot);
                    fill_a(p, tile, step + i, fill.slot);
                }
                __syncwarp();
            }
            scales[i].store(fill.slot);
            arrive(arrived(fill.slot));
            scales[i].fetch(p, column, tile.first_step + step + i + AHEAD);
            fill.advance();
        }
}

/* ---- The consumers ---- */

using sums = sum_t[TOKENS / 2]; /* a thread's part of [64, TOKENS] */
using pairs = u32[2][4];        /* weights of two products */

/* Returns the rows of a lane's weights and scales: lane / 4 and lane / 4 + 8 of its warp's 16. */
DEVICE u32 lane_row(u32 warp, int i) { return warp * 16 + i * 8 + lane_index() / 4; }

DEVICE void read_weights(u32 (&r_w)[2][WORDS], u32 slot, u32 warp) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int c = 0; c < WORDS / 4; ++c) {
            const u32 row = lane_row(warp, i), chunk = lane_index() % 4 * (WORDS / 4) + c;
            const words r =
                load_words(w_slot(slot) + row * MEMORY.w_row + (MEMORY.w_row == 128 ? chunk ^ row % 8 : chunk) * 16);
#pragma unroll
            for (int e = 0; e < 4; ++e)
                r_w[i][c * 4 + e] = r.at[e];
        }
}

DEVICE void read_scales(float (&r_scale)[2], u32 slot, u32 warp) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
        r_scale[i] = load_shared(scale_slot(slot) + (lane_index() % 4 * SCALES / 4 * ROWS + lane_row(warp, i)) * 4);
}

DEVICE void unpack(pairs &r_a, const u32 (&r_w)[2][WORDS], int part, const float (&r_scale)[2]) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            u32 pair = numbers::pair(r_w[i][part * PART_WORDS + e / numbers::PAIRS], e % numbers::PAIRS, factor_t{});
            if constexpr (!SCALES_SUMS)
                pair = multiply_add(pair, __float_as_uint(r_scale[i]), MINUS_ZEROS, factor_t{});
            r_a[e / 2][e % 2 * 2 + i] = pair;
        }
}

DEVICE void pin_registers(pairs &r_a) { /* keeps the registers until the products that read them have finished */
#pragma unroll
    for (int i = 0; i < 8; ++i)
        fence_register(r_a[i / 4][i % 4]);
}

/* Issues the products of a part of a step. */
DEVICE void multiply_part(sums &r_sum, const pairs &r_a, u64 b, int part, bool adds) {
    mma_fence();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int number = part * 2 + i; /* within the step */
        multiply_accumulate(r_sum, r_a[i], b + number / 4 * (MEMORY.a_box >> 4) + number % 4 * 2, number > 0 || adds);
    }
    mma_commit();
}

/* Stores a warp's sums where the blocks that share k read them. */
DEVICE void store_sums(const sums &r_c, u32 warp) {
#pragma unroll
    for (int i = 0; i < TOKENS / 2; ++i)
        store_shared(sum_address(i / 4 * 8 + lane_index() % 4 * 2 + i % 2, lane_row(warp, i / 2 % 2)), r_c[i]);
}

/* Unpacks one part ahead: during the last part of a step, the first one of the next step. */
DEVICE void multiply_tile(const tile &tile, u32 warp) {
    sums r_c, r_step;
    sums &r_sum = SCALES_SUMS ? r_step : r_c;
    u32 r_w[2][WORDS];
    float r_scale[2];
    pairs r_a[2];
    pipeline_cursor use;
#pragma unroll
    for (int i = 0; i < TOKENS / 2 && SCALES_SUMS; ++i)
        r_c[i] = 0;
    wait(arrived(0), 0);
    read_weights(r_w, 0, warp);
    read_scales(r_scale, 0, warp);
    unpack(r_a[0], r_w, 0, r_scale);
    for (i32 step = 0; step < tile.steps; ++step) {
        const u32 slot = use.slot;
        const u64 b = operand(a_slot(slot), 0);
        use.advance();
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            pairs &r_next = r_a[(part + 1) % 2];
            multiply_part(r_sum, r_a[part % 2], b, part, !SCALES_SUMS && step > 0);
            if (part + 1 == PARTS) {
                if (step + 1 < tile.steps)
                    wait(arrived(use.slot), use.phase); /* otherwise the values read here are not used */
                read_weights(r_w, use.slot, warp);
                read_scales(r_scale, SCALES_SUMS ? slot : use.slot, warp);
            }
            mma_wait<1>();
            if (part > 0)
                pin_registers(r_next);
            unpack(r_next, r_w, (part + 1) % PARTS, r_scale);
        }
        mma_wait<0>();
        pin_registers(r_a[(PARTS - 1) % 2]);
        __syncwarp();
        if (lane_index() == 0)
            arrive(released(slot));
#pragma unroll
        for (int i = 0; i < TOKENS / 2; ++i) {
            fence_register(r_sum[i]);
            if constexpr (SCALES_SUMS)
                r_c[i] += r_step[i] * r_scale[i / 2 % 2];
        }
    }
    sync_threads(1, CONSUMER_THREADS); /* no thread reads operands any more */
    store_sums(r_c, warp);
}

/* ---- The epilogue ---- */

DEVICE void add_sums(run<sum_t, RUN> &sum, u32 address) {
    if constexpr (RUN == 4) {
        const words r = load_words_of_peer(address);
#pragma unroll
        for (int e = 0; e < 4; ++e)
            sum.at[e] += __uint_as_float(r.at[e]);
    } else {
#pragma unroll
        for (int e = 0; e < RUN; ++e)
            sum.at[e] += load_of_peer(address + e * 4);
    }
}

DEVICE void run_epilogue(const arguments &p, const tile &tile) {
    const int first = blockIdx.x % SPLITS * SHARE;
    for (int at = threadIdx.x - 128; at < SHARE * (ROWS / RUN); at += CONSUMER_THREADS) {
        const int token = first + at / (ROWS / RUN), column = at % (ROWS / RUN) * RUN;
        run<sum_t, RUN> sum = {};
#pragma unroll
        for (int block = 0; block < SPLITS; ++block)
            add_sums(sum, peer_address(sum_address(token, column), block));
        if (tile.token + token < (i32)p.rows && tile.column + column < (i32)p.columns)
            epilogue(p, 0, tile.token + token, tile.column + column, sum);
    }
}

/* Synchronises the threads or blocks that exchange sums: all sums have been stored, or have been read. */
DEVICE void sync_sums() {
    if constexpr (SPLITS > 1)
        cluster_sync();
    else
        sync_threads(1, CONSUMER_THREADS);
}

/* ---- The kernel ---- */

extern "C" __global__ void __launch_bounds__(THREADS, 1) weight_only_sm90(const __grid_constant__ arguments p) {
    const u32 warp = warp_index();
    const tile tile(p);
    if (warp == 0 && elect_one()) {
        prefetch_map(p.w_map);
        prefetch_map(p.a_map);
        for (u32 slot = 0; slot < STAGES; ++slot) {
            barrier_init(arrived(slot), 1 + 128); /* the announcement of one thread, and the scales of each thread */
            barrier_init(released(slot), CONSUMER_THREADS / 32);
        }
        barrier_init_fence();
    }
    __syncthreads();
    let_next_kernel_start(); /* its prologue may run now; it waits before it accesses memory */
    if (warp < 4) {
        shrink_registers<PRODUCER_REGISTERS>();
        load_tiles(p, tile);
        __syncwarp();
        if constexpr (SPLITS > 1) {
            cluster_sync();
            cluster_sync();
        } /* matches the calls of the consumers */
    } else {
        grow_registers<CONSUMER_REGISTERS>();
        multiply_tile(tile, warp - 4);
        wait_for_previous_kernel(); /* it ended long ago; required before its results are read */
        sync_sums();
        run_epilogue(p, tile);
        if constexpr (SPLITS > 1)
            sync_sums(); /* no block may exit while a peer reads its sums */
    }
}
