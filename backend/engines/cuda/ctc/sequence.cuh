/* sequence: lengths and labels of a sequence of a CTC loss, and the sums of its paths
   Memory    lengths are clamped, and labels that are no class have probability 0
   Params    THREADS IS_CONCATENATED real log_probs_t targets_t input_lengths_t target_lengths_t, and the arguments of
             emit_operands() in ctc.c */

/* The logarithm of 0. */
DEVICE real nothing() { return (real)-__longlong_as_double(0x7ff0000000000000ll); }

DEVICE i64 clamped(i64 x, i64 most) { return x < 0 ? 0 : x < most ? x : most; }

struct sequence {
    i64 n, steps, first; /* first: element of targets */
    i32 labels, states;
};

/* Lengths of sequence n. All threads of a block call it; `shared` is a number of shared memory. */
template <class P> DEVICE sequence find_sequence(const P &p, i64 n, u64 *shared) {
    sequence s{n, clamped(to_integer(p.input_lengths[n * p.input_lengths_n]), p.steps), n * p.targets_n,
               (i32)clamped(to_integer(p.target_lengths[n * p.target_lengths_n]), p.labels), 0};
    if constexpr (IS_CONCATENATED) {
        if (threadIdx.x == 0)
            *shared = 0;
        __syncthreads();
        u64 sum = 0;
        for (i64 i = threadIdx.x; i < n; i += THREADS)
            sum += (u64)clamped(to_integer(p.target_lengths[i * p.target_lengths_n]), p.labels);
        atomicAdd(shared, sum);
        __syncthreads();
        const i64 before = (i64)*shared;
        s.labels = (i32)clamped(p.targets_count - before, s.labels);
        s.first = before * p.targets_s;
        __syncthreads();
    }
    s.states = 2 * s.labels + 1;
    return s;
}

/* The class that a state reads, or -1. */
template <class P> DEVICE i64 symbol_of(const P &p, const sequence &s, i32 state) {
    if (state % 2 == 0)
        return p.blank;
    const i64 label = to_integer(p.targets[s.first + state / 2 * p.targets_s]);
    return label >= 0 && label < p.classes ? label : -1;
}

/* True if paths may go from state - 2 to a state, past a blank. */
template <class P> DEVICE bool can_skip(const P &p, const sequence &s, i32 state) {
    return state >= 2 && state < s.states && symbol_of(p, s, state) != symbol_of(p, s, state - 2);
}

template <class P> DEVICE real log_prob(const P &p, const sequence &s, i64 t, i64 symbol) {
    return symbol < 0 ? nothing()
                      : as<real>::of(p.log_probs[t * p.log_probs_t0 + s.n * p.log_probs_n + symbol * p.log_probs_c]);
}

DEVICE real add_logs(real a, real b, real d) {
    const real most = a > b ? (a > d ? a : d) : (b > d ? b : d);
    return most == nothing() ? most : most + log(exp(a - most) + exp(b - most) + exp(d - most));
}

/* The logarithm of the sum over all paths; last: alpha of the last step. */
template <class T> DEVICE real likelihood_of(const sequence &s, const T *last, i64 step) {
    if (s.steps == 0)
        return s.labels ? nothing() : (real)0;
    const real a = as<real>::of(last[(s.states - 1) * step]);
    return s.labels ? add_logs(a, as<real>::of(last[(s.states - 2) * step]), nothing()) : a;
}
