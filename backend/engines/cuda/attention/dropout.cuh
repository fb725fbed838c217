/* dropout: keep bits of P. A Philox block of random words serves four adjacent keys of a query; or a mask is given.
   Requires HAS_DROPOUT HAS_DROPOUT_OFFSET HAS_DROPOUT_SCALE HAS_DROPOUT_MASK, core/philox.cuh, and the arguments
   dropout_seed, dropout_offset and threshold, or dropout_mask and its strides, and dropout_scale or keep_scale. */

constexpr bool DRAWS_DROPOUT = HAS_DROPOUT && !HAS_DROPOUT_MASK;

struct rng_state {
    u64 seed, offset;
    u32 threshold;
};

template <class P> DEVICE rng_state rng_state_of(const P &a) {
    if constexpr (DRAWS_DROPOUT) {
        rng_state c{(u64)to_integer(*a.dropout_seed), 0, (u32)a.threshold};
        if constexpr (HAS_DROPOUT_OFFSET)
            c.offset = (u64)to_integer(*a.dropout_offset);
        return c;
    } else {
        return rng_state{};
    }
}

/* Bit i: word i keeps its element. */
DEVICE u32 keep_bits(const rng_state &c, u64 block) {
    const philox random = philox_words(c.seed, c.offset, block);
    u32 bits = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        bits |= (u32)(random.word[i] >> 8 < c.threshold) << i;
    return bits;
}

/* Returns the factor of kept elements. */
template <class N, class P> DEVICE N dropout_scale_of(const P &a) {
    if constexpr (!HAS_DROPOUT)
        return 1;
    else if constexpr (HAS_DROPOUT_SCALE)
        return as<N>::of(*a.dropout_scale);
    else
        return (N)__longlong_as_double(a.keep_scale);
}
