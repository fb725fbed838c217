/* alibi: a slope for each head; a score grows by it with each step from the query to the key. */

/* 2^(-8 (i+1) / n) for the first n heads, n the largest power of two, and between these for the rest. */
template <class T> DEVICE T alibi_slope(int head, int heads) {
    const int n = 1 << (31 - __clz(heads));
    const float step = head < n ? 8.0f * (head + 1) : 4.0f * (2 * (head - n) + 1);
    return (T)::exp2((T)-step / (T)n);
}
