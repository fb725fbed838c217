/* rows: elements in, totals of rows, elements out                                                    any chip, any type
   Formula   printed from the graph as passes: pass<P>::elements takes runs of RUN neighbours into the row's totals and,
             in the last one, stores results; pass<P>::close turns the totals into numbers of the row
   Tile      TEAM threads of each of CLUSTER blocks have a row (COLUMNS: RUN rows that are neighbours in memory, and
             threads along the rows' other dims); ACROSS teams in a block; thread i of a block has its runs i, i + TEAM, ...
   Memory    STEPS > 0: a thread loads its STEPS runs once, all before its first arithmetic, and keeps them in registers
             through all passes; STEPS 0: every pass reads the row again, UNROLL runs at a time
   Loose     rows that begin anywhere in memory, but alike in all operands: runs begin where 16 bytes do, the first of them
             `head` elements behind the row's begin. Of the LOOSE elements at most that are before and behind runs each
             thread has one, as a run of 1. What all rows read is loaded across such bytes and shifted, up to MARGIN
             elements before its end, so that nothing behind it is read. In the first SURE steps every thread has a run.
             Blocks that sum places take rows that begin alike: RUN lie between those of neighbouring teams, and the
             number of blocks is a multiple of RUN
   Overlap   OVERLAPS: an odd number of rows side by side, of which totals alone are wanted: loads across, and the last run
             of rows has some of the one before it. In the last row of memory elements are loaded one by one
   Reduce    shuffles within a warp, then one exchange through the shared memory of all blocks; the order is fixed
   Next      PREFETCHES: a block has row after row, and loads the next one's runs before it works on one
   Ahead     teams ask the second cache for the row of a block that runs AHEAD blocks later; ASKS_EARLY: and for what they
             read first, before the launch before has ended
   Ring      RING > 1: rows are whole in memory, and the copy engine brings them to shared memory RING - 1 rows early;
             passes read them there. RING 1: each thread copies its own runs there, UNROLL at a time go through a pass
   Common    KEEPS_COMMON: what all rows read (scale, bias) is loaded once and stays in registers; else each pass loads it
   Split     rows too few to fill the chip are cut into parts, by turns, so that all blocks read neighbours at a time: one
             kernel for each pass leaves the parts' totals in the workspace, the next joins those of the passes before
             (RECALLED) and goes on, from the end (IS_REVERSED), which the cache still has; PASSES_END ends its passes.
             JOIN: joins the parts of one pass to one. IS_SINGLE: no more than one block of runs for each thread
   Columns   COLUMN_TOTALS sums over rows for every place in the row stay in registers of a persistent block, which
             leaves them in the workspace; another launch adds up the blocks
   Registers FORGETS: between passes runs stay as they are stored, and are converted again; else weights of softmax stay
             from the pass that sums them up, as an exponential costs more than a register
   Samples   sums for a mean and a variance, where one pass takes both, are around the mean of SOME of the row's elements
   Launches  LETS_NEXT: the next one is let in when this one begins to work, and waits; or when all rows are done, as those
             whose places are summed from registers take 1 to 4 % longer with others in the multiprocessors; or, by a launch
             that only adds up such sums, at once
   Limits    RUN divides the extent that runs lie along, but for LOOSE and OVERLAPS; TEAM is a power of two, or whole
             warps; CLUSTER > 1 wants one team of whole warps in a block
   Params    RUN COLUMNS TEAM ACROSS CLUSTER THREADS MIN_BLOCKS STEPS UNROLL IS_WHOLE LOOSE MARGIN SURE OVERLAPS
             PREFETCHES RING SLOTS HELD_BYTES KEEPS_COMMON SOME RECALLED PASSES_END JOIN IS_SPLIT IS_SINGLE
             IS_REVERSED LETS_NEXT AHEAD ASKS_EARLY HAS_ROW_STORES COLUMN_TOTALS FORGETS position BETWEEN
   Tried     (H200) blocks that take row after row where nothing is summed over rows: 10 % slower than one row each;
             runs taken apart as they are loaded: threads wait for the next row before they need it, 10 %; rows of
             16384 with sums of places on two blocks: 139 us, 122 on one; common runs in shared memory: 2 % slower than
             in registers; parts as adjoining chunks: 3 % slower forward; moments that join (Chan) in rows of 16384: 72
             us, 69 as sums around samples, 70 in two passes; softmax of such rows in one pass: 80 us, 72 in two; eight
             runs for each of half the threads: 2 to 6 % slower; more threads than 1024 on a multiprocessor spill: 25
             to 70 % slower; rows asked for AHEAD where more blocks are side by side: 19.3 us for 18.1 (RMS norm of
             16384x1024), sums of rows 33.6 for 30.5; two waves ahead: 67.9 us, 67.3 one (layer norm of 4096x16384),
             69.2 none; places summed in a launch of their own, beside that of the rows (1024x1024): 5.1 to 5.5 us, 5.2
             one after the other; a second wave of blocks with fewer rows, for multiprocessors that are through early:
             104 us, 102 without it (gradient of RMS norm, 16384x4096); two rows on their way for three of them there:
             121 us, and one more asked of the second cache behind the ring: 102 for 99; the next launch let in as rows
             begin: 7.8 us for 5.4 (gradient of layer norm, 1024x1024), rows of all 1024 threads at once: 8.5 */

constexpr int LANES = COLUMNS ? RUN : 1;    // rows of a thread
constexpr int KEPT = STEPS > 0 ? STEPS : 1; // runs of a thread
constexpr int OWN = KEPT + (LOOSE > 0);     // and its loose element

static_assert(!COLUMN_TOTALS || (STEPS > 0 && !COLUMNS), "sums of places need rows in registers");
static_assert(THREADS == TEAM * ACROSS && THREADS % 32 == 0, "a block is whole warps");
static_assert(LOOSE == 0 || (!COLUMNS && LOOSE <= TEAM), "a thread has one loose element of a row");
static_assert(CLUSTER == 1 || COLUMNS || (ACROSS == 1 && TEAM % 32 == 0), "blocks that share a row have no other");

/* What a thread works on: rows of one team, a part of their runs. */
struct span {
    i64 job, group; // of LANES rows
    i64 part;
    int stage; // of the ring
    int lane, across, rank, turn;
    bool inside;
    char *slot; // of the ring, where its runs are
};

/* Whether run `step` of a thread is one of the row's: known beforehand where all rows fill all threads. */
DEVICE position run_of(const span &s, int step) { return (s.rank * KEPT + step) * TEAM + s.lane; }
DEVICE bool has_run(const arguments &a, const span &s, int step) {
    return IS_WHOLE || step < SURE || (s.inside && run_of(s, step) < runs_of(a, s.group));
}
DEVICE i64 loose_of(const arguments &a, i64 group) { return a.length - runs_of(a, group) * RUN; }
DEVICE bool has_loose(const arguments &a, const span &s) {
    return s.inside && s.rank == 0 && s.part == 0 && s.lane < loose_of(a, s.group);
}
DEVICE bool is_leader(const span &s) { return (IS_WHOLE || s.inside) && s.lane == 0 && s.rank == 0; }

/* ---- Totals of a team -------------------------------------------------------------------------------------------- */

/* The parts of a row's total that warps left, in a fixed order. */
template <class P, int PARTS> DEVICE typename P::total join_warps(const typename P::total (&parts)[PARTS]) {
    typename P::total sum = parts[0];
    if constexpr (PARTS <= 8) {
#pragma unroll
        for (int i = 1; i < PARTS; i++)
            sum = P::joined(sum, parts[i]);
    } else {
        constexpr int LAST = PARTS > 16 ? 16 : 8;
        const int mine = threadIdx.x % (2 * LAST);
        sum = P::none();
        for (int i = mine; i < PARTS; i += 2 * LAST)
            sum = P::joined(sum, parts[i]);
        sum = P::template of_lanes<1, LAST>(sum);
    }
    return sum;
}

/* A row is in neighbouring threads. */
template <class P> DEVICE void reduce_row(typename P::total &sum, const span &s) {
    if constexpr (TEAM <= 32) {
        sum = P::template of_lanes<1, TEAM / 2>(sum);
    }
    if constexpr (TEAM > 32 || CLUSTER > 1) {
        constexpr int WARPS = TEAM > 32 ? TEAM / 32 : 1;
        // By turns, as the next row may be ahead of readers of this one.
        __shared__ typename P::total s_warps[2][ACROSS][WARPS * CLUSTER];
        if constexpr (TEAM > 32)
            sum = P::template of_lanes<1, 16>(sum);
        typename P::total *own = &s_warps[s.turn][s.across][s.rank * WARPS + s.lane / 32];
        if constexpr (CLUSTER > 1) {
            if (threadIdx.x % 32 < CLUSTER)
                store_to_peer(own, threadIdx.x % 32, sum);
            arrive_at_cluster();
            await_cluster();
        } else {
            if (threadIdx.x % 32 == 0)
                *own = sum;
            if constexpr (ACROSS == 1)
                __syncthreads();
            else
                team_barrier(1 + s.across, TEAM);
        }
        sum = join_warps<P>(s_warps[s.turn][s.across]);
    }
}

/* Neighbouring threads have neighbouring rows. */
template <class P> DEVICE void reduce_columns(typename P::total (&sum)[LANES], const span &s) {
    constexpr int IN_WARP = ACROSS >= 32 ? 1 : TEAM * ACROSS >= 32 ? 32 / ACROSS : TEAM;
    constexpr int GROUPS = TEAM / IN_WARP, ROWS = LANES * ACROSS, SPARE = THREADS / ROWS;
    constexpr int JOINERS = SPARE < 1 ? 1 : SPARE > 32 ? 32 : SPARE; // threads for each row
    static_assert(CLUSTER == 1 || GROUPS > 1, "blocks that share rows have several warps for each");
#pragma unroll
    for (int l = 0; l < LANES; l++)
        sum[l] = P::template of_lanes<ACROSS, ACROSS * IN_WARP / 2>(sum[l]);
    if constexpr (GROUPS > 1) {
        __shared__ typename P::total s_groups[GROUPS][ROWS];
        __shared__ typename P::total s_blocks[CLUSTER > 1 ? 2 : 1][CLUSTER][ROWS]; // by turns, as in reduce_row
        if (s.lane % IN_WARP == 0)
#pragma unroll
            for (int l = 0; l < LANES; l++)
                s_groups[s.lane / IN_WARP][l * ACROSS + s.across] = sum[l];
        __syncthreads();
        for (int c = threadIdx.x / JOINERS; c < ROWS; c += THREADS / JOINERS) {
            typename P::total whole = P::none();
            for (int g = threadIdx.x % JOINERS; g < GROUPS; g += JOINERS)
                whole = P::joined(whole, s_groups[g][c]);
            whole = P::template of_lanes<1, JOINERS / 2>(whole);
            auto *own = &s_blocks[CLUSTER > 1 ? s.turn : 0][s.rank][c];
            if constexpr (CLUSTER == 1)
                *own = whole;
            else if (threadIdx.x % JOINERS < CLUSTER)
                store_to_peer(own, threadIdx.x % JOINERS, whole);
        }
        if constexpr (CLUSTER == 1)
            __syncthreads();
        else {
            arrive_at_cluster();
            await_cluster();
        }
#pragma unroll
        for (int l = 0; l < LANES; l++) {
            sum[l] = s_blocks[CLUSTER > 1 ? s.turn : 0][0][l * ACROSS + s.across];
            for (int rank = 1; rank < CLUSTER; rank++)
                sum[l] = P::joined(sum[l], s_blocks[s.turn][rank][l * ACROSS + s.across]);
        }
    }
}

template <class P> DEVICE void reduce_team(typename P::total (&sum)[LANES], const span &s) {
    if constexpr (COLUMNS)
        reduce_columns<P>(sum, s);
    else
        reduce_row<P>(sum[0], s);
}

/* ---- The ring ---------------------------------------------------------------------------------------------------- */

DEVICE span span_of(const arguments &a, i64 job, int rank, int turn);

__shared__ u64 s_arrivals[ACROSS][RING > 0 ? RING : 1];
extern __shared__ __align__(RING > 1 ? 128 : 16) words4 s_ring[];

DEVICE char *slot_of(const span &s, int stage) {
    return (char *)s_ring + RING_BEGINS + (s.across * RING + stage) * (SLOTS * HELD_BYTES);
}

/* Of one row; of rows side by side, each thread has its own. */
DEVICE int slot_index(const span &s, int step) {
    return COLUMNS ? step * THREADS + (int)threadIdx.x : step * TEAM + s.lane;
}

/* One thread of a team asks for the block's part of a row. */
DEVICE void fill_ring(const arguments &a, i64 job, int rank, int stage) {
    const span s = span_of(a, job, rank, 0);
    const position first = rank * SLOTS, rest = (position)runs_of(a, s.group) - first; // the last blocks may have none
    const position runs = rest < 0 ? 0 : rest < SLOTS ? rest : SLOTS;
    if (job < a.jobs && s.inside && s.lane == 0)
        copy_held(slot_of(s, stage), &s_arrivals[s.across][stage], a, place_of(a, s.group), first, runs);
}

/* Every thread asks for the runs that it alone will take. */
DEVICE void copy_own(const arguments &a, const span &s, const place &at) {
    for (int step = 0; step < STEPS; step++)
        if (has_run(a, s, step))
            copy_run(s.slot, slot_index(s, step), a, at, run_of(s, step));
    commit_copies();
}

/* The slot of the row before takes the row that is RING - 1 rows on. */
DEVICE void refill_ring(const span &s, const arguments &a) {
    if (s.lane == 0)
        loads_before_copies();
    fill_ring(a, s.job + (i64)(gridDim.x / CLUSTER) * (RING - 1), s.rank, s.stage == 0 ? RING - 1 : s.stage - 1);
}

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

template <class P>
DEVICE void load_block(typename P::inputs (&in)[UNROLL], const arguments &a, const place &at, position q) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        P::load(in[u], a, at, q + u * BETWEEN);
}

/* All runs of a thread through one pass, from registers or from shared memory. */
template <class P>
DEVICE void walk_held(typename P::taken (&taken)[LANES], const span &s, held *own, const common *all, const row *now,
                      column *columns, const arguments &a, const place &at) {
#pragma unroll UNROLL
    for (int step = 0; step < STEPS; step++) {
        if (!has_run(a, s, step))
            continue;
        held here;
        typename P::inputs in[1];
        if constexpr (RING > 0)
            take_held(here, s.slot, slot_index(s, step));
        if constexpr (!KEEPS_COMMON)
            P::load(in[0], a, at, run_of(s, step));
        P::template elements<1>(RING > 0 ? &here : own + step, all + step, in, now, taken, columns + step, a, at,
                                run_of(s, step));
    }
    if constexpr (LOOSE > 0)
        if (has_loose(a, s)) {
            typename P::inputs in[1];
            if constexpr (!KEEPS_COMMON)
                P::template load<1>(in[0], a, at, s.lane);
            P::template elements<1, 1>(own + (RING > 0 ? 0 : KEPT), all + KEPT, in, now, taken, columns + KEPT, a, at,
                                       s.lane);
        }
}

/* All runs of a thread through one pass, from memory. */
template <class P>
DEVICE void walk_stream(typename P::taken (&taken)[LANES], const span &s, const row *now, const arguments &a,
                        const place &at) {
    const position last = s.inside ? (position)runs_of(a, s.group) : 0, ends = (position)runs_of(a, s.group) - 1;
    const position advance = UNROLL * TEAM * (IS_SPLIT ? (position)a.parts : 1);
    position i = UNROLL * TEAM * (position)s.part + s.lane;
    typename P::inputs now_in[UNROLL], next_in[UNROLL], loose_in[1];
    if constexpr (LOOSE > 0)
        if (has_loose(a, s))
            P::template load<1>(loose_in[0], a, at, s.lane);
    bool is_full = i + (UNROLL - 1) * TEAM < last - OVERLAPS;
    if (is_full)
        load_block<P>(now_in, a, at, IS_REVERSED ? ends - i : i);
    while (is_full) { // the next block is on its way while this one is worked on
        const position q = IS_REVERSED ? ends - i : i;
        i += advance;
        is_full = !IS_SINGLE && i + (UNROLL - 1) * TEAM < last - OVERLAPS;
        if (is_full)
            load_block<P>(next_in, a, at, IS_REVERSED ? ends - i : i);
        P::template elements<UNROLL>(nullptr, nullptr, now_in, now, taken, nullptr, a, at, q);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            now_in[u] = next_in[u];
    }
    for (int u = 0; u < UNROLL && i < last; u++, i += TEAM) {
        const position q = IS_REVERSED ? ends - i : i;
        typename P::inputs in[1];
        P::template load<RUN, OVERLAPS>(in[0], a, at, q);
        P::template elements<1>(nullptr, nullptr, in, now, taken, nullptr, a, at, q);
    }
    if constexpr (LOOSE > 0)
        if (has_loose(a, s))
            P::template elements<1, 1>(nullptr, nullptr, loose_in, now, taken, nullptr, a, at, s.lane);
}

/* The totals of pass P that parts left in the workspace, joined. */
template <int P> DEVICE void gather(typename pass<P>::total (&sum)[LANES], const span &s, const arguments &a) {
    const auto *recalled = pass<P>::recalled(a) + (s.inside ? s.group : 0) * LANES;
    if constexpr (pass<P>::IS_JOINED) {
        using words = raw<u32, sizeof(sum) / 4>;
        union {
            words from;
            typename pass<P>::total numbers[LANES];
        } both;
        both.from = words::template load<false>((const u32 *)recalled);
#pragma unroll
        for (int l = 0; l < LANES; l++)
            sum[l] = both.numbers[l];
    } else {
#pragma unroll
        for (int l = 0; l < LANES; l++)
            sum[l] = pass<P>::none();
        if (s.inside)
            for (i64 part = s.lane; part < pass<P>::parts(a); part += TEAM)
#pragma unroll
                for (int l = 0; l < LANES; l++)
                    sum[l] = pass<P>::joined(sum[l], recalled[part * a.rows + l]);
        reduce_team<pass<P>>(sum, s);
    }
}

template <int P> DEVICE void leave(const typename pass<P>::total (&sum)[LANES], const span &s, const arguments &a) {
    if (s.inside && s.lane == 0)
#pragma unroll
        for (int l = 0; l < LANES; l++)
            ((typename pass<P>::total *)a.left)[s.part * a.rows + s.group * LANES + l] = sum[l];
}

template <int P> DEVICE void close(const typename pass<P>::total (&sum)[LANES], row *now, const arguments &a) {
#pragma unroll
    for (int l = 0; l < LANES; l++)
        pass<P>::close(sum[l], now[l], a);
}

/* A pass over the elements, up to the row's totals. */
template <class P>
DEVICE void take(typename P::total (&sum)[LANES], const span &s, held *own, const common *all, const row *now,
                 column *columns, const arguments &a, const place &at) {
    typename P::taken taken[LANES];
#pragma unroll
    for (int l = 0; l < LANES; l++)
        taken[l] = P::nothing();
    if constexpr (STEPS > 0)
        walk_held<P>(taken, s, own, all, now, columns, a, at);
    else
        walk_stream<P>(taken, s, now, a, at);
    if constexpr (P::CLOSES) {
#pragma unroll
        for (int l = 0; l < LANES; l++)
            sum[l] = P::settled(taken[l]);
        reduce_team<P>(sum, s);
    }
}

template <int P>
DEVICE void run_passes(const span &s, held *own, const common *all, row *now, column *columns, const arguments &a,
                       const place &at) {
    if constexpr (P < PASSES_END) {
        typename pass<P>::total sum[LANES];
        if constexpr (P < RECALLED) {
            gather<P>(sum, s, a);
            close<P>(sum, now, a);
        } else {
            if constexpr (FORGETS && RING == 0 && P > RECALLED)
#pragma unroll
                for (int step = 0; step < OWN; step++)
                    forget_held(own[step]);
            take<pass<P>>(sum, s, own, all, now, columns, a, at);
            if constexpr (RING > 1 && P == 0)
                refill_ring(s, a); // all threads are done with the row before
            if constexpr (pass<P>::CLOSES) {
                if constexpr (IS_SPLIT)
                    leave<P>(sum, s, a);
                else
                    close<P>(sum, now, a);
            }
        }
        run_passes<P + 1>(s, own, all, now, columns, a, at);
    }
}

template <int P> DEVICE void join_parts(const span &s, const arguments &a) {
    if constexpr (P >= 0) {
        typename pass<P>::total sum[LANES];
        gather<P>(sum, s, a);
        leave<P>(sum, s, a);
    }
}

/* ---- Sums of places ---------------------------------------------------------------------------------------------- */

/* Teams of a warp by shuffles, then warps (or larger teams) through shared memory, run by run, each added up by another. */
DEVICE void leave_columns(const column (&columns)[OWN], const span &s, const arguments &a) {
    constexpr int GROUP = TEAM < 32 ? 32 : TEAM, GROUPS = THREADS / GROUP;
    using sums = run<column_t, RUN>;
    const int lane = threadIdx.x % TEAM, group = threadIdx.x / GROUP;
    const bool is_first = threadIdx.x % GROUP < TEAM;
#pragma unroll
    for (int i = 0; i < COLUMN_TOTALS * OWN; i++) {
        sums mine = columns[i % OWN].at[i / OWN];
#pragma unroll
        for (int mask = TEAM; mask < 32; mask *= 2)
#pragma unroll
            for (int e = 0; e < RUN; e++)
                mine.at[e] += shuffle_xor(mine.at[e], mask);
        if constexpr (GROUPS > 1) {
            __shared__ sums s_sums[GROUPS][TEAM];
            if (i > 0)
                __syncthreads();
            if (is_first)
                s_sums[group][lane] = mine;
            __syncthreads();
            if (group != i % GROUPS)
                continue;
            mine = s_sums[0][lane];
#pragma unroll
            for (int g = 1; g < GROUPS; g++)
#pragma unroll
                for (int e = 0; e < RUN; e++)
                    mine.at[e] += s_sums[g][lane].at[e];
        }
        if (i % OWN == KEPT) {
            if (is_first && s.rank == 0 && s.lane < loose_of(a, s.group))
                store_column<1>(i / OWN, mine, a, s.group, s.lane);
        } else if (is_first && run_of(s, i % OWN) < runs_of(a, s.group)) {
            store_column(i / OWN, mine, a, s.group, run_of(s, i % OWN));
        }
    }
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

DEVICE span span_of(const arguments &a, i64 job, int rank, int turn) {
    span s;
    s.job = job;
    s.stage = 0;
    s.slot = nullptr;
    s.lane = COLUMNS ? threadIdx.x / ACROSS : threadIdx.x % TEAM;
    s.across = ACROSS == 1 ? 0 : COLUMNS ? threadIdx.x % ACROSS : threadIdx.x / TEAM;
    s.rank = rank;
    s.part = IS_SPLIT ? divide((u32)job, a.tiles) : 0; // a grid has fewer than 2^31 blocks
    s.group = (job - s.part * a.tiles.value) * ACROSS + s.across;
    if constexpr (LOOSE > 0 && COLUMN_TOTALS > 0)
        s.group = (job / RUN * ACROSS + s.across) * RUN + job % RUN;
    s.inside = s.group < a.groups;
    s.turn = turn;
    return s;
}

/* What a row needs from memory, all requested before any is used. */
struct loaded {
    held runs[RING > 0 ? 1 : OWN];
    entry numbers;
};

DEVICE void load_job(loaded &in, const arguments &a, const span &s) {
    const place at = place_of(a, s.inside ? s.group : 0);
#pragma unroll
    for (int step = 0; step < STEPS && RING == 0; step++)
        if (has_run(a, s, step))
            load_held(in.runs[step], a, at, run_of(s, step));
    if constexpr (LOOSE > 0)
        if (has_loose(a, s))
            load_held<1>(in.runs[RING > 0 ? 0 : KEPT], a, at, s.lane);
    load_entry(in.numbers, a, at);
}

/* One thread of a team asks the second cache for the block's part of a row. */
DEVICE void ask_for(const arguments &a, i64 job, int rank) {
    const span s = span_of(a, job, rank, 0);
    const position first = rank * (KEPT * TEAM), rest = (position)runs_of(a, s.group) - first;
    const position runs = IS_WHOLE ? KEPT * TEAM : rest < KEPT * TEAM ? rest : KEPT * TEAM;
    if (job < a.jobs && s.inside && s.lane == 0 && runs > 0)
        expect_held(a, place_of(a, s.group), first, runs);
}

DEVICE void load_all(common (&all)[OWN], const arguments &a, const span &s) {
#pragma unroll
    for (int step = 0; step < STEPS; step++)
        if (IS_WHOLE || run_of(s, step) < runs_of(a, s.group))
            load_common(all[step], a, s.group, run_of(s, step));
    if constexpr (LOOSE > 0)
        if (has_loose(a, s))
            load_common<1>(all[KEPT], a, s.group, s.lane);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) rows(const __grid_constant__ arguments a) {
    const int rank = CLUSTER > 1 ? (int)(blockIdx.x % CLUSTER) : 0;
    const i64 step = gridDim.x / CLUSTER;
    i64 job = blockIdx.x / CLUSTER;
    for (int i = 0; ASKS_EARLY && i < (PREFETCHES ? 2 : 1); i++)
        ask_for(a, job + i * step, rank);
    begin_launch<LETS_NEXT>();
    loaded in;
    common all[OWN];
    column columns[OWN];
    if constexpr (CLUSTER > 1)
        arrive_at_cluster();
#pragma unroll
    for (int i = 0; i < OWN; i++)
        clear_column(columns[i]);
    if constexpr (RING > 1) {
        if (threadIdx.x < ACROSS * (RING > 0 ? RING : 1))
            make_arrival(&s_arrivals[0][threadIdx.x]);
        __syncthreads();
        for (int stage = 0; stage < RING - 1; stage++)
            fill_ring(a, job + stage * step, rank, stage);
    }
    if constexpr (PREFETCHES)
        load_job(in, a, span_of(a, job, rank, 0));
    if constexpr (KEEPS_COMMON)
        load_all(all, a, span_of(a, job, rank, 0));
    int stage = 0;
    u32 round = 0;
    for (int turn = 0; job < a.jobs; job += step, turn ^= 1) {
        span s = span_of(a, job, rank, turn);
        const place at = place_of(a, s.inside ? s.group : 0);
        row now[LANES];
        if constexpr (!PREFETCHES)
            load_job(in, a, s);
        if constexpr (AHEAD > 0)
            ask_for(a, job + AHEAD, rank);
        loaded mine = in;
        if (PREFETCHES && job + step < a.jobs)
            load_job(in, a, span_of(a, job + step, rank, 0));
        // All blocks run before one writes to another.
        if (CLUSTER > 1 && job == blockIdx.x / CLUSTER)
            await_cluster();
        if constexpr (RING == 1) {
            s.slot = (char *)s_ring;
            copy_own(a, s, at);
            await_copies<0>();
        } else if constexpr (RING > 1) {
            s.stage = stage;
            s.slot = slot_of(s, stage);
            if (s.inside)
                await_arrival(&s_arrivals[s.across][stage], round);
            stage = stage == RING - 1 ? 0 : stage + 1;
            round ^= stage == 0;
        }
        open_rows(now, mine.numbers, a, at);
        join_parts<JOIN>(s, a);
        run_passes<0>(s, mine.runs, all, now, columns, a, at);
        if (HAS_ROW_STORES && is_leader(s) && s.part == 0)
            store_rows(now, a, at);
    }
    if constexpr (LETS_NEXT == WHEN_DONE)
        allow_launch_after();
    if constexpr (COLUMN_TOTALS > 0)
        leave_columns(columns, span_of(a, LOOSE > 0 ? blockIdx.x / CLUSTER : 0, rank, 0), a);
}
