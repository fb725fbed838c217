/* channels: statistics of channels that lie side by side, and what is made of elements with them   sm_90 on, float sums
   Formula   printed from the graph as for registers.cuh, a row being the positions of a channel: pass<0>::elements
             takes vectors of WIDTH neighbouring channels into their reductions, pass<1>::elements stores results
   Tile      a tile is ACROSS vectors of channels, a batch UNROLL * GROUP positions of it; the blocks of a tile take its
             batches by turns, so that all of them read neighbours at a time. A multiprocessor has one block
   Roles     THREADS consumers calculate; a producer, one thread of another warp, asks the copy engine for batches
   Pipeline  pass 0    STAGES batches at a time, from the last position to the first; what it ends with stays
             meet      the tile's blocks leave partial results in the workspace, wait for all, and join them in order
             pass 1    what stayed; the stages of the first REFILLED of it take the other batches, the latest first, and
                       what is left of it comes between these, so that memory reads and writes at once
   Rows      numbers of a channel are made by one thread and handed on in shared memory: code that runs once costs more
             by being fetched than by being run
   L2        copies leave it first, but for a.stay batches that pass 1 begins with
   Meeting   counters live in the module and are 0 between launches: a cooperative launch runs all its blocks at once or
             none, and takes more than half of the multiprocessors, so no two of them overlap
   Limits    ACROSS is a power of two up to 32; a vector has 4 channels at least; pass 0 ends in all reductions
   Params    WIDTH ACROSS GROUP THREADS UNROLL STAGES REFILLED SLOT_VECTORS KEPT_BYTES VECTOR_STEP
   Measured  docs/kernels.md, with what was tried */

constexpr int CHANNELS = ACROSS * WIDTH; // channels of a tile
constexpr int WARPS = THREADS / 32;      // that calculate; one more copies
constexpr int BATCH = UNROLL * GROUP;    // positions
constexpr int BATCH_BYTES = SLOT_VECTORS * KEPT_BYTES;
constexpr int SPARE = THREADS / CHANNELS;
constexpr int JOINERS = SPARE < 1 ? 1 : SPARE > WARPS ? WARPS : SPARE; // threads that join one channel
constexpr int MEETINGS = 256;                                          // tiles, at most

static_assert(THREADS == GROUP * ACROSS && 32 % ACROSS == 0, "a thread keeps to a vector of channels");
static_assert(SLOT_VECTORS == UNROLL * THREADS && (BATCH <= 256 || BATCH % 256 == 0),
              "a stage has a vector for each thread and step");
static_assert(CHANNELS * JOINERS % 32 == 0 && THREADS % CHANNELS == 0, "whole warps join");
static_assert(THREADS % JOINERS == 0 && (JOINERS & (JOINERS - 1)) == 0,
              "threads of a channel exchange values in pairs");
static_assert(REFILLED > 0 && REFILLED < STAGES, "some stages are for what is copied anew");

#include "rows/elements.cuh"

using summed = pass<0>;
using used = pass<1>;

struct alignas(128) line {
    u32 words[32];
};

extern __shared__ line s_stages[];
__shared__ row s_rows[CHANNELS];
__shared__ summed::total s_partials[WARPS][CHANNELS];
__shared__ u64 s_arrived[2][STAGES], s_freed[2][STAGES]; // by pass

__device__ u32 arrived[MEETINGS], gone[MEETINGS];

/* What a block works on, and in it a thread: a vector of channels of a tile, in some batches of positions. */
struct work_tile {
    int tile, block, blocks; // blocks of the tile
    int batches;
    int lane, across;
    bool inside;
    base at;
};

DEVICE work_tile work_of(const arguments &a) {
    work_tile s;
    s.blocks = (int)(gridDim.x / (u32)a.channel_tiles);
    s.tile = (int)(blockIdx.x / (u32)s.blocks);
    s.block = (int)(blockIdx.x % (u32)s.blocks);
    s.batches = ((int)((a.vectors + BATCH - 1) / BATCH) - s.block + s.blocks - 1) / s.blocks;
    s.lane = threadIdx.x / ACROSS;
    s.across = threadIdx.x % ACROSS;
    const i64 strip = (i64)s.tile * ACROSS + s.across;
    s.inside = strip < a.strips;
    s.at = base_of(a, s.inside ? strip : 0);
    return s;
}

/* The first position of the i-th batch of the block. Positions are counted from the end, which was written
   last: the last batch may begin before the first position. */
DEVICE int first_position(const work_tile &s, const arguments &a, int i) {
    return (int)a.vectors - (i * s.blocks + s.block + 1) * BATCH;
}

/* ---- The order of pass 1 ----------------------------------------------------------------------------------------- */

/* Batches that stayed in shared memory, from the last one back. The stages of the first REFILLED of them then take the
   others, between which those that are left are spread. */
struct order {
    int stayed, flowed; // so far
    int stage, phase;   // of the next that flows: how far back, and how often it was filled
};
struct step {
    int batch, stage, phase; // phase -1: it stayed
};

DEVICE int stage_back(const work_tile &s, int k) {
    const int stage = (s.batches - 1) % STAGES - k;
    return stage < 0 ? stage + STAGES : stage;
}

DEVICE step next_step(order &o, const work_tile &s) {
    const int flows = s.batches > STAGES ? s.batches - STAGES : 0, stays = s.batches - flows, last = s.batches - 1;
    const bool is_due = o.stayed < REFILLED || o.flowed * (STAGES - REFILLED + 1) >= (o.stayed - REFILLED + 1) * flows;
    if (o.stayed < stays && is_due) {
        const step t = {last - o.stayed, stage_back(s, o.stayed), -1};
        o.stayed++;
        return t;
    }
    const step t = {last - STAGES - o.flowed, stage_back(s, o.stage), o.phase};
    o.flowed++;
    o.stage = o.stage == REFILLED - 1 ? 0 : o.stage + 1;
    o.phase += o.stage == 0;
    return t;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

DEVICE void fetch(const work_tile &s, const arguments &a, int pass, int stage, int i, u64 policy) {
    const u32 arrival = shared_address(&s_arrived[pass][stage]);
    arrive_expecting(arrival, BATCH_BYTES);
    copy_batch(shared_address(s_stages) + stage * BATCH_BYTES, arrival, a, s.tile * CHANNELS, first_position(s, a, i),
               policy);
}

/* One thread asks for all batches. A stage is filled anew when all warps have read what is in it. */
DEVICE void fetch_all(const work_tile &s, const arguments &a) {
    const u64 leaves = policy_to_leave(), stays = policy_to_stay();
    const int last = s.batches - 1, flows = s.batches - STAGES;
    int stage = 0, phase = 0;
    for (int i = 0; i <= last; i++) {
        if (i >= STAGES)
            wait(shared_address(&s_freed[0][stage]), (phase - 1) & 1);
        fetch(s, a, 0, stage, i, i < flows && i >= flows - (int)a.stay ? stays : leaves);
        stage = stage == STAGES - 1 ? 0 : stage + 1;
        phase += stage == 0;
    }
    stage = phase = 0;
    for (int i = 0; i < flows; i++) {
        const int to = stage_back(s, stage);
        wait(shared_address(&s_freed[1][to]), phase & 1);
        fetch(s, a, 1, to, last - STAGES - i, leaves);
        stage = stage == REFILLED - 1 ? 0 : stage + 1;
        phase += stage == 0;
    }
}

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

template <class P>
DEVICE void load_batch(typename P::inputs (&in)[UNROLL], const work_tile &s, const arguments &a, int i) {
    const int q = first_position(s, a, i) + s.lane;
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (s.inside && q + u * GROUP >= 0)
            P::load(in[u], a, s.at, q + u * GROUP);
}

/* Takes a batch from shared memory to registers, which makes room for the next one. */
DEVICE void take(kept (&own)[UNROLL], int pass, int stage) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        read_kept(own[u], (const char *)s_stages + stage * BATCH_BYTES, u * THREADS + threadIdx.x);
    loads_before_copies();
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        arrive(shared_address(&s_freed[pass][stage]));
}

template <class P, bool WHOLE>
DEVICE void work(typename P::accumulators (&sums)[WIDTH], kept (&own)[UNROLL], const typename P::inputs (&in)[UNROLL],
                 const row *now, const work_tile &s, const arguments &a, int i) {
    const int q = first_position(s, a, i) + s.lane;
    if (!s.inside)
        return;
    if constexpr (WHOLE)
        elements<P, UNROLL>(own, nullptr, in, now, sums, nullptr, a, s.at, q);
    else
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (q + u * GROUP >= 0)
                elements<P, 1>(own + u, nullptr, in + u, now, sums, nullptr, a, s.at, q + u * GROUP);
}

DEVICE void sum_up(summed::accumulators (&sums)[WIDTH], const row *now, const work_tile &s, const arguments &a) {
    const summed::inputs none[UNROLL] = {};
    kept own[UNROLL];
    int stage = 0, phase = 0;
#pragma unroll
    for (int l = 0; l < WIDTH; l++)
        sums[l] = summed::nothing();
    for (int i = 0; i < s.batches - 1; i++) {
        wait(shared_address(&s_arrived[0][stage]), phase & 1);
        take(own, 0, stage);
        work<summed, true>(sums, own, none, now, s, a, i);
        stage = stage == STAGES - 1 ? 0 : stage + 1;
        phase += stage == 0;
    }
    wait(shared_address(&s_arrived[0][stage]), phase & 1);
    take(own, 0, stage);
    work<summed, false>(sums, own, none, now, s, a, s.batches - 1);
}

DEVICE void use_up(const row *now, const work_tile &s, const arguments &a) {
    used::accumulators nothing[WIDTH];
    used::inputs in[UNROLL], next_in[UNROLL];
    kept own[UNROLL];
    order o = {0, 0, 0, 0};
    step t = next_step(o, s);
    load_batch<used>(in, s, a, t.batch);
    for (int i = 0; i < s.batches; i++) {
        const step next = i < s.batches - 1 ? next_step(o, s) : t;
        if (i < s.batches - 1)
            load_batch<used>(next_in, s, a, next.batch);
        if (t.phase >= 0)
            wait(shared_address(&s_arrived[1][t.stage]), t.phase & 1);
        take(own, 1, t.stage);
        if (i > 0)
            work<used, true>(nothing, own, in, now, s, a, t.batch);
        else
            work<used, false>(nothing, own, in, now, s, a, t.batch);
        t = next;
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            in[u] = next_in[u];
    }
}

/* ---- Reductions -------------------------------------------------------------------------------------------------- */

DEVICE void sync_workers() { team_barrier(1, THREADS); }

/* The block's partial results of the tile's channels go to the workspace. */
DEVICE void leave_partials(const summed::accumulators (&sums)[WIDTH], const work_tile &s, const arguments &a) {
#pragma unroll
    for (int l = 0; l < WIDTH; l++) {
        const summed::total sum = reduce_lanes<summed, ACROSS, 16>(summed::finished(sums[l]));
        if (threadIdx.x % 32 < ACROSS)
            s_partials[threadIdx.x / 32][s.across * WIDTH + l] = sum;
    }
    sync_workers();
    summed::total *left = (summed::total *)a.left + (s.tile * s.blocks + s.block) * CHANNELS;
    const int joiner = threadIdx.x % JOINERS;
    for (int c = threadIdx.x / JOINERS; c < CHANNELS; c += THREADS / JOINERS) {
        summed::total sum = summed::none();
        for (int w = joiner; w < WARPS; w += JOINERS)
            sum = summed::joined(sum, s_partials[w][c]);
        sum = reduce_lanes<summed, 1, JOINERS / 2>(sum);
        if (joiner == 0)
            left[c] = sum;
    }
}

/* Until all blocks of the tile have left theirs. */
DEVICE void meet(const work_tile &s) {
    sync_workers();
    if (threadIdx.x == 0) {
        add_released(&arrived[s.tile], 1);
        while (load_acquired(&arrived[s.tile]) < (u32)s.blocks) {
        }
    }
    sync_workers();
}

/* The last block to have seen that all have arrived makes ready for the next launch. */
DEVICE void part(const work_tile &s) {
    if (threadIdx.x == 0 && fetch_and_add(&gone[s.tile], 1) == (u32)s.blocks - 1)
        arrived[s.tile] = gone[s.tile] = 0;
}

/* The channels that threads open and close, one for each; false: there is none. */
DEVICE bool has_channel(const work_tile &s, const arguments &a, int c, base &at) {
    const i64 strip = (i64)s.tile * ACROSS + c / WIDTH;
    if (c >= CHANNELS || strip >= a.strips)
        return false;
    at = base_of(a, strip);
    return true;
}

DEVICE void open_rows(const work_tile &s, const arguments &a) {
    base at;
    if (has_channel(s, a, threadIdx.x, at))
        open_row(s_rows[threadIdx.x], a, at, threadIdx.x % WIDTH);
    sync_workers();
}

/* Joins what all blocks left, in one order whatever their order of arrival. */
DEVICE void close_rows(const work_tile &s, const arguments &a) {
    constexpr int EACH = 4; // partial results under way at once
    const summed::total *left = (const summed::total *)a.left + s.tile * s.blocks * CHANNELS;
    const int joiner = threadIdx.x / CHANNELS, c = threadIdx.x % CHANNELS;
    base at;
    if (joiner < JOINERS) {
        summed::total sum = summed::none();
        for (int b = joiner; b < s.blocks; b += EACH * JOINERS) {
            summed::total some[EACH];
#pragma unroll
            for (int k = 0; k < EACH; k++)
                if (b + k * JOINERS < s.blocks)
                    some[k] = left[(b + k * JOINERS) * CHANNELS + c];
                else
                    some[k] = summed::none();
            sum =
                summed::joined(sum, summed::joined(summed::joined(some[0], some[1]), summed::joined(some[2], some[3])));
        }
        s_partials[joiner][c] = sum;
    }
    sync_workers();
    if (has_channel(s, a, threadIdx.x, at)) {
        summed::total sum = s_partials[0][c];
        for (int j = 1; j < JOINERS; j++)
            sum = summed::joined(sum, s_partials[j][c]);
        summed::close(sum, s_rows[c], a);
        if (s.block == 0)
            store_row(s_rows[c], a, at, c % WIDTH);
    }
    sync_workers();
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(THREADS + 32, 1) channels(const __grid_constant__ arguments a) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * STAGES; i++) {
            barrier_init(shared_address(&s_arrived[0][0] + i), 1);
            barrier_init(shared_address(&s_freed[0][0] + i), WARPS);
        }
        barrier_init_fence();
    }
    __syncthreads();
    await_launch_before();
    const work_tile s = work_of(a);
    if (threadIdx.x >= THREADS) {
        if (threadIdx.x == THREADS)
            fetch_all(s, a);
        return;
    }
    row now[WIDTH];
    summed::accumulators sums[WIDTH];
    open_rows(s, a);
#pragma unroll
    for (int l = 0; l < WIDTH; l++)
        now[l] = s_rows[s.across * WIDTH + l];
    sum_up(sums, now, s, a);
    leave_partials(sums, s, a);
    meet(s);
    close_rows(s, a);
#pragma unroll
    for (int l = 0; l < WIDTH; l++)
        now[l] = s_rows[s.across * WIDTH + l];
    use_up(now, s, a);
    allow_launch_after();
    part(s);
}
