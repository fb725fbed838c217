/* score_functions: functions that score modifiers call instead of those of math.cuh if operands have 16 bits or fewer:
   their error is below the rounding of such an operand or of P. Requires IS_ROUNDED
   tanh      1 - 2 / (1 + e^2x), error 1e-7, so a score capped at 50 has an error of 6e-6. Two instructions of the
             special function unit, which 2^x of the softmax needs, too, and three others
             IS_ROUNDED: everything computed from scores has 16 bits or fewer. One instruction of that unit, with a
             relative error of 2^-11, which scores inherit. With scores of about 20, capped at 50, f16 O has an error of
             2.5e-4, as with the longer version; torch's own operations in f16 have 4e-3
             Hopper's forward kernel has a polynomial for small x
   Measured  docs/kernels.md, with alternatives that were tried */

namespace weft::score_functions {

DEVICE float tanh(float x) {
    if constexpr (IS_ROUNDED)
        return ptx::tanh(x);
    return fmaf(reciprocal_approx(1.0f + exp2_approx(2.88539008f * x)), -2.0f, 1.0f);
}
DEVICE double tanh(double x) { return weft::tanh(x); }

} // namespace weft::score_functions
