/* score_functions: what score modifiers call instead of the functions of math.cuh, where operands have 16 bits or fewer:
   a rounding of such a weight, 2^-9 or 2^-12 of it, is more than they are off by.
   tanh      x P(x^2) / Q(x^2) up to |x| = 6, which stands for all beyond: the least largest error, 8.2e-6, so that a
             score capped at 50 is off by 4e-4. One instruction of the special function unit, as 2^x is another, and ten
             others. By 2^x and its reciprocal: two and fifteen, and softmax outlasts the other consumer's products
   Tried     tanh.approx: four instructions fewer, off by 2^-11: 2 % of a weight, and of statistics in float */

namespace weft::score_functions {

DEVICE float tanh(float x) {
    const float y = -at_least(-at_least(x, -6.0f), -6.0f), z = y * y;
    const float numerator = fmaf(fmaf(1.46747543e-3f, z, 0.114019744f), z, 0.999963522f) * y;
    const float denominator = fmaf(fmaf(fmaf(5.34400533e-5f, z, 1.73190869e-2f), z, 0.447239786f), z, 1.0f);
    return numerator * reciprocal_approx(denominator);
}
DEVICE double tanh(double x) { return weft::tanh(x); }

} // namespace weft::score_functions
