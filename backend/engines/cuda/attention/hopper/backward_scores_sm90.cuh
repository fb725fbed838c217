/* backward_scores: pairs of 16 bits, the scale of scores, which rows meet, and how sums of gradients lie, for sm_90's
   backward kernels
   Demands IS_BF16 IS_FP8 HAS_SCALE HAS_SEQ_LEN_Q HAS_SEQ_LEN_KV HAS_LEFT HAS_RIGHT IS_BOTTOM_RIGHT. Functions are
   templates on the arguments, so that what was not printed is not looked up. */

#include "attention/lengths.cuh"

DEVICE float low_half(u32 pair) {
    if constexpr (IS_BF16)
        return __uint_as_float(pair << 16);
    else
        return to_float(f16{(u16)pair});
}
DEVICE float high_half(u32 pair) {
    if constexpr (IS_BF16)
        return __uint_as_float(pair & 0xffff0000u);
    else
        return to_float(f16{(u16)(pair >> 16)});
}

template <class P> DEVICE float scale_of(const P &p) {
    if constexpr (HAS_SCALE)
        return to_float(*p.scale);
    else
        return (float)__longlong_as_double(p.scale);
}

constexpr i32 FAR = 1 << 30; /* more than any extent, and still adds up */
DEVICE i32 clamp(i64 x, i32 least, i32 most) { return (i32)min(max(x, (i64)least), (i64)most); }

/* Queries and keys in use of a batch entry, and the queries that see a key: from key + first on, before key + last. */
struct band {
    i32 queries, keys;
    i32 first = -FAR, last = FAR; /* where HAS_RIGHT and HAS_LEFT do not say otherwise */

    template <class P>
    DEVICE band(const P &p, i32 batch) : queries(queries_in_use(p, batch)), keys(keys_in_use(p, batch)) {
        const i32 shift = IS_BOTTOM_RIGHT ? keys - queries : 0;
        if constexpr (HAS_RIGHT)
            first = clamp(-shift - p.right, -FAR, FAR);
        if constexpr (HAS_LEFT)
            last = clamp(-shift + p.left, -FAR, FAR);
    }
};

/* Where a thread's four numbers of octet `octet` of columns lie among float sums of 64 rows: [8 columns][thread][4]; of
   FP8, whose warps add what they made each for itself, [64 columns][warp][8 columns][lane][4]. */
DEVICE u32 place_in_sums(int octet, u32 warp) {
    return IS_FP8 ? ((octet / 8 * 4 + warp) * 8 + octet % 8) * 128 + lane_index() * 4
                  : (octet * 128 + threadIdx.x % 128) * 4;
}
