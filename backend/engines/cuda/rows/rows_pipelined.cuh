/* rows_pipe: elements in, totals of rows, elements out, one row behind the other                      sm_90 and newer
   Formula   printed from the graph as for rows.cuh, in two passes: pass<0> takes the elements into the row's totals,
             pass<1> stores results
   Tile      TEAM threads of each of CLUSTER blocks have a row; ACROSS teams in a block, which do not wait for each
             other. A warp has STEPS * 32 neighbouring runs of every row, lane i runs i, i + 32, ...
   Pipeline  warp    | 0 of row 1 | 0 of row 2 | 1 of row 1 | 0 of row 3 | 1 of row 2 | ...
             totals              | row 1 joins            | row 2 joins            |
             pass<1> of a row comes after pass<0> of the next one, so that nobody waits while a row's totals meet
   Memory    CREW warps have a ring of RING slots in shared memory, and the copy engine brings their part of the rows there,
             RING - 1 rows early; the last of them to be done with a slot fills it again, and asks the second cache for the
             row behind that. What all rows read (scale) stays in registers
   Ahead     ASKS_EARLY: the second cache is asked for the first rows before the launch before has ended, some of whose
             blocks are through long before others
   Reduce    shuffles within a warp; warps leave their totals in shared memory, in that of every block of a cluster, and
             each warp joins them, in the order of the row
   Numbers   what a row brings along (mean, scale of its own) is loaded for 32 rows at a time, one in each lane, and 32
             rows early
   Columns   COLUMN_TOTALS sums over rows for every place in the row stay in registers of a cluster, which leaves them in
             the workspace; another launch adds up the clusters
   Limits    sm_90 on; RUN divides the extent that runs lie along; TEAM is whole warps; CLUSTER > 1 wants one team
   Params    RUN TEAM ACROSS CLUSTER THREADS MIN_BLOCKS STEPS IS_WHOLE CREW RING SLOTS HELD_BYTES KEEPS_COMMON
             SOME ASKS_EARLY LETS_NEXT HAS_ROW_STORES COLUMN_TOTALS position
   Tried     (H200) 32 warps: 73 us, 71 with 16 (RMS norm of 1024x65536), 116 and 112 (gradient of layer norm,
             4096x16384); a block for each row, two of them side by side: 90 us, 76 one row behind the other (layer
             norm of 1024x65536); rows in registers of a cluster, one block for each part: 97 us, 76 here; sums of
             places of single blocks: 116 us, 111 of pairs (4096x16384), 107 of pairs that had rows apart and added up
             their sums, 101 of pairs that share rows (RMS norm); a ring for each warp there: 109 us; a ring for a team
             without sums: 72 us for 69 (softmax of 1024x65536); no row asked for behind the ring: 108 us for 106, two
             rows: 111; copies that leave the second cache first: 5 to 17 % slower; lines of sums given up unwritten
             once they are read: 105.2 us for 105.6; shorter rows with sums of places: 103 us for 16384x4096 in
             rows.cuh, 115 here, as some multiprocessors are through long before others: with the same rows, 12 of 132
             end after 48 us, most after 62, the last after 78; rows asked of a counter, in a cooperative launch, so
             that all end together (RMS norm): 73 us for 1024x65536, as by place, 72 for 73 of 2048x32768, 74 for 71 of
             256x262144; rows of 16384 without sums of places: 72 us, 66 in rows.cuh; slots that begin at odd multiples
             of 16 bytes: 8 to 20 % slower, of 32: as fast; four blocks for rows of 65536: 74 us, 71 two (softmax);
             four for 16384 with sums of places: 144 us, 108 two, and 6 rows on their way there for 3: 111; a second
             wave of blocks with fewer rows: 120 us for 113, 78 for 79 without sums; no fence before a slot is filled:
             as fast */

constexpr int WARPS = TEAM / 32;       // of a team
constexpr int PARTS = WARPS * CLUSTER; // of a row
constexpr int CREWS = THREADS / 32 / CREW;
constexpr int SLOT_BYTES = SLOTS * HELD_BYTES;
/* Rows whose totals are under way. A warp that leaves those of row r has seen all of row r - 2, so that no other is
   behind the joining of row r - 3. */
constexpr int OPEN = 4;

static_assert(!COLUMNS && TEAM % 32 == 0 && THREADS == TEAM * ACROSS, "a row is whole warps");
static_assert(CLUSTER == 1 || ACROSS == 1, "blocks that share a row have no other");
static_assert(COLUMN_TOTALS == 0 || ACROSS == 1, "one team has the sums of a place");
static_assert(PASSES_END == 2 && pass<0>::CLOSES && !pass<1>::CLOSES, "one pass for totals, one for results");
static_assert(SLOTS == STEPS * CREW * 32 && KEEPS_COMMON, "a slot has the runs of a crew, registers what rows share");
static_assert(WARPS % CREW == 0, "a crew is of one team");

using total = pass<0>::total;

extern __shared__ __align__(128) char s_slots[]; // [CREWS][RING] of SLOT_BYTES
__shared__ u64 s_arrivals[CREWS][RING];          // a crew's part of a row is there
__shared__ u32 s_readers[CREWS][RING];           // warps that are done with it
__shared__ u64 s_closings[ACROSS][OPEN];         // all parts of a row's totals are there
__shared__ total s_totals[ACROSS][OPEN][PARTS];

/* Who a thread is. */
struct worker {
    int lane, warp, crew, team; // of the warp, of the crew, of the block, of the block
    int part;                   // of a row
    i64 stride;                 // from one of its rows to the next
};

DEVICE position run_of(const worker &w, int step) { return (w.part * STEPS + step) * 32 + w.lane; }
DEVICE bool has_run(const worker &w, const arguments &a, int step) { return IS_WHOLE || run_of(w, step) < a.runs; }
DEVICE char *slot_of(const worker &w, int stage) { return s_slots + (w.crew * RING + stage) * SLOT_BYTES; }

/* The crew's part of a row: its first run, and how many there are; the last crews may have none. */
DEVICE position first_of(const worker &w) { return w.part / CREW * SLOTS; }
DEVICE position runs_of(const worker &w, const arguments &a) {
    const position rest = (position)a.runs - first_of(w);
    return IS_WHOLE ? SLOTS : rest < 0 ? 0 : rest < SLOTS ? rest : SLOTS;
}

/* One lane asks for it. */
DEVICE void fill_slot(const worker &w, const arguments &a, i64 group, int stage) {
    if (w.lane == 0 && group < a.groups)
        copy_held(slot_of(w, stage), &s_arrivals[w.crew][stage], a, place_of(a, group), first_of(w), runs_of(w, a));
}

/* The same as far as the second cache, where it may be before what writes it has ended. */
DEVICE void ask_for(const worker &w, const arguments &a, i64 group) {
    if (w.lane == 0 && group < a.groups && runs_of(w, a) > 0)
        expect_held(a, place_of(a, group), first_of(w), runs_of(w, a));
}

/* The last of the crew to be done with a slot fills it with the row RING turns later. */
DEVICE void pass_on(const worker &w, const arguments &a, i64 group, int stage) {
    loads_before_copies();
    __syncwarp(); // all lanes have read the slot
    if (CREW > 1 && (w.lane > 0 || !is_last(&s_readers[w.crew][stage], CREW)))
        return;
    fill_slot(w, a, group + RING * w.stride, stage);
    ask_for(w, a, group + (RING + 1) * w.stride);
}

/* ---- Totals ------------------------------------------------------------------------------------------------------ */

DEVICE void leave_total(const worker &w, const total &sum, u32 turn) {
    u64 *closing = &s_closings[w.team][turn % OPEN];
    total *own = &s_totals[w.team][turn % OPEN][w.part];
    if constexpr (CLUSTER > 1) {
        if (w.lane < CLUSTER)
            send_to_peer(own, closing, w.lane, sum);
        if (threadIdx.x == 0)
            expect_bytes(closing, sizeof(total) * PARTS);
    } else if (w.lane == 0) {
        *own = sum;
        count_arrival(closing);
    }
}

DEVICE total join_totals(const worker &w, u32 turn) {
    constexpr int LANES = PARTS > 16 ? 32 : PARTS > 8 ? 16 : PARTS > 4 ? 8 : PARTS > 2 ? 4 : 2;
    await_arrival(&s_closings[w.team][turn % OPEN], turn / OPEN & 1);
    constexpr int EACH = (PARTS + LANES - 1) / LANES;
    total sums[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int part = i * LANES + w.lane % LANES;
        sums[i] = part < PARTS ? s_totals[w.team][turn % OPEN][part] : pass<0>::none();
    }
#pragma unroll
    for (int left = EACH; left > 1; left = (left + 1) / 2)
#pragma unroll
        for (int i = 0; i + (left + 1) / 2 < left; i++)
            sums[i] = pass<0>::joined(sums[i], sums[i + (left + 1) / 2]);
    return pass<0>::of_lanes<1, LANES / 2>(sums[0]);
}

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

template <class P>
DEVICE void walk(typename P::taken (&taken)[1], const worker &w, const char *slot, const common *all, const row &now,
                 column *columns, const arguments &a, const place &at) {
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        if (!has_run(w, a, step))
            continue;
        held here;
        take_held(here, slot, (w.warp * STEPS + step) * 32 + w.lane);
        P::template elements<1>(&here, all + step, nullptr, &now, taken, columns + step, a, at, run_of(w, step));
    }
}

/* ---- Sums of places ---------------------------------------------------------------------------------------------- */

DEVICE void leave_columns(const column (&columns)[STEPS], const worker &w, const arguments &a) {
#pragma unroll
    for (int i = 0; i < COLUMN_TOTALS * STEPS; i++)
        if (has_run(w, a, i % STEPS))
            store_column(i / STEPS, columns[i % STEPS].at[i / STEPS], a, 0, run_of(w, i % STEPS));
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

DEVICE void make_barriers() {
    if (threadIdx.x < CREWS * RING) {
        make_arrival(&s_arrivals[0][threadIdx.x], 1);
        s_readers[0][threadIdx.x] = 0;
    }
    if (threadIdx.x < ACROSS * OPEN)
        make_arrival(&s_closings[0][threadIdx.x], CLUSTER > 1 ? 1 : PARTS);
    if constexpr (CLUSTER > 1) {
        arrive_at_cluster();
        await_cluster();
    } else {
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) rows(const __grid_constant__ arguments a) {
    make_barriers();
    worker w;
    w.lane = threadIdx.x % 32;
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0); // tells the compiler that lanes agree
    w.warp = warp % CREW;
    w.crew = warp / CREW;
    w.team = warp / WARPS;
    w.part = (CLUSTER > 1 ? (int)(blockIdx.x % CLUSTER) : 0) * WARPS + warp % WARPS;
    w.stride = (i64)(gridDim.x / CLUSTER) * ACROSS;
    i64 group = (i64)(blockIdx.x / CLUSTER) * ACROSS + w.team, behind = 0;
    if (ASKS_EARLY && w.warp == 0)
        for (int stage = 0; stage < RING; stage++)
            ask_for(w, a, group + stage * w.stride);
    begin_launch<LETS_NEXT>();
    entry numbers, next_numbers; // of 32 rows, one in each lane; before the rows, which would be in their way
    if (group + w.lane * w.stride < a.groups)
        load_entry(next_numbers, a, place_of(a, group + w.lane * w.stride));
    if (w.warp == 0)
        for (int stage = 0; stage < RING; stage++)
            fill_slot(w, a, group + stage * w.stride, stage);
    common all[STEPS];
    column columns[STEPS];
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        if (has_run(w, a, step))
            load_common(all[step], a, 0, run_of(w, step));
        clear_column(columns[step]);
    }
    row now, next;
    total sum;
    int stage = 0, stage_behind = 0;
    u32 round = 0;
    for (u32 turn = 0;; turn++, group += w.stride) {
        const bool has_row = group < a.groups;
        total next_sum;
        if (has_row) {
            const place at = place_of(a, group);
            if (turn % 32 == 0) {
                numbers = next_numbers;
                const i64 later = group + (32 + w.lane) * w.stride;
                if (later < a.groups)
                    load_entry(next_numbers, a, place_of(a, later));
            }
            open_rows(&next, shuffle_from(numbers, turn % 32), a, at);
            await_arrival(&s_arrivals[w.crew][stage], round);
            pass<0>::taken taken[1] = {pass<0>::nothing()};
            walk<pass<0>>(taken, w, slot_of(w, stage), all, next, columns, a, at);
            next_sum = pass<0>::of_lanes<1, 16>(pass<0>::settled(taken[0]));
            if constexpr (PARTS > 1)
                leave_total(w, next_sum, turn);
        }
        if (turn > 0) {
            const place at = place_of(a, behind);
            if constexpr (PARTS > 1)
                sum = join_totals(w, turn - 1);
            pass<0>::close(sum, now, a);
            pass<1>::taken none[1];
            walk<pass<1>>(none, w, slot_of(w, stage_behind), all, now, columns, a, at);
            if (HAS_ROW_STORES && w.lane == 0 && w.part == 0)
                store_rows(&now, a, at);
            pass_on(w, a, behind, stage_behind);
        }
        if (!has_row)
            break;
        behind = group;
        stage_behind = stage;
        now = next;
        sum = next_sum;
        stage = stage == RING - 1 ? 0 : stage + 1;
        round ^= stage == 0;
    }
    if constexpr (COLUMN_TOTALS > 0)
        leave_columns(columns, w, a);
}
