/* score_functions: what score modifiers call instead of the functions of math.cuh, where operands have 16 bits or
   fewer: a rounding of such an operand or weight is more than they are off by. Demands IS_ROUNDED
   tanh      1 - 2 / (1 + e^2x), off by 1e-7: a score capped at 50 is off by 6e-6. Two instructions of the special
             function unit, as 2^x is another, and three others
             IS_ROUNDED: all that is made of scores has 16 bits or fewer. One instruction of that unit, off by 2^-11 of
             itself, and so are scores; where they are about 20 and capped at 50, o of f16 is off by 2.5e-4, as with the
             three, and torch's own operations in f16 are off by 4e-3
             Hopper's forward kernel has a polynomial for small x
   Measured  docs/kernels.md, with what was tried */

namespace weft::score_functions {

DEVICE float tanh(float x) {
    if constexpr (IS_ROUNDED)
        return ptx::tanh(x);
    return fmaf(reciprocal_approx(1.0f + exp2_approx(2.88539008f * x)), -2.0f, 1.0f);
}
DEVICE double tanh(double x) { return weft::tanh(x); }

} // namespace weft::score_functions
