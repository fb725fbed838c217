/* backward_fp8: what gradients of FP8 have beside those of 16 bits; operands are widened to f16, which holds them
   Formula   P' = P scale_s = 2^(scale2 S - lse2), lse2 less log2(scale_s), is the factor of dV once it is rounded to
             FP8; dS' = scale dS scale_dP = P' (dP of_dp - delta), delta with the same factors, is that of dK and dQ;
             descales multiply sums, scales what is stored. The largest numbers are those before their scales
             MXFP8: operands are bf16, times their scales; factors are bf16, and all scales here 1
   Demands   IS_FP8 HAS_AMAX_DS weight_factor_t ds_factor_t; with IS_FP8, of each scale, 1 where there is none,
             descale_q_of(arguments), .. */

#include "attention/amax.cuh"

template <class P> DEVICE float score_scale_of(const P &p) {
    if constexpr (IS_FP8)
        return scale_of(p) * descale_q_of(p) * descale_k_of(p);
    else
        return scale_of(p);
}
/* From P' and the gradient of P to dS'. */
template <class P> DEVICE float slope_scale_of(const P &p) {
    return scale_of(p) * scale_dp_of(p) / scale_s_of(p) * descale_d_o_of(p);
}
template <class P> DEVICE float delta_scale_of(const P &p) { return slope_scale_of(p) * descale_o_of(p); }

/* Two numbers, rounded to FP8; and these as f16. */
template <class F> DEVICE u16 byte_pair(float low, float high) {
    if constexpr (same<F, e4m3>::value)
        return ptx::cvt_e4m3x2(high, low);
    else
        return ptx::cvt_e5m2x2(high, low);
}
template <class F> DEVICE u32 widened_pair(u16 pair) {
    if constexpr (same<F, e4m3>::value)
        return ptx::cvt_f16x2_e4m3x2(pair);
    else
        return ptx::cvt_f16x2_e5m2x2(pair);
}
/* The same, or numbers rounded to 16 bits. */
template <class F> DEVICE u32 factor_pair(float low, float high) {
    if constexpr (sizeof(F) == 2)
        return rounded_pair<F>(low, high);
    else
        return widened_pair<F>(byte_pair<F>(low, high));
}
template <class F> DEVICE u32 factor_pair(u32 pair) {
    if constexpr (sizeof(F) == 2)
        return pair;
    else if constexpr (same<F, e4m3>::value)
        return ptx::cvt_f16x2_e4m3x2(ptx::cvt_e4m3x2(pair));
    else
        return ptx::cvt_f16x2_e5m2x2(ptx::cvt_e5m2x2(pair));
}

/* What dS' is made with, and the largest one that this thread made. */
struct score_factors {
    float of_dp = 1, largest = 0;
    template <class P> DEVICE explicit score_factors(const P &p) {
        if constexpr (IS_FP8)
            of_dp = slope_scale_of(p) * descale_v_of(p);
    }
    DEVICE void note(float low, float high) {
        if constexpr (HAS_AMAX_DS)
            largest = fmaxf(largest, fmaxf(fabsf(low), fabsf(high)));
    }
    template <class P> DEVICE void store(const P &p) const {
        if constexpr (HAS_AMAX_DS)
            raise_largest(p.amax_ds, largest / scale_dp_of(p));
    }
};

/* Two neighbours of a gradient's row: its true values, times what memory is multiplied by. */
template <bool HAS_AMAX, class T> DEVICE void store_scaled_pair(T *to, float x, float y, float scale, float &largest) {
    if constexpr (HAS_AMAX)
        largest = fmaxf(largest, fmaxf(fabsf(x), fabsf(y)));
    store_run<T, 2>(to, keep_run<T, 2>(run<float, 2>{{x * scale, y * scale}}).stored);
}
