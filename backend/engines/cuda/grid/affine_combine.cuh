/* affine_combine: adds the sums of parts, from the first to the last, and stores dtheta     any chip
   Tile      a thread computes one element
   Params    THREADS SPATIAL real theta_t */

extern "C" __global__ void __launch_bounds__(THREADS) affine_combine(const __grid_constant__ arguments p) {
    constexpr int SUMS = SPATIAL * (SPATIAL + 1);
    const i64 at = (i64)blockIdx.x * THREADS + threadIdx.x, n = at / SUMS, k = at % SUMS;
    if (n >= p.batch)
        return;
    real sum = 0;
    for (i64 part = 0; part < p.parts; part++)
        sum += p.partial[(n * p.parts + part) * SUMS + k];
    p.theta[n * p.theta_n + k / (SPATIAL + 1) * p.theta_i + k % (SPATIAL + 1) * p.theta_j] = from<theta_t>::number(sum);
}
