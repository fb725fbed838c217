/* causal_combine: adds the partial sums of blocks, from the first to the last, and stores dW and dB
   Tile      a thread computes one sum of one channel; adjacent threads have adjacent channels
   Params    THREADS HAS_DW HAS_DB sum_t dw_t db_t */

extern "C" __global__ void __launch_bounds__(THREADS) causal_combine(const __grid_constant__ arguments p) {
    const i64 at = (i64)blockIdx.x * THREADS + threadIdx.x, sums = (p.taps + 1) * p.channels;
    if (at >= sums)
        return;
    const i64 k = at / p.channels, channel = at % p.channels;
    sum_t sum = 0;
#pragma unroll 8
    for (i64 part = 0; part < p.parts; part++)
        sum += p.partial[part * sums + at];
    if constexpr (HAS_DW)
        if (k < p.taps)
            p.dweight[channel * p.dweight_c + k * p.dweight_k] = from<dw_t>::number(sum);
    if constexpr (HAS_DB)
        if (k == p.taps)
            p.dbias[channel * p.dbias_c] = from<db_t>::number(sum);
}
