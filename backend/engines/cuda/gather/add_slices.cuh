/* add_slices: sums of slices with equal indices, in the order of the indices
   Types     any, in float, double or 64-bit integers
   Tile      one of p.blocks blocks computes the sums of POSITIONS positions of THREADS adjacent lines, in shared
             memory: it reads all indices, lists those of its positions in their order, and each thread adds the
             elements of its line. Sorted indices are searched
   Params    THREADS POSITIONS IS_SORTED HAS_X sum_t */

DEVICE i64 index_at(const arguments &p, i64 m) { return to_integer(p.index[m * p.index_stride]); }

/* The number of indices below `bound`, which ascend. */
DEVICE i64 count_below(const arguments &p, i64 bound) {
    i64 low = 0, high = p.count;
    while (low < high) {
        const i64 middle = (low + high) / 2;
        if (index_at(p, middle) < bound)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

extern "C" __global__ void __launch_bounds__(THREADS) add_slices(const __grid_constant__ arguments p) {
    __shared__ sum_t sums[POSITIONS][THREADS];
    __shared__ i64 listed[THREADS];
    __shared__ i32 targets[THREADS], warps[THREADS / 32];
    const i64 columns = blockIdx.x / p.blocks, begin = (blockIdx.x - columns * p.blocks) * POSITIONS;
    const i64 number = columns * THREADS + threadIdx.x;
    const i64 end = begin + POSITIONS < p.extent ? begin + POSITIONS : p.extent;
    const bool has_line = number < p.lines;
    const u32 line = has_line ? (u32)number : 0;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const src_t *src = p.src + src_line(p, line);
    for (i64 n = begin; n < end; n++) {
        sum_t start = 0;
        if constexpr (HAS_X)
            start = has_line ? as<sum_t>::of(p.x[x_line(p, line) + n * p.x_step]) : (sum_t)0;
        sums[n - begin][threadIdx.x] = start;
    }
    const i64 first = IS_SORTED ? count_below(p, begin) : 0, last = IS_SORTED ? count_below(p, end) : p.count;
    for (i64 at = first; at < last; at += THREADS) {
        const i64 m = at + threadIdx.x, target = m < last ? index_at(p, m) : -1;
        const bool is_own = begin <= target && target < end;
        const u32 votes = __ballot_sync(0xffffffffu, is_own);
        if (lane == 0)
            warps[warp] = __popc(votes);
        __syncthreads();
        int before = __popc(votes & ((1u << lane) - 1)), found = 0;
#pragma unroll
        for (int w = 0; w < THREADS / 32; w++) {
            before += w < warp ? warps[w] : 0;
            found += warps[w];
        }
        if (is_own) {
            listed[before] = m;
            targets[before] = (i32)(target - begin);
        }
        __syncthreads();
#pragma unroll 4
        for (int i = 0; i < found; i++)
            if (has_line) {
                sum_t &sum = sums[targets[i]][threadIdx.x];
                sum = weft::plus(sum, as<sum_t>::of(src[listed[i] * p.src_step]));
            }
        __syncthreads();
    }
    for (i64 n = begin; n < end && has_line; n++)
        p.y[y_line(p, line) + n * p.y_step] = from<y_t>::number(sums[n - begin][threadIdx.x]);
}
