/* segmented: rows stored in alternating segments of SEGMENT vectors. The threads of a block are arranged like memory:
   ACROSS vectors of ACROSS / SEGMENT adjacent rows, GROUP times. A thread keeps its position within the segment, and a
   row has one step per segment. Include after strip.cuh
   Requires  SEGMENT divides ACROSS, and ACROSS / SEGMENT divides the rows
   Measured  H100, group norm and swish of channels-last images, compared with reading each row separately:
             2x640x64x64 19 us (49), 2x320x128x128 33 (88), 1x128x512x512 81 (678)
   Tried     a separate launch that joins partial results, two waves of blocks that store: 30 us (2x640x64x64)
             1024 threads instead of 768: 7 to 10 % faster for 4-byte vectors; wider ones spill, 10 % slower */

constexpr int SEGMENT_VECTORS = SEGMENT > 0 ? SEGMENT : 1,
              ROWS = ACROSS / SEGMENT_VECTORS; // vectors per segment, rows per block

static_assert(SEGMENT <= 0 || ACROSS % SEGMENT_VECTORS == 0, "a block has whole rows");

/* Replaces span_of's assignment of rows to adjacent threads. */
DEVICE void place_segmented(span &s, const arguments &a, i64 tile) {
    s.lane = (int)threadIdx.x / ACROSS;
    s.across = (int)threadIdx.x % ACROSS;
    s.strip = tile * ROWS + s.across / SEGMENT_VECTORS;
    s.inside = s.strip < a.strips;
}

DEVICE void set_place(base &at, const span &s) { at.place = s.across % SEGMENT_VECTORS * WIDTH; }

/* Loads one vector and replicates it for all vectors that go through a pass together, because they are equal. */
template <int U> DEVICE void load_steady(broadcast (&all)[U], const arguments &a, const base &at) {
    load_broadcast(all[0], a, at, 0);
#pragma unroll
    for (int u = 1; u < U; u++)
        all[u] = all[0];
}

/* One warp reduces each row, in a fixed order. */
template <class P> DEVICE void reduce_segmented(typename P::total &sum, const span &s) {
    __shared__ typename P::total s_threads[ROWS][GROUP * SEGMENT_VECTORS], s_rows[ROWS];
    s_threads[s.across / SEGMENT_VECTORS][s.lane * SEGMENT_VECTORS + s.across % SEGMENT_VECTORS] = sum;
    __syncthreads();
    for (int row = threadIdx.x / 32; row < ROWS; row += THREADS / 32) {
        typename P::total total = P::none();
        for (int i = threadIdx.x % 32; i < GROUP * SEGMENT_VECTORS; i += 32)
            total = P::joined(total, s_threads[row][i]);
        total = P::template of_lanes<1, 16>(total);
        if (threadIdx.x % 32 == 0)
            s_rows[row] = total;
    }
    __syncthreads();
    sum = s_rows[s.across / SEGMENT_VECTORS];
}

/* Combines the partial results of the splits. */
template <int P> DEVICE void gather_segmented(typename pass<P>::total &sum, const span &s, const arguments &a) {
    const auto *left = pass<P>::left_by_splits(a) + s.strip;
    sum = pass<P>::none();
    for (i64 split = s.lane * SEGMENT_VECTORS + s.across % SEGMENT_VECTORS; split < pass<P>::splits(a);
         split += GROUP * SEGMENT_VECTORS)
        sum = pass<P>::joined(sum, left[split * a.rows]);
    reduce_segmented<pass<P>>(sum, s);
}
