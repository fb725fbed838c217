/* hopper: C[z,i,j] = finish(sum over k of A[z,i,k] * B[z,k,j])              f16, bf16, tf32, fp8 and int8 factors, wgmma; sm_90a
   Formula   load_a and load_b are printed: one bulk tensor copy each, of a plain matrix or of an image (im2col), so that a matmul
             and the three convolutions are one kernel; finish() is what follows the sum
   Tile      a block makes BLOCK_M x BLOCK_N of one batch entry; each math warpgroup owns ROW_BLOCKS * 64 of its rows; k in steps
             of 128 bytes; persistent over tiles
   Turns     ALTERNATES: a tile is one warpgroup's, and two take tiles in turn: one multiplies, at the rate of both, while the other ends its
             tile. multiplied[g]: the last products of a tile of group g are under way, and those of the next tile may follow. One barrier for
             both would not do: where tiles have no step, a warp may be a tile ahead of its group's others, and would take a phase for the one before
   Cluster   CLUSTER blocks stacked along i share the tile of B: each loads its boxes of it and sends them to all
   Roles     warpgroup 0: load_tiles (one thread);   warpgroups 1 .. MATH_GROUPS: multiply_tile, then stage_block or end_block
   Pipeline  loader  |fill 0|fill 1|fill 2|fill 3|fill 0|...   STAGES slots; arrived[s]: slot s is full
             math           |mma 0 |mma 1 |mma 2 |mma 3 |...   finished[s]: slot s may be refilled, in every block of the cluster
   Depth     k is (tap, channel), channels innermost; or, for a filter gradient, the pixels of all images, which of a factor may lie
             in a plane for each image: where both do, images are taps and pixels channels
   Promotion PROMOTES: the tensor core keeps 13 bits below the largest term of a sum of fp8. So it sums one step of one block of
             rows from zero, and floats sum the steps, while another warpgroup multiplies. HAS_SCALES: times the scales of the
             blocks that met, one for each row and one for the tile's columns
   Split     IS_SPLIT: the block sums part of k into the workspace, and combine_splits.cuh finishes; always in the same order
   Parts     PARTS is 2: the two blocks of a cluster sum half of k each of one tile, for one warpgroup's rows of which each receives
             the other's sums, in shared memory, and ends them. Where rows are few, the other factor is read by all multiprocessors
             in tiles wide enough for L2. One tile per block: nothing is left to overlap
   End       one result of 8 to 32 bits (IS_STAGED): finished where the sums lie, through a slab of shared memory per warp, out by TMA
             (STORES_BOXES) or, where rows do not lie evenly, 16 bytes per thread; else quads of lanes exchange sums, so that a
             thread finishes 8 neighbours of one row. No barrier wider than a warp
   Brought   BRINGS: a 16-bit operand that lies like the result comes by TMA into the slabs that the result leaves from, which then are a whole
             tile's, from the first step on; what else sums meet is read ahead of them, as far as registers allow, from the last step on
   Totals    reductions of what is finished, in pairs as sums lie: product/hopper/reductions.cuh; or, TOTALS_OF_SLABS, as it leaves: product/hopper/staged_reductions.cuh.
             combine_partials.cuh brings the blocks' parts together
   Prologue  HAS_PROLOGUE: pointwise operations on A, which goes through registers: product/hopper/prologue.cuh
   Overrides HAS_OVERRIDES: a batch entry uses the first of its rows, columns and depth. Tiles outside take no step, sums outside are 0,
             and of the step in which the depth ends the rest is cleared in shared memory
   Limits    16-byte aligned strides; ragged extents read as zeros; what lies outside C is not finished
   Params    BLOCK_M BLOCK_N ROW_BLOCKS ALTERNATES STAGES CLUSTER PARTS PROMOTES HAS_SCALES SCALE_COLUMNS LOADER_REGISTERS MATH_REGISTERS A_BOXES
             B_BOXES A_SLAB B_SLAB A_STEP B_STEP A_IS_IMAGE DEPTH_IS_PIXELS HAS_TAPS HAS_PHASES HAS_GROUPS HAS_OVERRIDES HAS_PROLOGUE BRINGS
             IS_STAGED STORES_BOXES SLABS_IN_FLIGHT RUN LEAD_IS_ROW ENDS_IN_PAIRS STAYS TOTALS_OF_SLABS IS_SPLIT sum_t index, and multiply_accumulate
             (m64 x BLOCK_N x 32 bytes)
   Tried     L2 policies on A, B and C, 256-byte promotion, k forwards and backwards in turn, clusters of 4, four math warpgroups:
             within noise or slower. Releasing arrivals at peers: half the speed. Sums exchanged in quads for 16-bit results too: 25
             instead of 6 instructions per element, convolutions with few channels 30 % slower. Sharing filters in clusters:
             slower for images. Sharing A in clusters: no gain for few rows. Launching combine_splits.cuh early: 10 % slower. Unsigned indices
             behind the sum: the compiler keeps an address per access, and spills. For few rows: sums that begin at different places of
             the depth in each tile, 1 to 10 % slower; two or four steps loaded together, within noise; two blocks on a multiprocessor,
             2 % slower; two parts where no dimension fits into one tile, slower. Promoting 64 columns while the next 64 are multiplied:
             2 to 6 % slower than all at a time. Scales of blocks that idle warps of the loader bring into shared memory: 2 % slower.
             Bands of tiles of one height for all: 1 to 3 % slower where factors do not stay in L2. One warpgroup a step or two behind
             the other, so that their ends do not meet: within noise, promoting 5 % slower */

constexpr int GROUP_ROWS = ROW_BLOCKS * 64;
constexpr int TILE_GROUPS = BLOCK_M / GROUP_ROWS; /* math warpgroups that share a tile */
constexpr int MATH_GROUPS = ALTERNATES ? 2 : TILE_GROUPS, MATH_WARPS = MATH_GROUPS * 4,
              THREADS = (1 + MATH_GROUPS) * 128;
constexpr int SUM_SPARE_REGISTERS = MATH_REGISTERS - ROW_BLOCKS * BLOCK_N / 2 -
                                    (ALTERNATES    ? 64
                                     : CLUSTER > 1 ? 44
                                                   : 40); /* beside sums and addresses */
#include "product/hopper/reductions.cuh"
#include "product/hopper/staging.cuh"
#include "product/hopper/staged_reductions.cuh"

/* ---- What this kernel demands ---- */

constexpr int STEPS_PER_SLOT = 4; /* products of 32 bytes of k */
constexpr u32 A_BYTES = BLOCK_M * 128, B_BYTES = BLOCK_N * 128;
constexpr u32 SLOT_BYTES = A_BYTES + B_BYTES;
constexpr u32 A_BOX_BYTES = A_BYTES / A_BOXES, B_BOX_BYTES = B_BYTES / B_BOXES;
constexpr u32 STAGING = STAGES * SLOT_BYTES;
constexpr u32 LANDING = STAGING + (IS_STAGED ? MATH_WARPS * SLABS_IN_FLIGHT * TURN_BYTES : 0);
constexpr u32 LANDING_BYTES = PARTS > 1 ? GROUP_ROWS * BLOCK_N * 4 : 0; /* what the other block of a tile sends */
constexpr u32 TAKEN = LANDING + LANDING_BYTES;                          /* totals, of each warp */
constexpr u32 BARRIERS = TAKEN + MATH_WARPS * PARTS_BYTES, BARRIERS_END = BARRIERS + STAGES * 16 +
                                                                          (PARTS > 1    ? 8
                                                                           : ALTERNATES ? 16
                                                                                        : 0);
constexpr int CLUSTER_BLOCKS = CLUSTER * PARTS;

static_assert(!HAS_PROLOGUE || (STORED_BYTES == 2 && !PROMOTES && PARTS == 1), "prologues are of 16 bits");
static_assert(BLOCK_M % GROUP_ROWS == 0 && BLOCK_N % 8 == 0 && BLOCK_N <= 256,
              "wgmma makes 64 rows and up to 256 columns");
static_assert(ENDS_IN_PAIRS || BLOCK_N % 32 == 0, "a quad of lanes finishes 32 columns");
static_assert(COLUMN_TOTALS == 0 || BLOCK_N % 32 == 0, "a warp shares out 32 columns");
static_assert(!HAS_TOTALS || !IS_SPLIT, "parts of sums have no totals");
static_assert(B_BOXES % CLUSTER == 0, "each block of a cluster loads its share of B");
static_assert(PARTS == 1 ||
                  (PARTS == 2 && CLUSTER == 1 && MATH_GROUPS == 2 && !IS_SPLIT && !HAS_PHASES && !HAS_OVERRIDES),
              "each of two blocks ends one warpgroup's rows");
static_assert(!ALTERNATES || (TILE_GROUPS == 1 && PARTS == 1 && !PROMOTES && !HAS_PROLOGUE && !HAS_OVERRIDES),
              "warpgroups in turn meet nowhere");
static_assert(BARRIERS_END + (BRINGS ? MATH_WARPS * 8 : 0) <= 232448, "227 KB is all a block can have");
/* Registers move within what the launch gave this block; beyond it growing never returns. */
static_assert(LOADER_REGISTERS + MATH_GROUPS * MATH_REGISTERS <= (1 + MATH_GROUPS) * (65536 / THREADS / 8 * 8),
              "growing would hang");

extern __shared__ __align__(1024) unsigned char s_memory[]; /* the swizzle needs 1024-byte aligned slots */

DEVICE u32 a_slot(u32 slot) { return shared_address(s_memory) + slot * SLOT_BYTES; }
DEVICE u32 b_slot(u32 slot) { return a_slot(slot) + A_BYTES; }
DEVICE u32 arrived(u32 slot) { return shared_address(s_memory) + BARRIERS + slot * 8; }
DEVICE u32 finished(u32 slot) { return arrived(slot) + STAGES * 8; }
DEVICE u32 landed() { return finished(STAGES); }
DEVICE u32 multiplied(u32 group) { return finished(STAGES) + group * 8; }
DEVICE u32 brought(u32 math_warp) { return shared_address(s_memory) + BARRIERS_END + math_warp * 8; }

struct pipeline_cursor {
    u32 slot = 0, phase = 0;
    DEVICE void advance() {
        if (++slot == STAGES) {
            slot = 0;
            phase ^= 1;
        }
    }
    DEVICE void skip(u32 steps) {
        slot += steps;
        phase ^= slot / STAGES & 1;
        slot %= STAGES;
    }
};

/* ---- Which tile ---- */

struct tile_walk : place {
    i32 tile; /* of a cluster: CLUSTER * BLOCK_M x BLOCK_N */
    DEVICE tile_walk(const arguments &p) : tile(blockIdx.x / CLUSTER_BLOCKS) { locate(p); }
    DEVICE bool more(const arguments &p) const { return tile < (i32)p.tiles; }
    DEVICE void advance(const arguments &p) {
        tile += gridDim.x / CLUSTER_BLOCKS;
        locate(p);
    }

    /* Tiles are numbered by split, batch entry, bands of rows of tiles, columns, rows: what is at work at one time is
       near a square, whose factors stay in L2. Divisions take hundreds of clocks: this is called while others are waited for. */
    DEVICE void locate(const arguments &p) {
        const u32 whole = divide(tile, p.tiles_per_entry), within = tile - whole * p.tiles_per_entry.value;
        split = divide(whole, p.batches);
        z = (index)(whole - split * p.batches.value);
        if constexpr (HAS_PHASES)
            z = (index)p.batches.value - 1 - z; /* those with many taps come last by number: first in time */
        const u32 band = divide(within, p.tiles_per_band), inside = within - band * p.tiles_per_band.value;
        const u32 first = band * (u32)p.band_tiles, left = (u32)p.tiles_m - first;
        const u32 height = left < (u32)p.band_tiles ? left : (u32)p.band_tiles;
        row = (i32)((first + inside % height) * CLUSTER + (CLUSTER > 1 ? cluster_rank() : 0)) * BLOCK_M;
        column = (i32)(inside / height) * BLOCK_N;
        row_end = (i32)p.rows;
        find_entry(p, *this);
    }
    /* All blocks of a cluster take the same steps. */
    DEVICE i32 used_steps() const {
        const i32 first_row = row - (CLUSTER > 1 ? (i32)cluster_rank() * BLOCK_M : 0);
        return first_row < used[0] && column < used[1] ? (used[2] + BLOCK_K - 1) / BLOCK_K : 0;
    }
    DEVICE i32 first_step(const arguments &p) const {
        return PARTS > 1 ? (i32)(cluster_rank() * p.steps_per_split) : IS_SPLIT ? (i32)(split * p.steps_per_split) : 0;
    }
    DEVICE i32 steps(const arguments &p) const {
        const i32 all = HAS_OVERRIDES ? used_steps() : HAS_PHASES ? phase_steps : (i32)p.steps;
        if constexpr (!IS_SPLIT && PARTS == 1)
            return all;
        const i32 left = all - first_step(p);
        return left < (i32)p.steps_per_split ? left : (i32)p.steps_per_split;
    }
};

/* ---- The loader: one thread keeps STAGES slots full ---- */

DEVICE void load_tiles(const arguments &p, tile_walk at) {
    constexpr int B_SHARE = B_BOXES / CLUSTER;
    const int first_box = CLUSTER > 1 ? cluster_rank() * B_SHARE : 0;
    pipeline_cursor fill;
    for (; at.more(p); at.advance(p)) {
        depth k(p, at, at.first_step(p));
        for (i32 step = at.steps(p); step > 0; --step) {
            const u32 a = a_slot(fill.slot), b = b_slot(fill.slot), full = arrived(fill.slot);
            wait(finished(fill.slot), fill.phase ^ 1);
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

#include "product/hopper/prologue.cuh"

/* ---- The math warpgroups ---- */

DEVICE void release_slot(u32 slot) { /* lane i tells block i: this warp has read the slot */
    if (lane_index() < CLUSTER) {
        if constexpr (CLUSTER == 1)
            arrive(finished(slot));
        else
            arrive_at_peer(finished(slot), lane_index());
    }
}

using accumulators = sum_t[ROW_BLOCKS][BLOCK_N / 2]; /* a thread's part of [GROUP_ROWS, BLOCK_N] */

/* Of rows of 128 bytes along k, what lies behind the first `kept` bytes; of slabs, whole rows. */
DEVICE void clear_depth(u32 s, u32 slab, int lines, u32 kept) {
    const u32 thread = threadIdx.x % 128, rows = slab ? lines / 64 * BLOCK_K : lines;
    for (u32 row = thread; row < rows; row += 128)
        for (u32 chunk = slab ? 0 : kept / 16; chunk < 8; ++chunk) {
            const u32 at = s + row * 128 + (chunk ^ row % 8) * 16;
            const i32 left = slab ? row % BLOCK_K < kept / STORED_BYTES ? 16 : 0 : (i32)(kept - chunk * 16);
            words r = load_words_of_many(at);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                r.at[i] &= left >= 4 * i + 4 ? ~0u : left <= 4 * i ? 0 : (1u << (left - 4 * i) * 8) - 1;
            store_words_of_many(at, r);
        }
}

/* The depth in use may end within a step, behind which numbers of any kind are. Both warpgroups clear all of B: before its own
   product each has done so. */
template <class P> DEVICE void clear_unused(const P &p, const tile_walk &tile, u32 slot, int group, i32 step) {
    const i32 kept = tile.used[2] - (tile.first_step(p) + step) * BLOCK_K;
    if (kept >= BLOCK_K || tile.used[2] >= (i32)p.channels)
        return;
    clear_depth(a_slot(slot) + group * GROUP_ROWS * 128, A_SLAB, GROUP_ROWS, (u32)kept * STORED_BYTES);
    clear_depth(b_slot(slot), B_SLAB, BLOCK_N, (u32)kept * STORED_BYTES);
    publish_to_async_proxy();
    sync_threads(1 + group, 128);
}

/* Sums of rows and columns that are not in use. */
DEVICE void clear_outside(sum_t (&r_c)[BLOCK_N / 2], const place &tile, i32 row) {
    if (row + 64 <= tile.used[0] && tile.column + BLOCK_N <= tile.used[1])
        return;
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; ++i) {
        const bool has_row = row + (i32)(warp_index() % 4 * 16 + lane_index() / 4) + i / 2 % 2 * 8 < tile.used[0];
        if (!has_row || tile.column + i / 4 * 8 + (i32)(lane_index() % 4 * 2) + i % 2 >= tile.used[1])
            r_c[i] = 0;
    }
}

/* A slot that has arrived becomes one that can be multiplied. */
template <class P>
DEVICE void ready_slot(const P &p, const pipeline_cursor &use, const tile_walk &tile, int group, i32 step) {
    wait(arrived(use.slot), use.phase);
    if constexpr (HAS_OVERRIDES)
        clear_unused(p, tile, use.slot, group, step);
}

/* Into a warp's slabs, which its results have long left. */
template <class P> DEVICE void bring_operand(const P &p, const place &tile, u32 math_warp) {
    const u32 staging = shared_address(s_memory) + STAGING + math_warp * SLABS_IN_FLIGHT * TURN_BYTES,
              full = brought(math_warp);
    if (lane_index() == 0) {
        wait_stores_read<0>();
        arrive_expecting(full, SLABS_IN_FLIGHT * TURN_BYTES);
#pragma unroll 1
        for (int i = 0; i < SLABS_IN_FLIGHT; ++i) {
            const i32 block = i / (BLOCK_N / SLAB_N),
                      row =
                          tile.row + (i32)(math_warp / 4 % TILE_GROUPS * GROUP_ROWS + math_warp % 4 * 16) + block * 64;
            bring_box(p, tile.z, staging + i * SLAB_BYTES, full, tile.column + i % (BLOCK_N / SLAB_N) * SLAB_N, row);
        }
    }
    __syncwarp();
}

/* To the last products, which are under way; the slot that they read. */
template <class P>
DEVICE u32 multiply_tile(accumulators &r_c, const P &p, pipeline_cursor &use, const tile_walk &tile, u32 math_warp,
                         i32 steps) {
    const int group = math_warp / 4 % TILE_GROUPS;
    u32 previous = 0;
    for (i32 step = 0; step < steps; ++step) {
        ready_slot(p, use, tile, group, step);
        const u64 a = operand(a_slot(use.slot) + group * GROUP_ROWS * 128,
                              A_SLAB); /* [GROUP_ROWS, 128 bytes] or slabs of [k, 64] */
        const u64 b = operand(b_slot(use.slot), B_SLAB);
        mma_fence();
#pragma unroll
        for (int k = 0; k < STEPS_PER_SLOT; ++k)
#pragma unroll
            for (int block = 0; block < ROW_BLOCKS; ++block) /* the first product of a tile overwrites */
                multiply_accumulate(r_c[block], a + (block * 64 * 128 >> 4) + k * A_STEP, b + k * B_STEP, step + k > 0);
        mma_commit();
        if constexpr (BRINGS)
            if (step == 0)
                bring_operand(p, tile, math_warp);
        mma_wait<1>(); /* the previous step is done, this one runs on */
        if (step > 0)
            release_slot(previous);
        previous = use.slot;
        use.advance();
    }
    if (ALTERNATES && lane_index() == 0)
        arrive(multiplied(math_warp / 4));
    return previous;
}

/* The slot is given back before the end of the tile begins: the loader is waiting for it. */
DEVICE void complete_tile(accumulators &r_c, u32 last_slot, i32 steps) {
    mma_wait<0>();
    if (steps > 0)
        release_slot(last_slot);
    stay_in_order();
#pragma unroll
    for (int block = 0; block < ROW_BLOCKS; ++block)
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; ++i)
            settle(r_c[block][i]);
}

/* All of a tile whose A goes through registers, of which two sets take turns: a step is prepared while the one before it is multiplied. */
template <class P>
DEVICE void multiply_prepared(accumulators &r_c, const P &p, pipeline_cursor &use, const tile_walk &tile, u32 math_warp,
                              i32 steps) {
    constexpr int TURNS = 2;
    const int group = math_warp / 4;
    prepared_rows<P> rows(p, tile, tile.row + group * GROUP_ROWS, tile.first_step(p));
    step_of_rows r_a[TURNS];
    u32 previous = 0;
    for (i32 step = 0; step < steps; step += TURNS) {
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn) {
            if (turn > 0 && step + turn >= steps)
                break;
            ready_slot(p, use, tile, group, step + turn);
            rows.take(r_a[turn], p, tile, a_slot(use.slot) + group * GROUP_ROWS * 128);
            const u64 b = operand(b_slot(use.slot), B_SLAB);
            mma_fence();
#pragma unroll
            for (int k = 0; k < STEPS_PER_SLOT; ++k)
#pragma unroll
                for (int block = 0; block < ROW_BLOCKS; ++block)
                    multiply_accumulate(r_c[block], r_a[turn][k][block], b + k * B_STEP, step + turn + k > 0);
            mma_commit();
            if constexpr (BRINGS)
                if (step + turn == 0)
                    bring_operand(p, tile, math_warp);
            mma_wait<1>();
            if (step + turn > 0)
                release_slot(previous);
            previous = use.slot;
            use.advance();
            rows.k.advance(p, tile);
        }
    }
    complete_tile(r_c, previous, steps);
}

/* The scales of the blocks that a step brings together: register 4j + 2h + e of a block is multiplied by the h-th of it and by that
   of its SCALE_COLUMNS columns. They are read two steps ahead, for steps in two turns: the compiler waits for them before it lets the
   tensor core begin. */
template <class P, bool EXIST = HAS_SCALES> struct step_scales {
    static constexpr int TURNS = 2, ROWS = ROW_BLOCKS * 2, COLUMNS = BLOCK_N / SCALE_COLUMNS;
    i32 a_at[ROWS], b_at[COLUMNS], step, until;
    float a[TURNS][ROWS], b[TURNS][COLUMNS], now[COLUMNS][ROWS];
    DEVICE step_scales(const P &p, const place &tile, i32 row, i32 first, i32 steps)
        : step(first), until(first + steps) {
        /* Hides that B has one scale per warp: the compiler would keep it where it must wait for it at once. */
        const i32 nothing = (i32)(lane_index() / ((u32)p.columns + 32));
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
            a_at[i] =
                a_scale_at(p, tile.z, row + i / 2 * 64 + warp_index() % 4 * 16 + lane_index() / 4 + i % 2 * 8, first);
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j)
            b_at[j] = b_scale_at(p, tile.z, tile.column + j * SCALE_COLUMNS, first) + nothing;
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn)
            fetch(p, turn);
    }
    /* Beyond the last step its own again: without a branch, which products under way must not meet. */
    DEVICE void fetch(const P &p, int turn) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
            a[turn][i] = a_scale(p, a_at[i]);
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j)
            b[turn][j] = b_scale(p, b_at[j]);
        ++step;
        const i32 a_step = step < until ? a_scale_step(p, step) : 0, b_step = step < until ? b_scale_step(p, step) : 0;
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
            a_at[i] += a_step;
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j)
            b_at[j] += b_step;
    }
    DEVICE void take(const P &p, int turn) {
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                now[j][i] = a[turn][i] * b[turn][j];
                settle(now[j][i]);
            }
        }
        fetch(p, turn);
    }
    DEVICE float apply(float sum, int block, int i, float r_step) const {
        return sum + r_step * now[i / 4 * 8 / SCALE_COLUMNS][block * 2 + i / 2 % 2];
    }
};
template <class P> struct step_scales<P, false> {
    static constexpr int TURNS = 1;
    DEVICE step_scales(const P &, const place &, i32, i32, i32) {}
    DEVICE void take(const P &, int) {}
    DEVICE float apply(float sum, int, int, float r_step) const { return sum + r_step; }
};

/* The same, by sums of one step and one block at a time. */
template <class P>
DEVICE void multiply_promoting(accumulators &r_c, const P &p, pipeline_cursor &use, const tile_walk &tile, int group,
                               i32 steps) {
    constexpr int TURNS = step_scales<P>::TURNS;
    step_scales<P> scales(p, tile, tile.row + group * GROUP_ROWS, tile.first_step(p), steps);
#pragma unroll
    for (int block = 0; block < ROW_BLOCKS; ++block)
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; ++i)
            r_c[block][i] = 0;
    for (i32 step = 0; step < steps; step += TURNS) {
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn) {
            if (turn > 0 && step + turn >= steps)
                break;
            sum_t r_step[BLOCK_N / 2];
            ready_slot(p, use, tile, group, step + turn);
            const u64 a = operand(a_slot(use.slot) + group * GROUP_ROWS * 128, A_SLAB),
                      b = operand(b_slot(use.slot), B_SLAB);
#pragma unroll
            for (int block = 0; block < ROW_BLOCKS; ++block) {
                mma_fence();
#pragma unroll
                for (int k = 0; k < STEPS_PER_SLOT; ++k)
                    multiply_accumulate(r_step, a + (block * 64 * 128 >> 4) + k * A_STEP, b + k * B_STEP, k > 0);
                mma_commit();
                if (block == 0)
                    scales.take(p, turn);
                mma_wait<0>();
                if (block == ROW_BLOCKS - 1)
                    release_slot(use.slot);
#pragma unroll
                for (int i = 0; i < BLOCK_N / 2; ++i) {
                    settle(r_step[i]);
                    r_c[block][i] = scales.apply(r_c[block][i], block, i, r_step[i]);
                }
            }
            use.advance();
        }
    }
}

/* What becomes of a run of sums: finish() of what fetch() read, or a place in the workspace. A template, so that what was not
   printed is not looked up. */
template <class P, bool SPLIT = IS_SPLIT> struct ending {
    using fetched = decltype(fetch(*(const P *)0, index(0), index(0), index(0)));
    static DEVICE fetched read(const P &p, const place &at, i32 row, i32 column) { return fetch(p, at.z, row, column); }
    static DEVICE void write(const P &p, const place &at, i32 row, i32 column, const run<sum_t, RUN> &sum,
                             const fetched &in) {
        finish(p, at.z, row, column, sum, in);
    }
};
template <class P> struct ending<P, true> {
    struct fetched {};
    static DEVICE fetched read(const P &, const place &, i32, i32) { return {}; }
    static DEVICE void write(const P &p, const place &at, i32 row, i32 column, const run<sum_t, RUN> &sum,
                             const fetched &) {
        const i64 entry = (i64)at.split * p.batches.value + at.z;
        const i64 to =
            LEAD_IS_ROW ? (entry * p.columns + column) * p.rows + row : (entry * p.rows + row) * p.columns + column;
        store_run<sum_t, RUN>(p.partial + to, sum);
    }
};

/* A thread ends its sums in pieces of neighbours: 8 of a row, after an exchange in its quad; or the pairs as they lie. */
constexpr int PIECE = ENDS_IN_PAIRS ? 2 : 8, PIECES = BLOCK_N / 2 / PIECE, RUNS = PIECE / RUN;
/* How many pieces' operands are read ahead of what is finished: what registers allow. */
constexpr int PIECES_AHEAD = SPARE_REGISTERS >= 80 && PIECES % 4 == 0 ? 4 : SPARE_REGISTERS >= 50 ? 2 : 1;

/* Register 4j + 2h + e is row 16 * warp + lane / 4 + 8h, column 8j + 2 (lane % 4) + e. */
struct piece {
    i32 row, column;
    DEVICE piece(i32 block_row, i32 block_column, int number)
        : row(block_row + (warp_index() % 4) * 16 + lane_index() / 4 + number % 2 * 8),
          column(block_column + number / 2 * (ENDS_IN_PAIRS ? 8 : 32) + lane_index() % 4 * PIECE) {}
    template <class P> DEVICE bool is_inside(const P &p, const place &at, int r) const {
        return row < at.row_end && column + r * RUN < (i32)p.columns;
    }
};

/* Before: slot s of lane q in a quad is pair q of octet s. After: slot s of lane q is pair s of octet q, 8 neighbours in all. */
DEVICE void gather_octet(sum_t (&pair)[4][2]) {
#pragma unroll
    for (int bit = 1; bit <= 2; bit <<= 1)
#pragma unroll
        for (int s = 0; s < 4; ++s)
#pragma unroll
            for (int e = 0; e < 2 && !(s & bit); ++e) {
                const bool is_high = lane_index() & bit;
                const sum_t received = __shfl_xor_sync(~0u, is_high ? pair[s][e] : pair[s | bit][e], bit);
                (is_high ? pair[s][e] : pair[s | bit][e]) = received;
            }
}

/* The sums of a piece, neighbours side by side. */
DEVICE void take_piece(sum_t (&sums)[PIECE], const sum_t (&r_c)[BLOCK_N / 2], int number) {
    if constexpr (ENDS_IN_PAIRS) {
        sums[0] = r_c[number * 2];
        sums[1] = r_c[number * 2 + 1];
    } else {
        sum_t octet[4][2];
#pragma unroll
        for (int i = 0; i < 8; ++i)
            octet[i / 2][i % 2] = r_c[(number / 2 * 4 + i / 2) * 4 + number % 2 * 2 + i % 2];
        gather_octet(octet);
#pragma unroll
        for (int i = 0; i < 8; ++i)
            sums[i] = octet[i / 2][i % 2];
    }
}

template <class P, class T>
DEVICE void end_block(const sum_t (&r_c)[BLOCK_N / 2], const P &p, const place &at, i32 row, T &taken) {
#pragma unroll
    for (int first = 0; first < PIECES; first += PIECES_AHEAD) {
        typename ending<P>::fetched in[PIECES_AHEAD][RUNS];
#pragma unroll
        for (int i = 0; i < PIECES_AHEAD * RUNS; ++i) {
            const piece to(row, at.column, first + i / RUNS);
            if (to.is_inside(p, at, i % RUNS))
                in[i / RUNS][i % RUNS] = ending<P>::read(p, at, to.row, to.column + i % RUNS * RUN);
        }
#pragma unroll
        for (int i = 0; i < PIECES_AHEAD; ++i) {
            const piece to(row, at.column, first + i);
            sum_t sums[PIECE];
            take_piece(sums, r_c, first + i);
#pragma unroll
            for (int r = 0; r < RUNS; ++r) {
                run<sum_t, RUN> sum;
#pragma unroll
                for (int e = 0; e < RUN; ++e)
                    sum.at[e] = sums[r * RUN + e];
                if constexpr (HAS_TOTALS) {
                    decltype(finish(p, at.z, to.row, to.column, sum, in[i][r])) out = {};
                    if (to.is_inside(p, at, r))
                        out = finish(p, at.z, to.row, to.column + r * RUN, sum, in[i][r]);
                    taken.take(p, at.z, to.row, to.column + r * RUN, (first + i) / 2, (first + i) % 2, out, r * RUN);
                } else if (to.is_inside(p, at, r)) {
                    ending<P>::write(p, at, to.row, to.column + r * RUN, sum, in[i][r]);
                }
            }
        }
    }
}

/* ---- The two blocks of a tile: warpgroup g of the tile ends in block g; of two sums either may come first ---- */

DEVICE u32 word_of(float sum) { return __float_as_uint(sum); }
DEVICE u32 word_of(i32 sum) { return (u32)sum; }
DEVICE void add_word(float &sum, u32 word) { sum += __uint_as_float(word); }
DEVICE void add_word(i32 &sum, u32 word) { sum += (i32)word; }
DEVICE u32 landing_place() { return shared_address(s_memory) + LANDING + threadIdx.x % 128 * 16; }

DEVICE void send_sums(const accumulators &r_c, u32 block) {
    const u32 there = peer_address(landing_place(), block), full = peer_address(landed(), block);
#pragma unroll
    for (int i = 0; i < ROW_BLOCKS * BLOCK_N / 2; i += 4) {
        const sum_t *r = &r_c[i / (BLOCK_N / 2)][i % (BLOCK_N / 2)];
        send_to_peer(there + i / 4 * 2048, full, words{{word_of(r[0]), word_of(r[1]), word_of(r[2]), word_of(r[3])}});
    }
}

DEVICE void add_sums(accumulators &r_c) {
    wait(landed(), 0);
#pragma unroll
    for (int i = 0; i < ROW_BLOCKS * BLOCK_N / 2; i += 4) {
        const words sums = load_words(landing_place() + i / 4 * 2048);
#pragma unroll
        for (int e = 0; e < 4; ++e)
            add_word(r_c[i / (BLOCK_N / 2)][i % (BLOCK_N / 2) + e], sums.at[e]);
    }
}

/* What is read ahead of the end of a tile, while its last products are under way. */
template <class P, bool STAGED = IS_STAGED> struct tile_end {
    operands_ahead<P, ROW_BLOCKS> ahead;
    DEVICE tile_end(const P &p, const place &at, i32 warp_row) : ahead(p, at.z, warp_row, at.row_end, at.column) {}
};
template <class P> struct tile_end<P, false> {
    DEVICE tile_end(const P &, const place &, i32) {}
};

template <class P, class T> DEVICE void multiply_tiles(const P &p, tile_walk at, u32 math_warp, T &taken) {
    accumulators r_c;
    pipeline_cursor use;
    const u32 staging = shared_address(s_memory) + STAGING + math_warp * SLABS_IN_FLIGHT * TURN_BYTES;
    u32 turn = 0, tiles_brought = 0; /* which slab of the warp is next, over all tiles */
    for (u32 number = 0; at.more(p); at.advance(p), ++number) {
        const i32 steps = at.steps(p);
        if (ALTERNATES && number % 2 != math_warp / 4) { /* the other warpgroup's tile */
            use.skip(steps);
            continue;
        }
        if (ALTERNATES && number > 0)
            wait(multiplied(1 - math_warp / 4), (number - 1) / 2 % 2);
        if constexpr (BRINGS)
            if (PROMOTES || steps <= 0)
                bring_operand(p, at, math_warp);
        u32 last_slot = 0;
        if constexpr (PROMOTES)
            multiply_promoting(r_c, p, use, at, math_warp / 4, steps);
        else if constexpr (HAS_PROLOGUE)
            multiply_prepared(r_c, p, use, at, math_warp, steps);
        else
            last_slot = multiply_tile(r_c, p, use, at, math_warp, steps);
        const i32 first_row = at.row + math_warp / 4 % TILE_GROUPS * GROUP_ROWS;
        tile_end<P> end(p, at, first_row + math_warp % 4 * 16);
        if constexpr (!PROMOTES && !HAS_PROLOGUE)
            complete_tile(r_c, last_slot, steps);
        if constexpr (BRINGS)
            wait(brought(math_warp), tiles_brought++ & 1);
        if constexpr (PARTS > 1) {
            cluster_wait(); /* for the other block's barriers, which have long been there */
            if (math_warp / 4 != cluster_rank()) {
                send_sums(r_c, math_warp / 4);
                break;
            }
            add_sums(r_c);
        }
#pragma unroll
        for (int block = 0; block < ROW_BLOCKS; ++block) {
#pragma unroll
            for (int i = 0; i < BLOCK_N / 2 && (HAS_PHASES || HAS_OVERRIDES); ++i)
                if (steps <= 0)
                    r_c[block][i] = 0; /* nothing is summed */
            const i32 row = first_row + block * 64;
            if constexpr (HAS_OVERRIDES)
                clear_outside(r_c[block], at, row);
            if (HAS_GROUPS && row >= at.row_end)
                continue;
            if constexpr (IS_STAGED)
                stage_block(r_c[block], p, end.ahead, block, staging, turn, taken);
            else
                end_block(r_c[block], p, at, row, taken);
            taken.end_rows(p, at, row + math_warp % 4 * 16);
        }
        taken.end_tile(p, at, math_warp / 4);
        if constexpr (PARTS > 1)
            break;
    }
    if constexpr (IS_STAGED)
        wait_stores_read<0>(); /* shared memory must outlive the stores that read it */
}

/* The math warps' work, with the totals that they take on the way. */
template <class P> DEVICE void take_totals(const P &p, const tile_walk &at, u32 math_warp) {
    const u32 s_parts = shared_address(s_memory) + TAKEN + math_warp * PARTS_BYTES;
    if constexpr (TOTALS_OF_SLABS) {
        slab_totals<P> taken(s_parts);
        multiply_tiles(p, at, math_warp, taken);
        taken.end_all(p, at.column, math_warp);
    } else if constexpr (HAS_TOTALS) {
        taken_totals<P> taken(s_parts);
        multiply_tiles(p, at, math_warp, taken);
        taken.end_all(p, at.column, math_warp);
    } else {
        no_totals nothing;
        multiply_tiles(p, at, math_warp, nothing);
    }
}

/* ---- The kernel ---- */

extern "C" __global__ void __launch_bounds__(THREADS, 1) hopper(const __grid_constant__ arguments p) {
    const u32 warp = warp_index();
    if (warp == 0 && elect_one()) {
        prefetch_map(p.a_map);
        prefetch_map(p.b_map);
        for (u32 slot = 0; slot < STAGES; ++slot) {
            barrier_init(arrived(slot), 1); /* the loader, plus SLOT_BYTES from up to CLUSTER loaders */
            barrier_init(finished(slot),
                         CLUSTER * TILE_GROUPS * 4); /* every math warp that reads what this block loads */
        }
        for (u32 group = 0; group < 2 && ALTERNATES; ++group)
            barrier_init(multiplied(group), 4);
        for (u32 math_warp = 0; math_warp < MATH_WARPS && BRINGS; ++math_warp)
            barrier_init(brought(math_warp), 1);
        if constexpr (PARTS > 1) {
            barrier_init(landed(), 1);
            arrive_expecting(landed(), LANDING_BYTES);
        }
        barrier_init_fence();
    }
    if constexpr (CLUSTER_BLOCKS > 1) {
        __syncwarp();
        cluster_arrive_relaxed();
    }
    if constexpr (HAS_GROUPS || HAS_OVERRIDES)
        wait_for_previous_kernel(); /* where tiles are is in memory */
    const tile_walk at(p);
    if constexpr (CLUSTER > 1)
        cluster_wait();
    else
        __syncthreads();
    let_next_kernel_start(); /* its prologue may run now; it waits before it touches memory */
    wait_for_previous_kernel();
    if (warp < 4) {
        shrink_registers<LOADER_REGISTERS>();
        if (warp == 0 && elect_one())
            load_tiles(p, at);
        if constexpr (PARTS > 1) {
            __syncwarp();
            cluster_wait();
        }
    } else {
        grow_registers<MATH_REGISTERS>();
        take_totals(p, at, warp - 4);
    }
    if constexpr (CLUSTER > 1) {
        __syncwarp();
        cluster_sync();
    } /* nobody leaves while a peer may still write or arrive here */
}
