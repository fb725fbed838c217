/* paged_load: rows of sequences from the pages that a table assigns                                  any chip, any type
   Formula   row r of a sequence is row r % page size of the page in entry r / page size of its table; rows after the
             length are 0. Page indices are clamped to the container
   Tile      a thread moves RUN adjacent elements of a row, and loops over the rest with the grid's stride
   Params    THREADS RUN container_t y_t table_t length_t position, and the strides of all four tensors */

#include "core/dependent_launch.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) paged_load(const __grid_constant__ arguments p) {
    begin_overlapped();
    for (i64 first = (i64)blockIdx.x * THREADS + threadIdx.x; first < p.runs; first += (i64)gridDim.x * THREADS) {
        position rest = (position)first;
        const i64 column = (i64)split(rest, p.runs_per_row) * RUN;
        const i64 row = split(rest, p.rows), head = split(rest, p.heads), batch = rest;
        run<y_t, RUN> out;
        if (row < to_integer(p.length[batch * p.length_batch])) {
            position in_page = (position)row, entry = in_page;
            in_page = split(entry, p.page_rows);
            const i64 page = to_integer(p.table[batch * p.table_batch + (i64)entry * p.table_entry]);
            const container_t *from = p.container + min(max(page, 0ll), p.pages - 1) * p.container_page +
                                      head * p.container_head + (i64)in_page * p.container_row +
                                      column * p.container_column;
            const run<container_t, RUN> in = load_run<container_t, RUN>(from);
#pragma unroll
            for (int e = 0; e < RUN; e++)
                out.at[e] = convert<y_t>(in.at[e]);
        } else {
#pragma unroll
            for (int e = 0; e < RUN; e++)
                out.at[e] = from<y_t>::number(0.0f);
        }
        store_run<y_t, RUN>(p.y + batch * p.y_batch + head * p.y_head + row * p.y_row + column * p.y_column, out);
    }
}
