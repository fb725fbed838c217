/* kept_share_sm90: the inverse of what dropout lets weights grow by, 0 where none is kept; for kernels that make no
   weights themselves. Demands HAS_DROPOUT HAS_DROPOUT_SCALE, and of the arguments dropout_scale or kept_share. */

template <class P> DEVICE float kept_share_of(const P &p) {
    if constexpr (!HAS_DROPOUT)
        return 1;
    else if constexpr (HAS_DROPOUT_SCALE) {
        const float growth = to_float(*p.dropout_scale);
        return growth == 0 ? 0.0f : 1 / growth;
    } else
        return (float)__longlong_as_double(p.kept_share);
}
