/* gather: building blocks of coordinates: mixed-radix indices, the taps that a phase of a strided convolution uses, and
   elements converted to the operand type of products. */

/* The offset of out-of-bounds coordinates; sums with it stay negative. */
constexpr i64 NOWHERE = -(1ll << 62);

/* Splits the fastest coordinate off a mixed-radix index. */
DEVICE u32 split(u32 &rest, const divisor &d) {
    const u32 quotient = divide(rest, d), coordinate = rest - quotient * d.value;
    rest = quotient;
    return coordinate;
}
DEVICE i32 split(i32 &rest, const divisor &d) {
    u32 quotient = (u32)rest;
    const u32 coordinate = split(quotient, d);
    rest = (i32)quotient;
    return (i32)coordinate;
}
DEVICE i64 split(i64 &rest, const divisor &d) {
    const i64 quotient = rest / d.value, coordinate = rest - quotient * d.value;
    rest = quotient;
    return coordinate;
}

/* Computes a divisor on the device as the host would. */
DEVICE divisor make_divisor(u32 value) {
    u32 bits = 0;
    while ((1ull << bits) < value)
        bits++;
    const u64 magic = value <= 1 ? 0 : ((1ull << (31 + bits)) + value - 1) / value;
    return divisor{value, (u32)magic, bits ? bits - 1 : 0, 0};
}

/* The first tap r for which coordinate - r * dilation is a multiple of the stride, or taps if there is no such tap. */
DEVICE i32 first_tap(i32 coordinate, i32 taps, i32 dilation, i32 stride) {
    i32 r = 0;
    while (r < taps && (coordinate - r * dilation) % stride != 0)
        r++;
    return r;
}
DEVICE u32 count_taps(i32 first, i32 taps, i32 step) { return first < taps ? (u32)((taps - 1 - first) / step + 1) : 0; }

/* Converts an element of storage type T to an operand of type S. */
template <class S> struct staged_as {
    static DEVICE S of(S x) { return x; }
    template <class T> static DEVICE S of(T x) { return from<S>::number(to_float(x)); }
};
template <> struct staged_as<double> {
    template <class T> static DEVICE double of(T x) { return to_double(x); }
};
template <> struct staged_as<i64> {
    template <class T> static DEVICE i64 of(T x) { return to_integer(x); }
};
template <> struct staged_as<i32> {
    template <class T> static DEVICE i32 of(T x) { return (i32)to_integer(x); }
};
template <> struct staged_as<u8> {
    template <class T> static DEVICE u8 of(T x) { return (u8)to_integer(x); }
};
