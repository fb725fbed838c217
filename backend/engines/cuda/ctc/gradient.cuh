/* ctc_gradient: dlog_probs[t,n,c] = dloss[n] * (exp(log_probs[t,n,c]) - the probability that the step reads c)
   Types     any float types, any chip
   Tile      a block computes one step of a sequence: all classes, then again those of the labels and the blank
   Order     the states of a class are added up in ascending order, those of the blank by a tree: every run gives the
             same bits
   Params    THREADS ZERO_INFINITY dloss_t dlog_probs_t and those of sequence.cuh */
#include "ctc/sequence.cuh"

/* The sum over all threads of a block, for all of them. */
DEVICE real add_up(real x, real *shared) {
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2)
        x += shuffle_xor(x, mask);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = x;
    __syncthreads();
    real sum = 0;
    for (int w = 0; w < THREADS / 32; w++)
        sum += shared[w];
    __syncthreads();
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) ctc_gradient(const __grid_constant__ arguments p) {
    __shared__ real partial[THREADS / 32];
    __shared__ u64 sum;
    for (i64 item = blockIdx.x; item < p.batch * p.steps; item += gridDim.x) {
        const i64 n = item / p.steps, t = item % p.steps;
        const sequence s = find_sequence(p, n, &sum);
        const real likelihood = p.likelihoods[n], scale = as<real>::of(p.dloss[n * p.dloss_n]);
        const bool is_infinite = likelihood == nothing(), is_zero = t >= s.steps || (is_infinite && ZERO_INFINITY);
        dlog_probs_t *out = p.dlog_probs + (t * p.dlog_probs_t0 + n * p.dlog_probs_n);
        for (i64 c = threadIdx.x; c < p.classes; c += THREADS) {
            const real x = is_zero ? (real)0 : is_infinite ? nothing() - nothing() : scale * exp(log_prob(p, s, t, c));
            out[c * p.dlog_probs_c] = from<dlog_probs_t>::number(x);
        }
        if (is_zero || is_infinite)
            continue;
        const real *probabilities = p.probabilities + item * p.states;
        const i32 *links = p.links + n * 2 * p.labels;
        real blank = 0;
        for (i32 i = threadIdx.x; i < s.states; i += THREADS)
            if (symbol_of(p, s, i) == p.blank)
                blank += probabilities[i];
        blank = add_up(blank, partial); /* also orders the stores above before those below */
        for (i32 i = threadIdx.x; i < s.labels; i += THREADS) {
            if (!links[2 * i + 1])
                continue;
            real read = 0;
            for (i32 k = i; k >= 0; k = links[2 * k])
                read += probabilities[2 * k + 1];
            const i64 c = symbol_of(p, s, 2 * i + 1);
            out[c * p.dlog_probs_c] = from<dlog_probs_t>::number(scale * (exp(log_prob(p, s, t, c)) - read));
        }
        if (threadIdx.x == 0)
            out[p.blank * p.dlog_probs_c] =
                from<dlog_probs_t>::number(scale * (exp(log_prob(p, s, t, p.blank)) - blank));
        __syncthreads();
    }
}
