/* online_softmax: running statistics of a thread's rows while it iterates over keys, for all kernels. */

/* The two of 16 rows that a lane holds. */
struct row_state {
    own_row own[2];
    sum_t maximum[2], sum[2]; /* row_sum is this lane's part */

    DEVICE void clear(int h) { maximum[h] = unseen(), sum[h] = 0; }
};

/* Converts scores to P = e^(S - row_max), and rescales O and the sums if row_max has grown. IS_RARE: first tests
   whether any row of the warp has to be rescaled, which pays off if a warp processes few keys at a time. */
template <bool IS_SELDOM = false, int N, int O>
DEVICE void online_softmax(row_state &rows, sum_t (&s)[N][4], sum_t (&o)[O][4]) {
    sum_t rescale[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum_t maximum = rows.maximum[h];
#pragma unroll
        for (int j = 0; j < N; j++)
            maximum = fmax(maximum, fmax(s[j][2 * h], s[j][2 * h + 1]));
        maximum = row_most(maximum);
        const sum_t shift = maximum == unseen() ? (sum_t)0 : maximum;
        rescale[h] = power(rows.maximum[h] - shift);
        rows.maximum[h] = maximum;
        rows.sum[h] *= rescale[h];
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; e++) {
                s[j][e] = power(s[j][e] - shift);
                rows.sum[h] += s[j][e];
            }
    }
    if (IS_SELDOM && !__any_sync(0xffffffffu, rescale[0] != 1 || rescale[1] != 1))
        return;
#pragma unroll
    for (int j = 0; j < O; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            o[j][e] *= rescale[e / 2];
}

/* Zeroes dropped elements of P; the row sums still include them. */
template <int N, class P>
DEVICE void drop(const P &a, const rng_state &rng, const row_state &rows, int first, sum_t (&s)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; j++) {
        u32 kept = 0xf;
        if constexpr (DRAWS_DROPOUT)
            kept = kept_of(rng, rows.own, first + 8 * j, 0);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if constexpr (HAS_DROPOUT_MASK)
                if (s[j][e] != 0)
                    s[j][e] *= mask_of(a, rows.own[e / 2], first + score_column(j) + e % 2);
            if (!(kept >> e & 1))
                s[j][e] = 0;
        }
    }
}
