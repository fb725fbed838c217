/* turns: rows that take turns in memory, SEGMENT vectors of each: threads of a block lie as memory does, ACROSS vectors
   of ACROSS / SEGMENT rows side by side, GROUP times. A thread keeps its place in the segment, and a row is as long as
   it has segments. Behind strip.cuh
   Demands   SEGMENT divides ACROSS, and ACROSS / SEGMENT the rows */

constexpr int OWN_TURN = SEGMENT > 0 ? SEGMENT : 1,
              ROWS = ACROSS / OWN_TURN; // vectors of a row side by side, rows of a block

/* In place of span_of's rows of neighbouring threads. */
DEVICE void take_turns(span &s, const arguments &a, i64 tile) {
    s.lane = (int)threadIdx.x / ACROSS;
    s.across = (int)threadIdx.x % ACROSS;
    s.strip = tile * ROWS + s.across / OWN_TURN;
    s.inside = s.strip < a.strips;
}

DEVICE void set_place(base &at, const span &s) { at.place = s.across % OWN_TURN * WIDTH; }

/* One for each vector that goes through a pass at once, all alike. */
template <int U> DEVICE void load_steady(broadcast (&all)[U], const arguments &a, const base &at) {
    load_broadcast(all[0], a, at, 0);
#pragma unroll
    for (int u = 1; u < U; u++)
        all[u] = all[0];
}

/* A warp for each row, in a fixed order. */
template <class P> DEVICE void reduce_turns(typename P::total &sum, const span &s) {
    __shared__ typename P::total s_threads[ROWS][GROUP * OWN_TURN], s_rows[ROWS];
    s_threads[s.across / OWN_TURN][s.lane * OWN_TURN + s.across % OWN_TURN] = sum;
    __syncthreads();
    for (int row = threadIdx.x / 32; row < ROWS; row += THREADS / 32) {
        typename P::total whole = P::none();
        for (int i = threadIdx.x % 32; i < GROUP * OWN_TURN; i += 32)
            whole = P::joined(whole, s_threads[row][i]);
        whole = P::template of_lanes<1, 16>(whole);
        if (threadIdx.x % 32 == 0)
            s_rows[row] = whole;
    }
    __syncthreads();
    sum = s_rows[s.across / OWN_TURN];
}

/* The partial results that splits left, joined. */
template <int P> DEVICE void gather_turns(typename pass<P>::total &sum, const span &s, const arguments &a) {
    const auto *left = pass<P>::left_by_splits(a) + s.strip;
    sum = pass<P>::none();
    for (i64 split = s.lane * OWN_TURN + s.across % OWN_TURN; split < pass<P>::splits(a); split += GROUP * OWN_TURN)
        sum = pass<P>::joined(sum, left[split * a.rows]);
    reduce_turns<pass<P>>(sum, s);
}
