/* strip: which strip of rows a thread processes, and which of its vectors the thread has
   A strip is a row or, with COLUMNS, WIDTH rows that are adjacent in memory. GROUP threads of each of CLUSTER blocks
   share it, and a block has ACROSS groups. Thread i of a block has vectors i, i + GROUP, ... of the block's part of the
   strip. Each thread has at most one of the UNALIGNED elements before and after the vectors, in a vector of 1
   Params    WIDTH COLUMNS GROUP ACROSS CLUSTER THREADS STEPS IS_WHOLE UNALIGNED GUARANTEED COLUMN_SUMS position */

constexpr int LANES = COLUMNS ? WIDTH : 1;  // rows per strip
constexpr int KEPT = STEPS > 0 ? STEPS : 1; // vectors per thread
constexpr int OWN = KEPT + (UNALIGNED > 0); // including its element of head or tail
/* Columns of unaligned rows are summed over rows of equal alignment: WIDTH rows are between those of adjacent
   groups. */
constexpr bool IS_SPACED = UNALIGNED > 0 && COLUMN_SUMS > 0;

static_assert(THREADS == GROUP * ACROSS && THREADS % 32 == 0, "a block is whole warps");
static_assert(UNALIGNED == 0 || (!COLUMNS && UNALIGNED <= GROUP), "a thread has one element of head and tail");
static_assert(CLUSTER == 1 || COLUMNS || (ACROSS == 1 && GROUP % 32 == 0),
              "blocks that share a row have no other rows");

struct span {
    i64 strip, split;
    int lane, across, rank; // of the group, of the block, of the cluster
    int buffer;             // exchange buffer of the groups: alternates, since the last one may still be read
    bool inside;            // the strip exists
};

DEVICE span span_of(const arguments &a, i64 tile, int rank, int buffer) {
    span s;
    s.lane = COLUMNS ? threadIdx.x / ACROSS : threadIdx.x % GROUP;
    s.across = ACROSS == 1 ? 0 : COLUMNS ? threadIdx.x % ACROSS : threadIdx.x / GROUP;
    s.rank = rank;
    s.split = 0;
    s.strip = tile * ACROSS + s.across;
    if constexpr (IS_SPACED)
        s.strip = (tile / WIDTH * ACROSS + s.across) * WIDTH + tile % WIDTH;
    s.inside = s.strip < a.strips;
    s.buffer = buffer;
    return s;
}

DEVICE position vector_of(const span &s, int step) { return (s.rank * KEPT + step) * GROUP + s.lane; }

/* Known at compile time if all rows fill all threads. */
DEVICE bool has_vector(const arguments &a, const span &s, int step) {
    return IS_WHOLE || step < GUARANTEED || (s.inside && vector_of(s, step) < vectors_of(a, s.strip));
}

DEVICE i64 unaligned_of(const arguments &a, i64 strip) { return a.length - vectors_of(a, strip) * WIDTH; }
DEVICE bool has_unaligned(const arguments &a, const span &s) {
    return s.inside && s.rank == 0 && s.split == 0 && s.lane < unaligned_of(a, s.strip);
}

/* True for the thread that stores the strip's numbers. */
DEVICE bool is_leader(const span &s) { return (IS_WHOLE || s.inside) && s.lane == 0 && s.rank == 0; }
