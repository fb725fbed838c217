/* interleaved: rows that lie in memory SEGMENT vectors of each in turn: threads of a block lie as memory does, ACROSS
   vectors of ACROSS / SEGMENT rows side by side, GROUP times. A thread keeps its place in the segment, and a row is as
   long as it has segments. Behind strip.cuh
   Demands   SEGMENT divides ACROSS, and ACROSS / SEGMENT the rows
   Measured  H100, group norm and swish of channels last, and each row by itself: 2x640x64x64 19 us and not 49,
             2x320x128x128 33 and not 88, 1x128x512x512 81 and not 678
   Tried     partial results joined by a launch of their own, two waves of blocks to store: 30 us (2x640x64x64)
             1024 threads and not 768: 7 to 10 % faster in vectors of 4 bytes; in longer ones they spill, 10 % slower */

constexpr int SEGMENT_VECTORS = SEGMENT > 0 ? SEGMENT : 1,
              ROWS = ACROSS / SEGMENT_VECTORS; // vectors of a row side by side, rows of a block

static_assert(SEGMENT <= 0 || ACROSS % SEGMENT_VECTORS == 0, "a block has whole rows");

/* In place of span_of's rows of neighbouring threads. */
DEVICE void place_interleaved(span &s, const arguments &a, i64 tile) {
    s.lane = (int)threadIdx.x / ACROSS;
    s.across = (int)threadIdx.x % ACROSS;
    s.strip = tile * ROWS + s.across / SEGMENT_VECTORS;
    s.inside = s.strip < a.strips;
}

DEVICE void set_place(base &at, const span &s) { at.place = s.across % SEGMENT_VECTORS * WIDTH; }

/* One for each vector that goes through a pass at once, all alike. */
template <int U> DEVICE void load_steady(broadcast (&all)[U], const arguments &a, const base &at) {
    load_broadcast(all[0], a, at, 0);
#pragma unroll
    for (int u = 1; u < U; u++)
        all[u] = all[0];
}

/* A warp for each row, in a fixed order. */
template <class P> DEVICE void reduce_interleaved(typename P::total &sum, const span &s) {
    __shared__ typename P::total s_threads[ROWS][GROUP * SEGMENT_VECTORS], s_rows[ROWS];
    s_threads[s.across / SEGMENT_VECTORS][s.lane * SEGMENT_VECTORS + s.across % SEGMENT_VECTORS] = sum;
    __syncthreads();
    for (int row = threadIdx.x / 32; row < ROWS; row += THREADS / 32) {
        typename P::total whole = P::none();
        for (int i = threadIdx.x % 32; i < GROUP * SEGMENT_VECTORS; i += 32)
            whole = P::joined(whole, s_threads[row][i]);
        whole = P::template of_lanes<1, 16>(whole);
        if (threadIdx.x % 32 == 0)
            s_rows[row] = whole;
    }
    __syncthreads();
    sum = s_rows[s.across / SEGMENT_VECTORS];
}

/* The partial results that splits left, joined. */
template <int P> DEVICE void gather_interleaved(typename pass<P>::total &sum, const span &s, const arguments &a) {
    const auto *left = pass<P>::left_by_splits(a) + s.strip;
    sum = pass<P>::none();
    for (i64 split = s.lane * SEGMENT_VECTORS + s.across % SEGMENT_VECTORS; split < pass<P>::splits(a);
         split += GROUP * SEGMENT_VECTORS)
        sum = pass<P>::joined(sum, left[split * a.rows]);
    reduce_interleaved<pass<P>>(sum, s);
}
