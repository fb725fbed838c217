/* ctc_beta: the probability that each step of a sequence is in each state     any float types, any chip
   Formula   exp(alpha + beta - likelihood), where beta is the sum of the rest of the paths
   Tile      as alpha.cuh, from the last step to the first
   Memory    two steps of beta with the step's log-probabilities in shared memory, or in scratch if IS_LONG;
             probabilities in scratch, [N][T][states]; and for each label the next one that equals it
   Params    THREADS ROW IS_LONG log_alpha_t and those of sequence.cuh */
#include "ctc/sequence.cuh"

/* Links equal labels to chains: the next one, or -1, and whether a label begins its chain. Blanks have none. */
template <class P> DEVICE void link_labels(const P &p, const sequence &s) {
    i32 *links = p.links + s.n * 2 * p.labels;
    for (i32 i = threadIdx.x; i < s.labels; i += THREADS) {
        const i64 symbol = symbol_of(p, s, 2 * i + 1);
        i32 next = i + 1, first = 0;
        while (next < s.labels && symbol_of(p, s, 2 * next + 1) != symbol)
            next++;
        while (first < i && symbol_of(p, s, 2 * first + 1) != symbol)
            first++;
        links[2 * i] = next < s.labels ? next : -1;
        links[2 * i + 1] = first == i && symbol >= 0 && symbol != p.blank;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) ctc_beta(const __grid_constant__ arguments p) {
    __shared__ real rows[2][IS_LONG ? 1 : ROW];
    __shared__ u64 sum;
    for (i64 n = blockIdx.x; n < p.batch; n += gridDim.x) {
        const sequence s = find_sequence(p, n, &sum);
        real *now = IS_LONG ? p.rows + n * 2 * p.states : rows[0], *after = IS_LONG ? now + p.states : rows[1];
        const log_alpha_t *log_alpha = p.log_alpha + n * p.log_alpha_n;
        const real likelihood = likelihood_of(s, log_alpha + (s.steps - 1) * p.log_alpha_t0, p.log_alpha_s);
        link_labels(p, s);
        if (threadIdx.x == 0)
            p.likelihoods[n] = likelihood;
        for (i64 t = s.steps - 1; t >= 0 && likelihood != nothing(); t--) {
            real *const later = now;
            now = after, after = later;
            for (i32 i = threadIdx.x; i < s.states; i += THREADS) {
                real beta = i >= s.states - 2 ? (real)0 : nothing();
                if (t < s.steps - 1)
                    beta = add_logs(after[i], i + 1 < s.states ? after[i + 1] : nothing(),
                                    can_skip(p, s, i + 2) ? after[i + 2] : nothing());
                const real alpha = as<real>::of(log_alpha[t * p.log_alpha_t0 + i * p.log_alpha_s]);
                p.probabilities[(n * p.steps + t) * p.states + i] = exp(alpha + beta - likelihood);
                now[i] = beta + log_prob(p, s, t, symbol_of(p, s, i));
            }
            __syncthreads();
        }
        __syncthreads();
    }
}
