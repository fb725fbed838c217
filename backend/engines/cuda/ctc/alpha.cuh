/* ctc_alpha: the loss of each sequence, and the sums of the paths to each state     any float types, any chip
   Tile      a block computes a sequence, step by step; a thread has every THREADS-th state
   Memory    two steps in shared memory, or in scratch if IS_LONG; alpha in log_alpha, if it is stored
   Params    THREADS ROW IS_LONG HAS_ALPHA ZERO_INFINITY loss_t log_alpha_t and those of sequence.cuh */
#include "ctc/sequence.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) ctc_alpha(const __grid_constant__ arguments p) {
    __shared__ real rows[2][IS_LONG ? 1 : ROW];
    __shared__ u64 sum;
    for (i64 n = blockIdx.x; n < p.batch; n += gridDim.x) {
        const sequence s = find_sequence(p, n, &sum);
        real *now = IS_LONG ? p.rows + n * 2 * p.states : rows[0], *before = IS_LONG ? now + p.states : rows[1];
        for (i64 t = 0; t < (HAS_ALPHA ? p.steps : s.steps); t++) {
            real *const after = before;
            before = now;
            if (t < s.steps)
                now = after;
            for (i32 i = threadIdx.x; i < (HAS_ALPHA ? (i32)p.states : s.states); i += THREADS) {
                real alpha = nothing();
                if (t < s.steps && i < s.states) {
                    const real read = log_prob(p, s, t, symbol_of(p, s, i));
                    if (t == 0)
                        alpha = i < 2 ? read : alpha;
                    else
                        alpha = read + add_logs(before[i], i >= 1 ? before[i - 1] : nothing(),
                                                can_skip(p, s, i) ? before[i - 2] : nothing());
                    now[i] = alpha;
                }
                if constexpr (HAS_ALPHA)
                    p.log_alpha[n * p.log_alpha_n + t * p.log_alpha_t0 + i * p.log_alpha_s] =
                        from<log_alpha_t>::number(alpha);
            }
            /* The next step writes what this one reads. */
            __syncthreads();
            if (t >= s.steps)
                before = after;
        }
        if (threadIdx.x == 0) {
            const real loss = (real)0 - likelihood_of(s, now, 1);
            p.loss[n * p.loss_n] = from<loss_t>::number(ZERO_INFINITY && loss == -nothing() ? (real)0 : loss);
        }
        __syncthreads();
    }
}
