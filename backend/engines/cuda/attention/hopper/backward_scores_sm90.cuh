/* backward_scores: 16-bit pairs, the scale of the scores, visibility, and the layout of gradient sums, for the backward
   kernels of sm_90 Requires IS_BF16 IS_FP8 HAS_SCALE HAS_SEQ_LEN_Q HAS_SEQ_LEN_KV HAS_LEFT HAS_RIGHT IS_BOTTOM_RIGHT.
   Functions are templates on the arguments, so that fields that were not emitted are not looked up. */

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

constexpr i32 FAR = 1 << 30; /* larger than any extent; sums do not overflow */
DEVICE i32 clamp(i64 x, i32 least, i32 most) { return (i32)min(max(x, (i64)least), (i64)most); }

/* Queries and keys in use of a batch entry. A key is visible to queries key + first .. key + last - 1. */
struct band {
    i32 queries, keys;
    i32 first = -FAR, last = FAR; /* unless HAS_RIGHT or HAS_LEFT */

    template <class P>
    DEVICE band(const P &p, i32 batch) : queries(queries_in_use(p, batch)), keys(keys_in_use(p, batch)) {
        const i32 shift = IS_BOTTOM_RIGHT ? keys - queries : 0;
        if constexpr (HAS_RIGHT)
            first = clamp(-shift - p.right, -FAR, FAR);
        if constexpr (HAS_LEFT)
            last = clamp(-shift + p.left, -FAR, FAR);
    }
};

/* Offset of a thread's four elements of octet `octet` of columns in the float sums of 64 rows: [8 columns][thread][4].
   With FP8, each warp adds its own sums: [64 columns][warp][8 columns][lane][4]. */
DEVICE u32 sums_offset(int octet, u32 warp) {
    return IS_FP8 ? ((octet / 8 * 4 + warp) * 8 + octet % 8) * 128 + lane_index() * 4
                  : (octet * 128 + threadIdx.x % 128) * 4;
}
