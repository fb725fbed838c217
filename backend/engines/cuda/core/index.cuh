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

/* Where the batch entries of a ragged tensor may begin. Offsets come from memory and may be anything: an entry whose
   rows would leave the tensor, or that is not aligned for the accesses of kernels, has no rows. */
template <class T> struct ragged_limit {
    const T *offsets, *end;     // the last offset is the end of the tensor
    i64 step, multiplier, most; // most: of the end, in units of the multiplier
    i64 latest, row, width;     // elements: where the last row may begin, from row to row, and of one row
    i64 unit;                   // elements that offsets are multiples of; a power of two
    DEVICE bool has(i64 batch, i64 rows) const {
        const i64 first = to_integer(offsets[batch * step]), last = to_integer(*end);
        const i64 begin = first * multiplier, last_row = begin + (rows - 1) * row;
        return 0 <= first && first <= last && last <= most && (begin & (unit - 1)) == 0 &&
               (rows == 0 || (last_row <= latest && last_row + width <= last * multiplier));
    }
};
