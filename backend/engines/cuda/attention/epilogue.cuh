/* epilogue: the end of a row of the forward pass, for all kernels. */

/* Stores the statistics of a row, given its maximum and sum, and returns the factor of O. */
template <class P>
DEVICE sum_t end_row(const P &a, i64 batch, i64 head, int query, const lengths &used, sum_t row_max, sum_t sum,
                     bool stores) {
    sum_t rescale = 1;
    if constexpr (HAS_SINK) {
        const sum_t sink =
            query < used.queries ? to_score_units(as<sum_t>::of(a.sink[head * a.sink_step])) : hidden_score();
        const sum_t top = fmax(row_max, sink), shift = top == hidden_score() ? (sum_t)0 : top;
        rescale = power(row_max - shift);
        sum = sum * rescale + power(sink - shift);
        row_max = top;
    }
    if (stores) {
        [[maybe_unused]] const bool is_used = query < used.queries; /* ragged rows past the end belong to other
                                                                       entries */
        if constexpr (HAS_STATS)
            if (is_used || !is_ragged(a.stats_batch))
                a.stats[batch * a.stats_batch + head * a.stats_head + query * a.stats_row] =
                    from<stats_t>::number(sum == 0 ? hidden_score() : to_natural(row_max) + ::log(sum));
        if constexpr (HAS_MAX)
            if (is_used || !is_ragged(a.max_batch))
                a.max[batch * a.max_batch + head * a.max_head + query * a.max_row] =
                    from<max_t>::number(to_natural(row_max));
        if constexpr (HAS_SUM_EXP)
            if (is_used || !is_ragged(a.sum_exp_batch))
                a.sum_exp[batch * a.sum_exp_batch + head * a.sum_exp_head + query * a.sum_exp_row] =
                    from<sum_exp_t>::number(sum);
    }
    return sum == 0 ? (sum_t)0 : rescale / sum;
}
