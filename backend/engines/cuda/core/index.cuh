/* index: from a position in a list to coordinates. Divisors are run-time numbers, so the host sends each with its
   reciprocal: n / d = umulhi(n, magic) >> shift, exact for every n below 2^31. */

struct divisor {
    u32 value, magic, shift, unused;
};

DEVICE u32 divide(u32 n, const divisor &d) { return d.value == 1 ? n : __umulhi(n, d.magic) >> d.shift; }

/* Where batch entries begin, in elements: it is multiplied by their number like the stride that it stands for. */
template <class T> struct ragged {
    const T *offsets;
    i64 step, multiplier;
};
template <class T> DEVICE i64 operator*(i64 batch, const ragged<T> &r) {
    return to_integer(r.offsets[batch * r.step]) * r.multiplier;
}
template <class T> DEVICE constexpr bool is_ragged(const ragged<T> &) { return true; }
DEVICE constexpr bool is_ragged(i64) { return false; }
