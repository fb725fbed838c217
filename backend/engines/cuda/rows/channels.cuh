/* channels: statistics of channels-last channels, and elementwise results from them           sm_90 and up, float sums
   Formula   emitted from the graph as for registers.cuh, where a row is the positions of a channel: pass<0>::elements
             adds vectors of WIDTH adjacent channels to their reductions, pass<1>::elements stores the results
   Tile      a tile is ACROSS vectors of channels, a batch UNROLL * GROUP positions of it. The blocks of a tile take
             batches round-robin, so that they read adjacent memory at any time. One block per multiprocessor
   Roles     THREADS consumers compute; the producer, one thread of another warp, issues TMA copies of batches
   Pipeline  pass 0    STAGES batches at a time, from the last position to the first; the last batches stay
             meet      the tile's blocks write partial results to the workspace, wait for all, and combine them in order
             pass 1    processes the resident batches; the stages of the first REFILLED of them load the other batches,
                       the latest first, and the rest of the resident ones come in between, so that reads and writes
                       of memory overlap
   Rows      the per-channel numbers are computed by one thread and shared through shared memory: for code that runs
             once, fetching instructions costs more than executing them
   L2        copies use evict-first, except for the a.stay batches that pass 1 begins with
   Meeting   the counters are module globals and are 0 between launches. A cooperative launch runs all blocks at once or
             none and occupies more than half of the multiprocessors, so two of them never overlap
   Limits    ACROSS is a power of two up to 32; a vector has at least 4 channels; pass 0 closes all reductions
   Params    WIDTH ACROSS GROUP THREADS UNROLL STAGES REFILLED SLOT_VECTORS KEPT_BYTES VECTOR_STEP
   Measured  docs/kernels.md, including the alternatives that were tried */

constexpr int CHANNELS = ACROSS * WIDTH; // channels per tile
constexpr int WARPS = THREADS / 32;      // consumer warps; the producer is one more
constexpr int BATCH = UNROLL * GROUP;    // positions per batch
constexpr int BATCH_BYTES = SLOT_VECTORS * KEPT_BYTES;
constexpr int SPARE = THREADS / CHANNELS;
constexpr int JOINERS = SPARE < 1 ? 1 : SPARE > WARPS ? WARPS : SPARE; // threads that combine one channel
constexpr int MEETINGS = 256;                                          // maximum number of tiles

static_assert(THREADS == GROUP * ACROSS && 32 % ACROSS == 0, "a thread processes one vector of channels");
static_assert(SLOT_VECTORS == UNROLL * THREADS && (BATCH <= 256 || BATCH % 256 == 0),
              "a stage has a vector for each thread and step");
static_assert(CHANNELS * JOINERS % 32 == 0 && THREADS % CHANNELS == 0, "whole warps combine");
static_assert(THREADS % JOINERS == 0 && (JOINERS & (JOINERS - 1)) == 0,
              "threads of a channel exchange values in pairs");
static_assert(REFILLED > 0 && REFILLED < STAGES, "some stages are refilled");

#include "rows/elements.cuh"

using summed = pass<0>;
using used = pass<1>;

struct alignas(128) line {
    u32 words[32];
};

extern __shared__ line s_stages[];
__shared__ row s_rows[CHANNELS];
__shared__ summed::total s_partials[WARPS][CHANNELS];
__shared__ u64 s_arrived[2][STAGES], s_freed[2][STAGES]; // indexed by pass

__device__ u32 arrived[MEETINGS], departed[MEETINGS];

/* The tile that a block works on, and the thread's part of it: one vector of channels, in some batches of positions. */
struct work_tile {
    int tile, block, blocks; // number of blocks of the tile
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

/* First position of the block's i-th batch. Positions are counted from the end, which was written last, so the last
   batch may begin before the first position. */
DEVICE int first_position(const work_tile &s, const arguments &a, int i) {
    return (int)a.vectors - (i * s.blocks + s.block + 1) * BATCH;
}

/* ---- The order of pass 1 ----------------------------------------------------------------------------------------- */

/* Pass 1 visits the batches that stayed in shared memory, from the last one backwards. The stages of the first REFILLED
   of them then load the other batches, and the remaining resident batches are spread between those. */
struct order {
    int stayed, flowed; // batches taken so far: resident ones, and loaded ones
    // of the next loaded batch: its stage, counted backwards from the last one, and how often it was filled
    int stage, phase;
};
struct step {
    int batch, stage, phase; // phase -1: the batch is resident
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

/* One thread issues the copies of all batches. A stage is refilled once all warps have read its contents. */
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

/* Loads a batch from shared memory into registers, which frees its stage for the next one. */
DEVICE void read_batch(kept (&own)[UNROLL], int pass, int stage) {
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
        read_batch(own, 0, stage);
        work<summed, true>(sums, own, none, now, s, a, i);
        stage = stage == STAGES - 1 ? 0 : stage + 1;
        phase += stage == 0;
    }
    wait(shared_address(&s_arrived[0][stage]), phase & 1);
    read_batch(own, 0, stage);
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
        read_batch(own, 1, t.stage);
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

/* Writes the block's partial results of the tile's channels to the workspace. */
DEVICE void store_partials(const summed::accumulators (&sums)[WIDTH], const work_tile &s, const arguments &a) {
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

/* Waits until all blocks of the tile have written their partial results. */
DEVICE void wait_for_tile(const work_tile &s) {
    sync_workers();
    if (threadIdx.x == 0) {
        add_released(&arrived[s.tile], 1);
        while (load_acquired(&arrived[s.tile]) < (u32)s.blocks) {
        }
    }
    sync_workers();
}

/* The last block that has seen all arrivals resets the counters for the next launch. */
DEVICE void reset_counters(const work_tile &s) {
    if (threadIdx.x == 0 && fetch_and_add(&departed[s.tile], 1) == (u32)s.blocks - 1)
        arrived[s.tile] = departed[s.tile] = 0;
}

/* True if thread c has a channel to open and close; each thread handles at most one. */
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

/* Combines the partial results of all blocks in a fixed order, independent of their arrival. */
DEVICE void close_rows(const work_tile &s, const arguments &a) {
    constexpr int EACH = 4; // partial results in flight at once
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
    store_partials(sums, s, a);
    wait_for_tile(s);
    close_rows(s, a);
#pragma unroll
    for (int l = 0; l < WIDTH; l++)
        now[l] = s_rows[s.across * WIDTH + l];
    use_up(now, s, a);
    allow_launch_after();
    reset_counters(s);
}
