/* fragment: accumulators of wgmma, for the attention kernels of sm_90
   Layout    64 rows of a warpgroup. Element i of a thread is at fragment_row(i), fragment_column(i) from its first
             element: element 4c + 2h + e is in row 8h and column 8c + e */

#pragma once

/* Row and column of a thread's first element. */
DEVICE i32 first_row_of_thread() { return (i32)(warp_index() % 4 * 16 + lane_index() / 4); }
DEVICE i32 first_column_of_thread() { return (i32)(lane_index() % 4 * 2); }

/* For functions that need both often: warp_index() takes a shuffle. */
struct fragment_position {
    i32 row = first_row_of_thread(), column = first_column_of_thread();
};

DEVICE constexpr int fragment_row(int i) { return i / 2 % 2 * 8; }
DEVICE constexpr int fragment_column(int i) { return i / 4 * 8 + i % 2; }

/* Calls visit(i) for the elements of N that are in row h, 0 or 1, of the thread. */
template <int N, class F> DEVICE void visit_row(int h, F visit) {
#pragma unroll
    for (int c = 0; c < N / 4; ++c)
#pragma unroll
        for (int e = 0; e < 2; ++e)
            visit(4 * c + 2 * h + e);
}
