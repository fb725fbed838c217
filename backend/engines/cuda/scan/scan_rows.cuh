/* scan_rows: cumulative results of lines, by groups of threads
   Types     any, in float, double or 64-bit integers
   Tile      GROUP threads, a warp or a block, process a line in tiles of GROUP * ITEMS elements: each thread combines
             ITEMS adjacent elements, then the threads' totals are combined in order
   Splits    IS_SPLIT: several blocks process a line, p.chunk elements each. IS_TOTALS only stores the total of each
             chunk; the second launch combines the totals before its chunk, in order
   Params    THREADS GROUP ITEMS RUN IS_SPLIT IS_TOTALS IS_EXCLUSIVE IS_REVERSED HAS_Y HAS_INDEX, running, sum_t */
#include "scan/lines.cuh"

constexpr int WARPS = GROUP / 32;
constexpr int TILE = GROUP * ITEMS;

/* Combines the totals of all threads of the group before this one; `all` becomes the total of the group. */
DEVICE running threads_before(running total, running &all) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % GROUP / 32;
    const running upto = scan_lanes(total);
    running before = shuffle_up(upto, 1);
    if (lane == 0)
        before = running::none();
    all = shuffle_from(upto, 31);
    if constexpr (WARPS > 1) {
        __shared__ running totals[WARPS];
        __syncthreads();
        if (lane == 31)
            totals[warp] = upto;
        __syncthreads();
        running warps_before = running::none();
        all = running::none();
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            if (w == warp)
                warps_before = all;
            all = running::joined(all, totals[w]);
        }
        before = running::joined(warps_before, before);
    }
    return before;
}

/* Loads the ITEMS elements that begin at step `first` of the scan; those after the line are the identity. */
DEVICE void load_items(running (&x)[ITEMS], const arguments &p, const x_t *line, i64 first, i64 end) {
    if constexpr (RUN > 1) {
        const i64 begin = IS_REVERSED ? p.length - first - ITEMS : first;
        if (first + ITEMS <= end && begin >= 0 && begin % RUN == 0) {
#pragma unroll
            for (int r = 0; r < ITEMS / RUN; r++) {
                const run<x_t, RUN> part = load_run<x_t, RUN>(line + begin + r * RUN);
#pragma unroll
                for (int e = 0; e < RUN; e++) {
                    const int i = IS_REVERSED ? ITEMS - 1 - (r * RUN + e) : r * RUN + e;
                    x[i] = element_of(running{}, as<sum_t>::of(part.at[e]), begin + r * RUN + e);
                }
            }
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        x[i] = running::none();
        const i64 position = position_at(p, first + i);
        if (first + i < end)
            x[i] = element_of(running{}, as<sum_t>::of(line[position * p.x_step]), position);
    }
}

/* Stores the results of the ITEMS elements: `before` combines everything before them. */
DEVICE void store_items(const running (&x)[ITEMS], running before, const arguments &p, u32 line, i64 first, i64 end) {
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const running upto = running::joined(before, x[i]);
        const i64 position = position_at(p, first + i);
        if (first + i < end) {
            if constexpr (HAS_Y)
                p.y[y_line(p, line) + position * p.y_step] =
                    from<y_t>::number(IS_EXCLUSIVE ? before.number : upto.number);
            if constexpr (HAS_INDEX)
                p.index[index_line(p, line) + position * p.index_step] = (index_t)position_of(upto);
        }
        before = upto;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) scan_rows(const __grid_constant__ arguments p) {
    const i64 number = (i64)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP;
    if (number >= p.lines)
        return; // whole warps, and with larger groups whole blocks
    const u32 line = (u32)number;
    const x_t *x = p.x + x_line(p, line);
    const int member = threadIdx.x % GROUP;
    const i64 part = IS_SPLIT ? blockIdx.y : 0, begin = part * p.chunk;
    const i64 end = IS_SPLIT && begin + p.chunk < p.length ? begin + p.chunk : p.length;
    running carry = running::none();
    if constexpr (IS_SPLIT && !IS_TOTALS)
        for (i64 i = 0; i < part; i++)
            carry = running::joined(carry, p.totals[i * p.lines + line]);
    for (i64 at = begin; at < end; at += TILE) {
        const i64 first = at + member * ITEMS;
        running items[ITEMS], total = running::none(), all;
        load_items(items, p, x, first, end);
#pragma unroll
        for (int i = 0; i < ITEMS; i++)
            if (first + i < end)
                total = running::joined(total, items[i]);
        const running before = threads_before(total, all);
        if constexpr (!IS_TOTALS)
            store_items(items, running::joined(carry, before), p, line, first, end);
        carry = running::joined(carry, all);
    }
    if constexpr (IS_TOTALS)
        if (member == 0)
            p.totals[part * p.lines + line] = carry;
}
