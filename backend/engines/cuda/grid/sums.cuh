/* sums: the elements of dx while all positions add to them, in scratch memory and in any order
   Formula   IN_ANY_ORDER: floating-point numbers, so that two runs may differ by rounding. Otherwise integers, the sum
             of which does not depend on the order: multiples of 2^-exponent, as small as the sum of all contributions
             allows; for doubles, a second integer has the digits after them. Infinities and NaN are kept apart, two
             bits per element
   Params    IN_ANY_ORDER real, and the arguments of emit_sums() in grid.c */

constexpr int LIMBS = sizeof(real) == 8 ? 2 : 1;

/* The largest finite |dy|, in the bits of a float or double, which are in the order of the numbers. */
DEVICE u32 bits_of(float x) { return __float_as_uint(x); }
DEVICE u64 bits_of(double x) { return (u64)__double_as_longlong(x); }
DEVICE float number_of(u32 bits) { return __uint_as_float(bits); }
DEVICE double number_of(u64 bits) { return __longlong_as_double((i64)bits); }
using bits_t = decltype(bits_of((real)0));

DEVICE int exponent_of(float x) { return (int)(__float_as_uint(x) >> 23 & 0xff) - 126; }
DEVICE int exponent_of(double x) { return (int)((u64)__double_as_longlong(x) >> 52 & 0x7ff) - 1022; }
DEVICE float power_of_two(int e, float) { return __uint_as_float((u32)(e + 127) << 23); }
DEVICE double power_of_two(int e, double) { return __longlong_as_double((i64)(e + 1023) << 52); }

/* Factors of the integers. */
struct scale {
    real first, second; /* from numbers to the first integer, and from its remainder to the second one */
    /* `largest` bounds |dy|, and 2^room the number of contributions to an element; no weight exceeds 1. */
    DEVICE scale(real largest, i64 room) {
        const int most = sizeof(real) == 8 ? 1022 : 126, e = 62 - (int)room - exponent_of(largest);
        first = power_of_two(e > most ? most : e < -most ? -most : e, (real)0);
        second = power_of_two(61 - (int)room, (real)0);
    }
};

template <class P> DEVICE scale scale_of(const P &p) { return scale(number_of(*(const bits_t *)p.largest), p.room); }

/* Adds a contribution to an element. */
template <class P> DEVICE void add(const P &p, i64 at, real x, const scale &by) {
    if (!(fabs(x) <= (sizeof(real) == 8 ? (real)1.7976931348623157e308 : (real)3.4028234663852886e38f))) {
        const u32 bits = x > 0 ? 1 : x < 0 ? 2 : 3;
        atomicOr(p.special + at / 16, bits << at % 16 * 2);
        return;
    }
    const real scaled = x * by.first;
    const i64 whole = __double2ll_rn((double)scaled);
    atomicAdd((u64 *)p.sums + at * LIMBS, (u64)whole);
    if constexpr (LIMBS == 2)
        atomicAdd((u64 *)p.sums + (at * LIMBS + 1), (u64)__double2ll_rn((double)((scaled - (real)whole) * by.second)));
}

/* Reads the sum of an element. */
template <class P> DEVICE real total(const P &p, i64 at, const scale &by) {
    const u32 special = p.special[at / 16] >> at % 16 * 2 & 3;
    const real infinity = power_of_two(sizeof(real) == 8 ? 1024 : 128, (real)0);
    if (special)
        return special == 3 ? infinity - infinity : special == 1 ? infinity : -infinity;
    const i64 *sums = (const i64 *)p.sums + at * LIMBS;
    double sum = (double)sums[0];
    if constexpr (LIMBS == 2)
        sum += (double)sums[1] / (double)by.second;
    return (real)(sum / (double)by.first);
}
