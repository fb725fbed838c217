/* rows: elements in, totals of rows, elements out                                                    any chip, any type
   Formula   printed from the graph as passes: pass<P>::elements takes runs of RUN neighbours into the row's totals and,
             in the last one, stores results; pass<P>::close turns the totals into numbers of the row
   Tile      a team of TEAM threads has a row (COLUMNS: RUN rows that are neighbours in memory, and threads along the
             rows' other dims); ACROSS teams in a block; a thread has the runs lane, lane + TEAM, ...
   Memory    STEPS > 0: a thread loads its STEPS runs once, all before its first arithmetic, and keeps them in registers
             through all passes; STEPS 0: every pass reads the row again, UNROLL runs at a time
   Reduce    shuffles within a warp, then one exchange through shared memory; the order is fixed
   Split     rows too few to fill the chip are cut into parts: one kernel for each pass leaves the parts' totals in the
             workspace, the next joins those of the passes before (RECALLED) and goes on; PASSES_END ends its passes.
             JOIN: joins the parts of one pass to one
   Columns   COLUMN_TOTALS sums over rows for every place in the row stay in registers of a persistent block, which
             leaves them in the workspace; another launch adds up the blocks. Its rows are copied to shared memory
             AHEAD rows early
   Registers FORGETS: between passes runs stay as they are stored, and are converted again
   Limits    RUN divides the extent that runs lie along; TEAM is a power of two, or whole warps
   Params    RUN COLUMNS TEAM ACROSS THREADS MIN_BLOCKS STEPS UNROLL RECALLED PASSES_END JOIN IS_SPLIT IS_REVERSED
             HAS_ROW_STORES COLUMN_TOTALS AHEAD FORGETS position BETWEEN */

constexpr int LANES = COLUMNS ? RUN : 1;    // rows of a thread
constexpr int KEPT = STEPS > 0 ? STEPS : 1; // runs in registers

static_assert(!COLUMN_TOTALS || (STEPS > 0 && !COLUMNS), "sums of places need rows in registers");
static_assert(THREADS == TEAM * ACROSS && THREADS % 32 == 0, "a block is whole warps");

/* What a thread works on: rows of one team, a part of their runs. */
struct span {
    i64 group;            // of LANES rows
    position first, last; // runs
    i64 part;
    int lane, across, turn;
    bool inside;
};

/* ---- Totals of a team -------------------------------------------------------------------------------------------- */

/* A row is in neighbouring threads. */
template <class P> DEVICE void reduce_row(typename P::total& sum, const span& s) {
    if constexpr (TEAM <= 32) {
        sum = reduce_lanes<P, 1, TEAM / 2>(sum);
    } else {
        constexpr int WARPS = TEAM > 32 ? TEAM / 32 : 1;
        constexpr int LAST = WARPS > 16 ? 16 : WARPS > 8 ? 8 : WARPS > 4 ? 4 : WARPS > 2 ? 2 : 1;
        // By turns, as the next row may be ahead of readers of this one.
        __shared__ typename P::total s_warps[2][ACROSS][WARPS];
        const int lane = threadIdx.x % 32;
        sum = reduce_lanes<P, 1, 16>(sum);
        if (lane == 0) s_warps[s.turn][s.across][s.lane / 32] = sum;
        if constexpr (ACROSS == 1) __syncthreads();
        else team_barrier(1 + s.across, TEAM);
        sum = P::none();
        if (lane % (2 * LAST) < WARPS) sum = s_warps[s.turn][s.across][lane % (2 * LAST)];
        sum = reduce_lanes<P, 1, LAST>(sum);
    }
}

/* Neighbouring threads have neighbouring rows. */
template <class P> DEVICE void reduce_columns(typename P::total (&sum)[LANES], const span& s) {
    constexpr int IN_WARP = ACROSS >= 32 ? 1 : TEAM * ACROSS >= 32 ? 32 / ACROSS : TEAM;
    constexpr int GROUPS = TEAM / IN_WARP;
    #pragma unroll
    for (int l = 0; l < LANES; l++) sum[l] = reduce_lanes<P, ACROSS, ACROSS * IN_WARP / 2>(sum[l]);
    if constexpr (GROUPS > 1) {
        __shared__ typename P::total s_groups[GROUPS][LANES * ACROSS];
        __shared__ typename P::total s_whole[LANES * ACROSS];
        if (s.lane % IN_WARP == 0)
            #pragma unroll
            for (int l = 0; l < LANES; l++) s_groups[s.lane / IN_WARP][l * ACROSS + s.across] = sum[l];
        __syncthreads();
        for (int c = threadIdx.x; c < LANES * ACROSS; c += THREADS) {
            typename P::total whole = s_groups[0][c];
            for (int g = 1; g < GROUPS; g++) whole = P::joined(whole, s_groups[g][c]);
            s_whole[c] = whole;
        }
        __syncthreads();
        #pragma unroll
        for (int l = 0; l < LANES; l++) sum[l] = s_whole[l * ACROSS + s.across];
    }
}

template <class P> DEVICE void reduce_team(typename P::total (&sum)[LANES], const span& s) {
    if constexpr (COLUMNS) reduce_columns<P>(sum, s);
    else reduce_row<P>(sum[0], s);
}

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

template <class P>
DEVICE void load_block(typename P::inputs (&in)[UNROLL], const arguments& a, const place& at, position q) {
    #pragma unroll
    for (int u = 0; u < UNROLL; u++) P::load(in[u], a, at, q + u * BETWEEN);
}

/* All runs of a thread through one pass. */
template <class P>
DEVICE void walk(typename P::total (&sum)[LANES], const span& s, const held* own, const row* now, column* columns,
                 const arguments& a, const place& at) {
    if constexpr (STEPS > 0) {
        #pragma unroll
        for (int step = 0; step < STEPS; step++) {
            const position q = s.lane + step * TEAM;
            if (!s.inside || q >= s.last) continue;
            typename P::inputs in[1];
            P::load(in[0], a, at, q);
            P::template elements<1>(own + step, in, now, sum, columns + step, a, at, q);
        }
    } else {
        const position last = s.inside ? s.last : s.first;
        const position ends = s.first + s.last - 1;
        position i = s.first + s.lane;
        typename P::inputs now_in[UNROLL], next_in[UNROLL];
        bool is_full = i + (UNROLL - 1) * TEAM < last;
        if (is_full) load_block<P>(now_in, a, at, IS_REVERSED ? ends - i : i);
        while (is_full) { // the next block is on its way while this one is worked on
            const position q = IS_REVERSED ? ends - i : i;
            i += UNROLL * TEAM;
            is_full = i + (UNROLL - 1) * TEAM < last;
            if (is_full) load_block<P>(next_in, a, at, IS_REVERSED ? ends - i : i);
            P::template elements<UNROLL>(own, now_in, now, sum, columns, a, at, q);
            #pragma unroll
            for (int u = 0; u < UNROLL; u++) now_in[u] = next_in[u];
        }
        for (; i < last; i += TEAM) {
            const position q = IS_REVERSED ? ends - i : i;
            typename P::inputs in[1];
            P::load(in[0], a, at, q);
            P::template elements<1>(own, in, now, sum, columns, a, at, q);
        }
    }
}

/* The totals of pass P that parts left in the workspace, joined. */
template <int P> DEVICE void gather(typename pass<P>::total (&sum)[LANES], const span& s, const arguments& a) {
    #pragma unroll
    for (int l = 0; l < LANES; l++) sum[l] = pass<P>::none();
    if (s.inside)
        for (i64 part = s.lane; part < pass<P>::parts(a); part += TEAM)
            #pragma unroll
            for (int l = 0; l < LANES; l++)
                sum[l] = pass<P>::joined(sum[l], pass<P>::recalled(a)[part * a.rows + s.group * LANES + l]);
    reduce_team<pass<P>>(sum, s);
}

template <int P> DEVICE void leave(const typename pass<P>::total (&sum)[LANES], const span& s, const arguments& a) {
    if (s.inside && s.lane == 0)
        #pragma unroll
        for (int l = 0; l < LANES; l++)
            ((typename pass<P>::total*)a.left)[s.part * a.rows + s.group * LANES + l] = sum[l];
}

template <int P> DEVICE void close(const typename pass<P>::total (&sum)[LANES], row* now, const arguments& a) {
    #pragma unroll
    for (int l = 0; l < LANES; l++) pass<P>::close(sum[l], now[l], a);
}

template <int P>
DEVICE void run_passes(const span& s, held* own, row* now, column* columns, const arguments& a, const place& at) {
    if constexpr (P < PASSES_END) {
        typename pass<P>::total sum[LANES];
        if constexpr (P < RECALLED) {
            gather<P>(sum, s, a);
            close<P>(sum, now, a);
        } else {
            #pragma unroll
            for (int l = 0; l < LANES; l++) sum[l] = pass<P>::none();
            if constexpr (FORGETS && P > RECALLED)
                #pragma unroll
                for (int step = 0; step < STEPS; step++) forget_held(own[step]);
            walk<pass<P>>(sum, s, own, now, columns, a, at);
            if constexpr (pass<P>::CLOSES) {
                reduce_team<pass<P>>(sum, s);
                if constexpr (IS_SPLIT) leave<P>(sum, s, a);
                else close<P>(sum, now, a);
            }
        }
        run_passes<P + 1>(s, own, now, columns, a, at);
    }
}

template <int P> DEVICE void join_parts(const span& s, const arguments& a) {
    if constexpr (P >= 0) {
        typename pass<P>::total sum[LANES];
        gather<P>(sum, s, a);
        leave<P>(sum, s, a);
    }
}

/* ---- Sums of places ---------------------------------------------------------------------------------------------- */

/* Teams of a warp, then pairs of warps (or larger teams), pairs of pairs, ...; the first one writes. */
DEVICE void leave_columns(const column (&columns)[KEPT], const arguments& a) {
    constexpr int GROUP = TEAM < 32 ? 32 : TEAM, GROUPS = THREADS / GROUP, PLACES = KEPT * RUN;
    const int lane = threadIdx.x % TEAM, group = threadIdx.x / GROUP;
    const bool is_first = threadIdx.x % GROUP < TEAM;
    #pragma unroll
    for (int k = 0; k < COLUMN_TOTALS; k++) {
        column_t mine[PLACES];
        #pragma unroll
        for (int i = 0; i < PLACES; i++) {
            mine[i] = columns[i / RUN].at[k][i % RUN];
            #pragma unroll
            for (int mask = TEAM; mask < 32; mask *= 2) mine[i] += shuffle_xor(mine[i], mask);
        }
        if constexpr (GROUPS > 1) {
            __shared__ column_t s_places[GROUPS > 1 ? GROUPS / 2 : 1][PLACES][TEAM];
            for (int left = GROUPS; left > 1; left = (left + 1) / 2) {
                const int half = (left + 1) / 2;
                if (group >= half && group < left && is_first)
                    #pragma unroll
                    for (int i = 0; i < PLACES; i++) s_places[group - half][i][lane] = mine[i];
                __syncthreads();
                if (group + half < left)
                    #pragma unroll
                    for (int i = 0; i < PLACES; i++) mine[i] += s_places[group][i][lane];
                __syncthreads();
            }
        }
        #pragma unroll
        for (int step = 0; step < KEPT; step++) {
            column_t run_of[RUN];
            #pragma unroll
            for (int e = 0; e < RUN; e++) run_of[e] = mine[step * RUN + e];
            const position q = lane + step * TEAM;
            if (group == 0 && is_first && q < a.runs) store_column(k, run_of, a, q);
        }
    }
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

DEVICE span span_of(const arguments& a, i64 job, int turn) {
    span s;
    s.lane = COLUMNS ? threadIdx.x / ACROSS : threadIdx.x % TEAM;
    s.across = COLUMNS ? threadIdx.x % ACROSS : threadIdx.x / TEAM;
    s.part = IS_SPLIT ? job % a.parts : 0;
    s.group = (IS_SPLIT ? job / a.parts : job) * ACROSS + s.across;
    s.inside = s.group < a.groups;
    s.first = IS_SPLIT ? (position)(s.part * a.part_runs) : 0;
    s.last = IS_SPLIT && s.first + a.part_runs < a.runs ? (position)(s.first + a.part_runs) : (position)a.runs;
    s.turn = turn;
    return s;
}

/* The runs that stay in registers, all requested before any is used. */
DEVICE void load_own(held (&own)[KEPT], const span& s, const arguments& a, const place& at) {
    #pragma unroll
    for (int step = 0; step < STEPS; step++)
        if (s.inside && s.lane + step * TEAM < s.last) load_held(own[step], a, at, s.lane + step * TEAM);
}

/* The same, to shared memory and AHEAD jobs early: every thread copies what it alone will take. */
DEVICE void copy_ahead(const arguments& a, i64 job, int buffer) {
    if (job < a.jobs) {
        const span s = span_of(a, job, 0);
        const place at = place_of(a, s.inside ? s.group : 0);
        #pragma unroll
        for (int step = 0; step < STEPS; step++)
            if (s.inside && s.lane + step * TEAM < s.last)
                copy_held(buffer * STEPS + step, a, at, s.lane + step * TEAM);
    }
    close_copies();
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) rows(const __grid_constant__ arguments a) {
    column columns[KEPT];
    #pragma unroll
    for (int step = 0; step < KEPT; step++) clear_column(columns[step]);
    int turn = 0, buffer = 0;
    if constexpr (AHEAD > 0)
        for (int early = 0; early < AHEAD; early++) copy_ahead(a, blockIdx.x + (i64)gridDim.x * early, early);
    for (i64 job = blockIdx.x; job < a.jobs; job += gridDim.x) {
        const span s = span_of(a, job, turn);
        const place at = place_of(a, s.inside ? s.group : 0);
        held own[KEPT];
        row now[LANES];
        if constexpr (AHEAD > 0) {
            copy_ahead(a, job + (i64)gridDim.x * AHEAD, buffer == 0 ? AHEAD : buffer - 1);
            await_copies<AHEAD>();
            #pragma unroll
            for (int step = 0; step < STEPS; step++) take_held(own[step], buffer * STEPS + step);
            buffer = buffer == AHEAD ? 0 : buffer + 1;
        } else {
            load_own(own, s, a, at);
        }
        open_rows(now, a, at);
        join_parts<JOIN>(s, a);
        run_passes<0>(s, own, now, columns, a, at);
        if (HAS_ROW_STORES && s.inside && s.lane == 0 && s.part == 0) store_rows(now, a, at);
        turn ^= 1;
    }
    if constexpr (COLUMN_TOTALS > 0) leave_columns(columns, a);
}
