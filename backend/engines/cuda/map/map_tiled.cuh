/* map_tile: map.cuh in tiles, for operands that are transposed relative to the result                any chip, any type
   Formula   as map.cuh: the emitted compute() evaluates the nodes on a run of RUN adjacent elements and stores the
             results
   Tile      TILE_AXIS x TILE_LAST positions: staged operands are read along the axis, results are written along the
             last dim
   Pipeline  stage_inputs | take_inputs, load_inputs, compute: blocks of a multiprocessor overlap each other's halves
   Memory    one exchange per staged operand, of which a thread reads GROUP adjacent elements along the axis at a time,
             a word of the narrowest: they become parts of as many runs
   Tried     two runs per thread at once (4 resident blocks instead of 5: 3 to 7 % slower), 6 blocks (spills); other
             orders of tiles if four dims are permuted (no effect)
   Limits    RUN divides the last extent, and the width of each staged load the axis
   Params    RUN GROUP THREADS BLOCKS TILE_AXIS TILE_LAST, and the emitted locate(), stage_inputs(), take_inputs(),
             load_inputs(), compute() */

#include "core/dependent_launch.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) map_tile(const __grid_constant__ arguments a) {
    begin_overlapped();
    __shared__ staged tile;
    constexpr int PER_ROW = TILE_LAST / RUN, ALL = TILE_AXIS / GROUP * PER_ROW;
    static_assert(TILE_LAST % RUN == 0 && TILE_AXIS % GROUP == 0, "runs cover the tile");
    coordinates origin = locate(a, blockIdx.x);
    const i64 left_axis = a.axis_extent - along_axis(origin), left_last = a.last_extent - along_last(origin);
    stage_inputs(tile, a, origin, left_axis, left_last);
    __syncthreads();
#pragma unroll 1
    for (int n = threadIdx.x; n < ALL; n += THREADS) {
        const int axis = n / PER_ROW * GROUP, last = n % PER_ROW * RUN;
        if (axis >= left_axis || last >= left_last)
            continue;
        inputs<RUN> in[GROUP];
        coordinates to[GROUP];
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            to[g] = origin;
            along_axis(to[g]) += axis + g;
            along_last(to[g]) += last;
            if (axis + g < left_axis)
                load_inputs(in[g], a, to[g]);
        }
        take_inputs(in, tile, axis, last);
#pragma unroll
        for (int g = 0; g < GROUP; g++)
            if (axis + g < left_axis)
                compute(in[g], a, to[g]);
    }
}
