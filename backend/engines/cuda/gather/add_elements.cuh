/* add_elements: sums of elements with equal indices, in the order of the indices
   Types     any, in float, double or 64-bit integers
   Tile      a warp processes a line: 32 elements at a time, of which the first lane with an index adds all, in order.
             IS_DIRECT: sums are accumulated in y, otherwise in the workspace
   Params    THREADS IS_DIRECT HAS_X sum_t */

/* The sum of one position of the warp's line. */
DEVICE sum_t *sum_at(const arguments &p, u32 line, i64 n) {
    if constexpr (IS_DIRECT)
        return (sum_t *)(p.y + y_line(p, line) + n * p.y_step);
    else
        return p.sums + line * p.extent + n;
}

extern "C" __global__ void __launch_bounds__(THREADS) add_elements(const __grid_constant__ arguments p) {
    const i64 number = (i64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (number >= p.lines)
        return;
    const u32 line = (u32)number;
    const int lane = threadIdx.x % 32;
    for (i64 n = lane; n < p.extent; n += 32) {
        sum_t start = 0;
        if constexpr (HAS_X)
            start = as<sum_t>::of(p.x[x_line(p, line) + n * p.x_step]);
        *sum_at(p, line, n) = start;
    }
    __syncwarp();
    for (i64 at = 0; at < p.count; at += 32) {
        const i64 m = at + lane;
        i64 target = m < p.count ? to_integer(p.index[index_line(p, line) + m * p.index_stride]) : -1;
        target = target < p.extent ? target : -1;
        const sum_t own = target < 0 ? (sum_t)0 : as<sum_t>::of(p.src[src_line(p, line) + m * p.src_step]);
        sum_t sum = 0;
        if (target >= 0)
            sum = *sum_at(p, line, target);
        bool is_first = target >= 0;
#pragma unroll 4
        for (int other = 0; other < 32; other++) {
            const sum_t summand = shuffle_from(own, other);
            if (shuffle_from(target, other) == target && target >= 0) {
                sum = plus(sum, summand);
                is_first = is_first && other >= lane;
            }
        }
        if (is_first)
            *sum_at(p, line, target) = sum;
        __syncwarp();
    }
    if constexpr (!IS_DIRECT)
        for (i64 n = lane; n < p.extent; n += 32)
            p.y[y_line(p, line) + n * p.y_step] = from<y_t>::number(*sum_at(p, line, n));
}
