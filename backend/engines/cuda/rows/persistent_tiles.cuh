/* persistent_tiles: which tiles of rows a persistent block processes, and what it prefetches before it may read.
   Includes what passes over rows need */

#include "rows/strip.cuh"

#include "rows/reduce_rows.cuh"
template <class P> DEVICE void reduce_strip(typename P::total (&sum)[1], const span &s) { reduce_row<P>(sum[0], s); }

#include "rows/passes.cuh"

#include "rows/row_operands.cuh"

struct persistent_tiles {
    int rank;        // rank of the block in its cluster
    i64 step, first; // the blocks of a cluster share their tiles
};

/* Prefetches the first two tiles to L2 before the preceding launch ends. */
DEVICE persistent_tiles begin_tiles(const arguments &a) {
    const int rank = CLUSTER > 1 ? (int)(blockIdx.x % CLUSTER) : 0;
    const i64 step = gridDim.x / CLUSTER;
    const i64 first = blockIdx.x / CLUSTER;
    for (int i = 0; PREFETCHES_EARLY && i < 2; i++)
        prefetch_strip(a, first + i * step, rank);
    begin_launch<TRIGGER>();
    return {rank, step, first};
}

/* All blocks must run before one writes to another's shared memory. */
DEVICE void await_cluster_once(i64 tile) {
    if (CLUSTER > 1 && tile == blockIdx.x / CLUSTER)
        await_cluster();
}
