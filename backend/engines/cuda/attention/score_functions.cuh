/* score_functions: what score modifiers call instead of the functions of math.cuh, where operands have 16 bits or
   fewer: a rounding of such a weight, 2^-9 or 2^-12 of it, is more than they are off by.
   tanh      x P(x^2) / Q(x^2) up to |x| = 7, which stands for all beyond: of the least largest error, 1.2e-6, so that a
             score capped at 50 is off by 6e-5. One instruction of the special function unit, as 2^x is another, and
             eleven others. By 2^x and a reciprocal: two and fifteen, and softmax outlasts the other consumer's products
   Tried     tanh.approx: ten instructions fewer, but off by 2^-11: a weight by 2 %, and statistics, which are floats */

namespace weft::score_functions {

DEVICE float tanh(float x) {
    const float y = -at_least(-at_least(x, -7.0f), -7.0f), z = y * y;
    const float numerator = fmaf(fmaf(fmaf(0.0276007392f, z, 15.9983521f), z, 864.487366f), z, 7027.25684f) * y;
    const float denominator = fmaf(fmaf(z + 148.069565f, z, 3206.81348f), z, 7027.28662f);
    return numerator * reciprocal_approx(denominator);
}
DEVICE double tanh(double x) { return weft::tanh(x); }

} // namespace weft::score_functions
