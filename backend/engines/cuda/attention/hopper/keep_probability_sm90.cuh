/* Keep probability: the inverse of the dropout scale, or 0 if nothing is kept. For kernels that compute no P
   themselves. Requires HAS_DROPOUT HAS_DROPOUT_SCALE, and the argument dropout_scale or keep_probability. */

template <class P> DEVICE float keep_probability_of(const P &p) {
    if constexpr (!HAS_DROPOUT)
        return 1;
    else if constexpr (HAS_DROPOUT_SCALE) {
        const float growth = to_float(*p.dropout_scale);
        return growth == 0 ? 0.0f : 1 / growth;
    } else
        return (float)__longlong_as_double(p.keep_probability);
}
