/* index: converts positions in a list to coordinates. Divisors are known at run time only, so the host sends each with
   its reciprocal: n / d = umulhi(n, magic) >> shift, exact for every n below 2^31. */

struct divisor {
    u32 value, magic, shift, unused;
};

DEVICE u32 divide(u32 n, const divisor &d) { return d.value == 1 ? n : __umulhi(n, d.magic) >> d.shift; }

/* Start offsets of batch entries, in elements. Multiplying it by an entry's index gives the offset, as for the stride
   that it replaces. */
template <class T> struct ragged {
    const T *offsets;
    i64 step, multiplier;
};
template <class T> DEVICE i64 operator*(i64 batch, const ragged<T> &r) {
    return to_integer(r.offsets[batch * r.step]) * r.multiplier;
}
template <class T> DEVICE constexpr bool is_ragged(const ragged<T> &) { return true; }
DEVICE constexpr bool is_ragged(i64) { return false; }

/* Limits of the batch entries of a ragged tensor. Offsets come from memory and may have any value: an entry whose rows
   would exceed the tensor, or that is misaligned for the kernels' accesses, gets no rows. */
template <class T> struct ragged_limit {
    const T *offsets, *end;     // the last offset is the end of the tensor
    i64 step, multiplier, most; // most: maximum of the end, in units of the multiplier
    i64 latest, row, width;     // in elements: last position at which a row may begin, row stride, row width
    i64 unit;                   // elements that offsets must be a multiple of; a power of two
    DEVICE bool has(i64 batch, i64 rows) const {
        const i64 first = to_integer(offsets[batch * step]), last = to_integer(*end);
        const i64 begin = first * multiplier, last_row = begin + (rows - 1) * row;
        return 0 <= first && first <= last && last <= most && (begin & (unit - 1)) == 0 &&
               (rows == 0 || (last_row <= latest && last_row + width <= last * multiplier));
    }
};
