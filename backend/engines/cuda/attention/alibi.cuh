/* alibi: per-head slopes; a score changes by the slope per step from the query to the key. */

/* 2^(-8 (i+1) / n) for the first n heads, where n is the largest power of two, and values between these for the
   rest. */
template <class T> DEVICE T alibi_slope(int head, int heads) {
    const int power = 31 - __clz(heads), n = 1 << power;
    const float step = head < n ? 8.0f * (head + 1) : 4.0f * (2 * (head - n) + 1);
    return (T)::exp2((T)(-step * __int_as_float((127 - power) << 23))); /* 1 / n, exact */
}
