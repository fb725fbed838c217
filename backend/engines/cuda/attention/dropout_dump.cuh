/* attention_dump: stores 1 if dropout keeps an element, otherwise 0
   Tile      a thread generates one Philox block and stores its four adjacent elements
   Params    dump_t HAS_DROPOUT HAS_DROPOUT_OFFSET */

constexpr bool KV_RESIDENT = false;

#include "core/async.cuh"
#include "core/mma.cuh"
#include "core/philox.cuh"
#include "attention/warp_tiles.cuh"
#include "attention/scores.cuh"

template <class P> DEVICE void dump(const P &a) {
    const rng_state rng = rng_state_of(a);
    const i64 across = (a.keys + 3) / 4, blocks = a.lines * across;
    for (i64 block = (i64)blockIdx.x * THREADS + threadIdx.x; block < blocks; block += (i64)gridDim.x * THREADS) {
        const i64 line = block / across, query = line % a.queries, head = line / a.queries % a.heads,
                  batch = line / a.queries / a.heads;
        const u32 keep_mask = DRAWS_DROPOUT ? keep_bits(rng, (u64)block) : 15u;
        for (int i = 0; i < 4; i++) {
            const i64 key = block % across * 4 + i;
            if (key < a.keys)
                a.dump[batch * a.dump_batch + head * a.dump_head + query * a.dump_row + key * a.dump_column] =
                    from<dump_t>::number((float)(keep_mask >> i & 1));
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) attention_dump(const __grid_constant__ arguments a) {
    dump(a);
}
