/* keys: unsigned integers in the order of the elements, so that the largest key is the best element. -0 equals 0. For
   the smallest elements, all bits are inverted. NaN is the largest element, and with NAN_IS_FIRST always the best. */
DEVICE u32 ordered(float x) {
    const u32 bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
    const u32 key = bits >> 31 && magnitude ? ~bits : magnitude | 0x80000000u;
    return magnitude > 0x7f800000u ? 0xffffffffu : key;
}
DEVICE u64 ordered(double x) {
    const u64 bits = (u64)__double_as_longlong(x), magnitude = bits & 0x7fffffffffffffffull;
    const u64 key = bits >> 63 && magnitude ? ~bits : magnitude | 0x8000000000000000ull;
    return magnitude > 0x7ff0000000000000ull ? 0xffffffffffffffffull : key;
}
DEVICE u64 ordered(i64 x) { return (u64)x ^ 0x8000000000000000ull; }

DEVICE key_t key_of(x_t x) {
    const key_t key = (key_t)ordered(as<number_t>::of(x));
    return IS_LEAST && !(NAN_IS_FIRST && key == ~(key_t)0) ? ~key : key;
}

/* An element: its key and its position. The lower one of two positions with equal keys is better. */
struct element {
    key_t key;
    i32 position;
    using accumulator = element;
    static constexpr bool COMMUTES = true;
    static DEVICE element none() { return {(key_t)0, 0x7fffffff}; }
    DEVICE bool precedes(const element &b) const { return key > b.key || (key == b.key && position < b.position); }
    static DEVICE element joined(const element &a, const element &b) { return b.precedes(a) ? b : a; }
};

/* Stores the r-th element of a line. */
DEVICE void store_element(const arguments &p, u32 line, i64 r, i32 position) {
    if constexpr (HAS_VALUES)
        p.values[values_line(p, line) + r * p.values_step] =
            from<values_t>::number(as<number_t>::of(p.x[x_line(p, line) + position * p.x_step]));
    if constexpr (HAS_INDICES)
        p.indices[indices_line(p, line) + r * p.indices_step] = (indices_t)position;
}
