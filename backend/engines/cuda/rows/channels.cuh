/* channels: statistics of channels that lie side by side, and what is made of elements with them     sm_90 on, float sums
   Formula   printed from the graph as rows.cuh has it, a row being the places of a channel: pass<0>::elements takes runs
             of RUN neighbouring channels into their totals, pass<1>::elements stores results
   Tile      a slab is ACROSS runs of channels, a batch UNROLL * TEAM places of it; the blocks of a slab take its batches
             by turns, so that all of them read neighbours at a time. A multiprocessor has one block
   Roles     THREADS threads calculate; one of another warp asks the copy engine for batches
   Pipeline  pass 0    a ring of DEPTH batches, from the last place to the first; what it ends with stays
             meet      the slab's blocks leave totals in the workspace, wait for all, and join them in one order
             pass 1    what stayed; the slots of the first FLOW of it take the other batches, the latest first, and
                       what is left of it comes between these, so that memory reads and writes at once
   Rows      numbers of a channel are made by one thread and handed on in shared memory: code that runs once costs more by
             being fetched than by being run
   Cache     copies leave the second cache first, but for a.stay batches that pass 1 begins with
   Meeting   counters live in the module and are 0 between launches: a cooperative launch runs all its blocks at once or
             none, and takes more than half of the multiprocessors, so no two of them overlap
   Limits    ACROSS is a power of two up to 32; a run has 4 channels at least; all totals are closed by pass 0
   Params    RUN ACROSS TEAM THREADS UNROLL DEPTH FLOW SLOTS HELD_BYTES BETWEEN
   Measured  H200, bf16: 128x64x112x112 forward 151 us, backward 239; 128x256x56x56 151 and 238; 128x2048x7x7 18.6 and 28
   Tried     (H200) each thread copying its own runs: 154 us, not 151; one of the threads that calculate asking for copies:
             168; means joined by Chan's formula, and rows opened by every thread: 8 us more at the meeting; batches that
             stay in registers: 1 us less of 168; half the second cache asked to keep what is more than it holds: backward
             239 -> 254 us; two slabs for a block, one worked on while the other meets: slower; slabs of a line rather than
             two for large x: 155 us, not 151 */

constexpr int WIDTH = ACROSS * RUN;  // channels of a slab
constexpr int WARPS = THREADS / 32;  // that calculate; one more copies
constexpr int BATCH = UNROLL * TEAM; // places
constexpr int BATCH_BYTES = SLOTS * HELD_BYTES;
constexpr int SPARE = THREADS / WIDTH;
constexpr int JOINERS = SPARE < 1 ? 1 : SPARE > WARPS ? WARPS : SPARE; // threads that join totals of one channel
constexpr int MEETINGS = 256;                                          // slabs, at most

static_assert(THREADS == TEAM * ACROSS && 32 % ACROSS == 0, "a thread keeps to a run of channels");
static_assert(SLOTS == UNROLL * THREADS && (BATCH <= 256 || BATCH % 256 == 0),
              "a slot has a run for each thread and step");
static_assert(WIDTH * JOINERS % 32 == 0 && THREADS % WIDTH == 0, "whole warps join");
static_assert(FLOW > 0 && FLOW < DEPTH, "some slots are for what is copied anew");

using summed = pass<0>;
using used = pass<1>;

struct alignas(128) line {
    u32 words[32];
};

extern __shared__ line s_ring[];
__shared__ row s_rows[WIDTH];
__shared__ summed::total s_parts[WARPS][WIDTH];
__shared__ u64 s_arrived[2][DEPTH], s_freed[2][DEPTH]; // by pass

__device__ u32 arrived[MEETINGS], gone[MEETINGS];

/* What a block works on, and in it a thread: a run of channels of a slab, in some batches of places. */
struct duty {
    int slab, block, blocks; // blocks of the slab
    int batches;
    int lane, across;
    bool inside;
    place at;
};

DEVICE duty duty_of(const arguments &a) {
    duty s;
    s.blocks = (int)(gridDim.x / (u32)a.slabs);
    s.slab = (int)(blockIdx.x / (u32)s.blocks);
    s.block = (int)(blockIdx.x % (u32)s.blocks);
    s.batches = ((int)((a.runs + BATCH - 1) / BATCH) - s.block + s.blocks - 1) / s.blocks;
    s.lane = threadIdx.x / ACROSS;
    s.across = threadIdx.x % ACROSS;
    const i64 group = (i64)s.slab * ACROSS + s.across;
    s.inside = group < a.groups;
    s.at = place_of(a, s.inside ? group : 0);
    return s;
}

/* The first place of the i-th batch of the block. Places are counted from the end, which was written last: the last batch
   may begin before the first place. */
DEVICE int first_of(const duty &s, const arguments &a, int i) {
    return (int)a.runs - (i * s.blocks + s.block + 1) * BATCH;
}

/* ---- The order of pass 1 ----------------------------------------------------------------------------------------- */

/* Batches that stayed in shared memory, from the last one back. The slots of the first FLOW of them then take the others,
   between which those that are left are spread. */
struct order {
    int stayed, flowed; // so far
    int slot, round;    // of the next that flows: how far back, and how often it was filled
};
struct turn {
    int batch, slot, round; // round -1: it stayed
};

DEVICE int slot_back(const duty &s, int k) {
    const int slot = (s.batches - 1) % DEPTH - k;
    return slot < 0 ? slot + DEPTH : slot;
}

DEVICE turn next_turn(order &o, const duty &s) {
    const int flows = s.batches > DEPTH ? s.batches - DEPTH : 0, stays = s.batches - flows, last = s.batches - 1;
    const bool is_due = o.stayed < FLOW || o.flowed * (DEPTH - FLOW + 1) >= (o.stayed - FLOW + 1) * flows;
    if (o.stayed < stays && is_due) {
        const turn t = {last - o.stayed, slot_back(s, o.stayed), -1};
        o.stayed++;
        return t;
    }
    const turn t = {last - DEPTH - o.flowed, slot_back(s, o.slot), o.round};
    o.flowed++;
    o.slot = o.slot == FLOW - 1 ? 0 : o.slot + 1;
    o.round += o.slot == 0;
    return t;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

DEVICE void fetch(const duty &s, const arguments &a, int pass, int slot, int i, u64 policy) {
    const u32 arrival = shared_address(&s_arrived[pass][slot]);
    arrive_expecting(arrival, BATCH_BYTES);
    bring(shared_address(s_ring) + slot * BATCH_BYTES, arrival, a, s.slab * WIDTH, first_of(s, a, i), policy);
}

/* One thread asks for all batches. A slot is filled anew when all warps have read what is in it. */
DEVICE void fetch_all(const duty &s, const arguments &a) {
    const u64 leaves = policy_to_leave(), stays = policy_to_stay();
    const int last = s.batches - 1, flows = s.batches - DEPTH;
    int slot = 0, round = 0;
    for (int i = 0; i <= last; i++) {
        if (i >= DEPTH)
            wait(shared_address(&s_freed[0][slot]), (round - 1) & 1);
        fetch(s, a, 0, slot, i, i < flows && i >= flows - (int)a.stay ? stays : leaves);
        slot = slot == DEPTH - 1 ? 0 : slot + 1;
        round += slot == 0;
    }
    slot = round = 0;
    for (int i = 0; i < flows; i++) {
        const int to = slot_back(s, slot);
        wait(shared_address(&s_freed[1][to]), round & 1);
        fetch(s, a, 1, to, last - DEPTH - i, leaves);
        slot = slot == FLOW - 1 ? 0 : slot + 1;
        round += slot == 0;
    }
}

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

template <class P> DEVICE void load_batch(typename P::inputs (&in)[UNROLL], const duty &s, const arguments &a, int i) {
    const int place = first_of(s, a, i) + s.lane;
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (s.inside && place + u * TEAM >= 0)
            P::load(in[u], a, s.at, place + u * TEAM);
}

/* Takes a batch from shared memory to registers, which makes room for the next one. */
DEVICE void take(held (&own)[UNROLL], int pass, int slot) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        take_held(own[u], (const char *)s_ring + slot * BATCH_BYTES, u * THREADS + threadIdx.x);
    loads_before_copies();
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        arrive(shared_address(&s_freed[pass][slot]));
}

template <class P, bool WHOLE>
DEVICE void work(typename P::taken (&taken)[RUN], const held (&own)[UNROLL], const typename P::inputs (&in)[UNROLL],
                 const row *now, const duty &s, const arguments &a, int i) {
    const int place = first_of(s, a, i) + s.lane;
    if (!s.inside)
        return;
    if constexpr (WHOLE)
        P::template elements<UNROLL>(own, nullptr, in, now, taken, nullptr, a, s.at, place);
    else
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (place + u * TEAM >= 0)
                P::template elements<1>(own + u, nullptr, in + u, now, taken, nullptr, a, s.at, place + u * TEAM);
}

DEVICE void sum_up(summed::taken (&taken)[RUN], const row *now, const duty &s, const arguments &a) {
    const summed::inputs none[UNROLL] = {};
    held own[UNROLL];
    int slot = 0, round = 0;
#pragma unroll
    for (int l = 0; l < RUN; l++)
        taken[l] = summed::nothing();
    for (int i = 0; i < s.batches - 1; i++) {
        wait(shared_address(&s_arrived[0][slot]), round & 1);
        take(own, 0, slot);
        work<summed, true>(taken, own, none, now, s, a, i);
        slot = slot == DEPTH - 1 ? 0 : slot + 1;
        round += slot == 0;
    }
    wait(shared_address(&s_arrived[0][slot]), round & 1);
    take(own, 0, slot);
    work<summed, false>(taken, own, none, now, s, a, s.batches - 1);
}

DEVICE void use_up(const row *now, const duty &s, const arguments &a) {
    used::taken nothing[RUN];
    used::inputs in[UNROLL], next_in[UNROLL];
    held own[UNROLL];
    order o = {0, 0, 0, 0};
    turn t = next_turn(o, s);
    load_batch<used>(in, s, a, t.batch);
    for (int i = 0; i < s.batches; i++) {
        const turn next = i < s.batches - 1 ? next_turn(o, s) : t;
        if (i < s.batches - 1)
            load_batch<used>(next_in, s, a, next.batch);
        if (t.round >= 0)
            wait(shared_address(&s_arrived[1][t.slot]), t.round & 1);
        take(own, 1, t.slot);
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

/* ---- Totals ------------------------------------------------------------------------------------------------------ */

DEVICE void sync_workers() { team_barrier(1, THREADS); }

/* The block's totals of the slab's channels go to the workspace. */
DEVICE void leave_totals(const summed::taken (&taken)[RUN], const duty &s, const arguments &a) {
#pragma unroll
    for (int l = 0; l < RUN; l++) {
        const summed::total sum = reduce_lanes<summed, ACROSS, 16>(summed::settled(taken[l]));
        if (threadIdx.x % 32 < ACROSS)
            s_parts[threadIdx.x / 32][s.across * RUN + l] = sum;
    }
    sync_workers();
    summed::total *left = (summed::total *)a.left + (s.slab * s.blocks + s.block) * WIDTH;
    const int joiner = threadIdx.x % JOINERS;
    for (int c = threadIdx.x / JOINERS; c < WIDTH; c += THREADS / JOINERS) {
        summed::total sum = summed::none();
        for (int w = joiner; w < WARPS; w += JOINERS)
            sum = summed::joined(sum, s_parts[w][c]);
        sum = reduce_lanes<summed, 1, JOINERS / 2>(sum);
        if (joiner == 0)
            left[c] = sum;
    }
}

/* Until all blocks of the slab have left theirs. */
DEVICE void meet(const duty &s) {
    sync_workers();
    if (threadIdx.x == 0) {
        add_released(&arrived[s.slab], 1);
        while (load_acquired(&arrived[s.slab]) < (u32)s.blocks) {
        }
    }
    sync_workers();
}

/* The last block to have seen that all have arrived makes ready for the next launch. */
DEVICE void part(const duty &s) {
    if (threadIdx.x == 0 && fetch_and_add(&gone[s.slab], 1) == (u32)s.blocks - 1)
        arrived[s.slab] = gone[s.slab] = 0;
}

/* The channels that threads open and close, one for each; false: there is none. */
DEVICE bool has_channel(const duty &s, const arguments &a, int c, place &at) {
    const i64 group = (i64)s.slab * ACROSS + c / RUN;
    if (c >= WIDTH || group >= a.groups)
        return false;
    at = place_of(a, group);
    return true;
}

DEVICE void open_rows(const duty &s, const arguments &a) {
    place at;
    if (has_channel(s, a, threadIdx.x, at))
        open_row(s_rows[threadIdx.x], a, at, threadIdx.x % RUN);
    sync_workers();
}

/* Joins what all blocks left, in one order whatever their order of arrival. */
DEVICE void close_rows(const duty &s, const arguments &a) {
    constexpr int EACH = 4; // totals under way at once
    const summed::total *left = (const summed::total *)a.left + s.slab * s.blocks * WIDTH;
    const int joiner = threadIdx.x / WIDTH, c = threadIdx.x % WIDTH;
    place at;
    if (joiner < JOINERS) {
        summed::total sum = summed::none();
        for (int b = joiner; b < s.blocks; b += EACH * JOINERS) {
            summed::total some[EACH];
#pragma unroll
            for (int k = 0; k < EACH; k++)
                if (b + k * JOINERS < s.blocks)
                    some[k] = left[(b + k * JOINERS) * WIDTH + c];
                else
                    some[k] = summed::none();
            sum =
                summed::joined(sum, summed::joined(summed::joined(some[0], some[1]), summed::joined(some[2], some[3])));
        }
        s_parts[joiner][c] = sum;
    }
    sync_workers();
    if (has_channel(s, a, threadIdx.x, at)) {
        summed::total sum = s_parts[0][c];
        for (int j = 1; j < JOINERS; j++)
            sum = summed::joined(sum, s_parts[j][c]);
        summed::close(sum, s_rows[c], a);
        if (s.block == 0)
            store_row(s_rows[c], a, at, c % RUN);
    }
    sync_workers();
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(THREADS + 32, 1) channels(const __grid_constant__ arguments a) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * DEPTH; i++) {
            barrier_init(shared_address(&s_arrived[0][0] + i), 1);
            barrier_init(shared_address(&s_freed[0][0] + i), WARPS);
        }
        barrier_init_fence();
    }
    __syncthreads();
    await_launch_before();
    const duty s = duty_of(a);
    if (threadIdx.x >= THREADS) {
        if (threadIdx.x == THREADS)
            fetch_all(s, a);
        return;
    }
    row now[RUN];
    summed::taken taken[RUN];
    open_rows(s, a);
#pragma unroll
    for (int l = 0; l < RUN; l++)
        now[l] = s_rows[s.across * RUN + l];
    sum_up(taken, now, s, a);
    leave_totals(taken, s, a);
    meet(s);
    close_rows(s, a);
#pragma unroll
    for (int l = 0; l < RUN; l++)
        now[l] = s_rows[s.across * RUN + l];
    use_up(now, s, a);
    allow_launch_after();
    part(s);
}
