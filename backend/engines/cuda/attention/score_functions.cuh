/* score_functions: what score modifiers call instead of the functions of math.cuh, where operands have 16 bits or
   fewer: a rounding of such an operand or weight is more than they are off by. Demands IS_ROUNDED
   tanh      1 - 2 / (1 + e^2x), off by 1e-7: a score capped at 50 is off by 6e-6. Two instructions of the special
             function unit, as 2^x is another, and three others
             IS_ROUNDED: all that is made of scores has 16 bits or fewer. One instruction of that unit, off by 2^-11 of
             itself, and so are scores; where they are about 20 and capped at 50, o of f16 is off by 2.5e-4, as with the
             three, and torch's own operations in f16 are off by 4e-3
   Measured  H100, soft cap, heads of 128, 4096 keys, causal: 1.18 to 1.28 of the plain case by the one instruction,
             1.6 by the three. MUFU makes a tanh as quickly as 2^x. Hopper's forward kernel has a polynomial for small x
             Gradients, of scores with a standard deviation of 25, capped at 50, bf16: off by 3.3e-3 by either
   Tried     P(x^2) / Q(x^2), one reciprocal and thirteen others, issuing which takes longer than all else: 1.78; the
             one instruction beside statistics, which are floats, and off by 2e-4 of a large score then; polynomials
             for a quarter of 2^x behind the one: 9 % slower */

namespace weft::score_functions {

DEVICE float tanh(float x) {
    if constexpr (IS_ROUNDED)
        return ptx::tanh(x);
    return fmaf(reciprocal_approx(1.0f + exp2_approx(2.88539008f * x)), -2.0f, 1.0f);
}
DEVICE double tanh(double x) { return weft::tanh(x); }

} // namespace weft::score_functions
