/* backward_scores: pairs of 16 bits, the scale of scores, and which rows meet, for the backward kernels of sm_90
   Demands IS_BF16 HAS_SCALE HAS_SEQ_LEN_Q HAS_SEQ_LEN_KV HAS_LEFT HAS_RIGHT IS_BOTTOM_RIGHT. Functions are templates on
   the arguments, so that what was not printed is not looked up. */

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

    template <class P> DEVICE band(const P &p, i32 batch) : queries((i32)p.queries), keys((i32)p.keys) {
        if constexpr (HAS_SEQ_LEN_Q)
            queries = clamp(length_of<SEQ_LEN_Q_ARE_SUMS>(p.seq_len_q, batch, p.seq_len_q_step), 0, queries);
        if constexpr (HAS_SEQ_LEN_KV)
            keys = clamp(length_of<SEQ_LEN_KV_ARE_SUMS>(p.seq_len_kv, batch, p.seq_len_kv_step), 0, keys);
        const i32 shift = IS_BOTTOM_RIGHT ? keys - queries : 0;
        if constexpr (HAS_RIGHT)
            first = clamp(-shift - p.right, -FAR, FAR);
        if constexpr (HAS_LEFT)
            last = clamp(-shift + p.left, -FAR, FAR);
    }
};
