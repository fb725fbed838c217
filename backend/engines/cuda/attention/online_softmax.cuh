/* online_softmax: running statistics of a thread's rows while it iterates over keys, for all kernels. */

/* The two of 16 rows that a lane holds. */
struct row_state {
    resident_row resident[2];
    sum_t row_max[2], row_sum[2]; /* row_sum is this lane's part */

    DEVICE void clear(int h) { row_max[h] = hidden_score(), row_sum[h] = 0; }
};

/* Converts scores to P = e^(S - row_max), and rescales O and the sums if row_max has grown. IS_RARE: first tests
   whether any row of the warp has to be rescaled, which pays off if a warp processes few keys at a time. */
template <bool IS_RARE = false, int N, int O>
DEVICE void online_softmax(row_state &rows, sum_t (&s)[N][4], sum_t (&o)[O][4]) {
    sum_t rescale[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum_t row_max = rows.row_max[h];
#pragma unroll
        for (int j = 0; j < N; j++)
            row_max = fmax(row_max, fmax(s[j][2 * h], s[j][2 * h + 1]));
        row_max = quad_max(row_max);
        const sum_t shift = row_max == hidden_score() ? (sum_t)0 : row_max;
        rescale[h] = power(rows.row_max[h] - shift);
        rows.row_max[h] = row_max;
        rows.row_sum[h] *= rescale[h];
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; e++) {
                s[j][e] = power(s[j][e] - shift);
                rows.row_sum[h] += s[j][e];
            }
    }
    if (IS_RARE && !__any_sync(0xffffffffu, rescale[0] != 1 || rescale[1] != 1))
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
        u32 bits = 0xf;
        if constexpr (DRAWS_DROPOUT)
            bits = keep_bits_of(rng, rows.resident, first + 8 * j, 0);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if constexpr (HAS_DROPOUT_MASK)
                if (s[j][e] != 0)
                    s[j][e] *= mask_of(a, rows.resident[e / 2], first + score_column(j) + e % 2);
            if (!(bits >> e & 1))
                s[j][e] = 0;
        }
    }
}
