/* backward_fp8: scaling of FP8 gradients; operands are converted to f16, which represents them exactly
   Formula   P' = P scale_s = 2^(scale2 S - lse2), lse2 includes -log2(scale_s); P' rounded to FP8 is the operand of dV.
             dS' = scale dS scale_dP = P' (dP dp_factor - delta), where delta includes the same factors, is the
             operand of dK and dQ. Descales multiply the sums, scales multiply the stored results. Amax outputs are
             taken before the scale
             MXFP8: operands are bf16 times their scales; P and dS are bf16, and all scales here are 1
   Requires  IS_FP8 HAS_AMAX_DS p_operand_t ds_operand_t; with IS_FP8, for each scale, descale_q_of(arguments), ..,
             which return 1 if there is no scale */

#include "attention/amax.cuh"

template <class P> DEVICE float score_scale_of(const P &p) {
    if constexpr (IS_FP8)
        return scale_of(p) * descale_q_of(p) * descale_k_of(p);
    else
        return scale_of(p);
}
/* Factor from P' times the gradient of P to dS'. */
template <class P> DEVICE float slope_scale_of(const P &p) {
    return scale_of(p) * scale_dp_of(p) / scale_s_of(p) * descale_d_o_of(p);
}
template <class P> DEVICE float delta_scale_of(const P &p) { return slope_scale_of(p) * descale_o_of(p); }

/* Rounds two numbers to FP8, and converts such a pair to f16. */
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
/* Rounds two numbers to the operand type: to FP8 and back to f16, or to 16 bits. */
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

/* Factors of dS', and the largest |dS'| of this thread. */
struct score_factors {
    float dp_factor = 1, largest = 0;
    template <class P> DEVICE explicit score_factors(const P &p) {
        if constexpr (IS_FP8)
            dp_factor = slope_scale_of(p) * descale_v_of(p);
    }
    DEVICE void note(float low, float high) {
        if constexpr (HAS_AMAX_DS)
            largest = fmaxf(largest, fmaxf(fabsf(low), fabsf(high)));
    }
    template <class P> DEVICE void store(const P &p) const {
        if constexpr (HAS_AMAX_DS)
            raise_amax(p.amax_ds, largest / scale_dp_of(p));
    }
};

/* Stores two adjacent elements of a gradient times the scale, and updates the amax of the unscaled values. */
template <bool HAS_AMAX, class T> DEVICE void store_scaled_pair(T *to, float x, float y, float scale, float &largest) {
    if constexpr (HAS_AMAX)
        largest = fmaxf(largest, fmaxf(fabsf(x), fabsf(y)));
    store_run<T, 2>(to, keep_run<T, 2>(run<float, 2>{{x * scale, y * scale}}).stored);
}
