/* grid_clear: sets words of scratch memory to 0     any chip
   Params    THREADS */

extern "C" __global__ void __launch_bounds__(THREADS) grid_clear(const __grid_constant__ arguments p) {
    for (i64 at = (i64)blockIdx.x * THREADS + threadIdx.x; at < p.words; at += (i64)gridDim.x * THREADS)
        p.memory[at] = 0;
}
