/* scan_columns: cumulative results of lines whose elements are not adjacent
   Types     any, in float, double or 64-bit integers
   Tile      a thread processes a line, adjacent threads adjacent lines, so that their accesses are adjacent
   Splits    IS_SPLIT: a thread processes p.chunk elements of a line; see scan_rows.cuh
   Params    THREADS IS_SPLIT IS_TOTALS IS_EXCLUSIVE IS_REVERSED HAS_Y HAS_INDEX, running, sum_t */
#include "scan/lines.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) scan_columns(const __grid_constant__ arguments p) {
    const i64 number = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (number >= p.lines)
        return;
    const u32 line = (u32)number;
    const x_t *x = p.x + x_line(p, line);
    const i64 part = IS_SPLIT ? blockIdx.y : 0, begin = part * p.chunk;
    const i64 end = IS_SPLIT && begin + p.chunk < p.length ? begin + p.chunk : p.length;
    running total = running::none();
    if constexpr (IS_SPLIT && !IS_TOTALS)
        for (i64 i = 0; i < part; i++)
            total = running::joined(total, p.totals[i * p.lines + line]);
    const i64 y_first = HAS_Y && !IS_TOTALS ? y_line(p, line) : 0;
    const i64 index_first = HAS_INDEX && !IS_TOTALS ? index_line(p, line) : 0;
#pragma unroll 8
    for (i64 i = begin; i < end; i++) {
        const i64 position = position_at(p, i);
        const running upto =
            running::joined(total, element_of(running{}, as<sum_t>::of(x[position * p.x_step]), position));
        if constexpr (HAS_Y && !IS_TOTALS)
            p.y[y_first + position * p.y_step] = from<y_t>::number(IS_EXCLUSIVE ? total.number : upto.number);
        if constexpr (HAS_INDEX && !IS_TOTALS)
            p.index[index_first + position * p.index_step] = (index_t)position_of(upto);
        total = upto;
    }
    if constexpr (IS_TOTALS)
        p.totals[part * p.lines + line] = total;
}
