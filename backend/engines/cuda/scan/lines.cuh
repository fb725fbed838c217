/* lines: what the kernels of this folder share: positions in a line, combinations of lanes in order, extremes with
   their positions. */
/* Reads the value of the lane `distance` below. */
template <class T> DEVICE T shuffle_up(const T &x, int distance) {
    union {
        u32 words[(sizeof(T) + 3) / 4];
        T number;
    } both;
    both.number = x;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(T) / 4); i++)
        both.words[i] = __shfl_up_sync(0xffffffffu, both.words[i], distance);
    return both.number;
}

/* Combines the values of lanes 0 to the own one, in this order. */
template <class P> DEVICE P scan_lanes(P x) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const P before = shuffle_up(x, distance);
        if (lane >= distance)
            x = P::joined(before, x);
    }
    return x;
}

/* An extreme and its position. The later one of equal elements wins, and NaN wins over numbers. */
template <class A, bool IS_MAX> struct extreme {
    A number;
    i32 position;
    static DEVICE extreme none() { return {IS_MAX ? ends<A>::low() : ends<A>::high(), 0}; }
    static DEVICE extreme joined(const extreme &a, const extreme &b) {
        const bool is_later = IS_MAX ? b.number >= a.number : b.number <= a.number;
        return b.number != b.number || (a.number == a.number && is_later) ? b : a;
    }
};

/* Elements of each operator's running result. */
template <class A> DEVICE sum<A> element_of(sum<A>, A x, i64) { return {x}; }
template <class A> DEVICE product<A> element_of(product<A>, A x, i64) { return {x}; }
template <class A, bool M> DEVICE extreme<A, M> element_of(extreme<A, M>, A x, i64 position) {
    return {x, (i32)position};
}
template <class A> DEVICE i32 position_of(const sum<A> &) { return 0; }
template <class A> DEVICE i32 position_of(const product<A> &) { return 0; }
template <class A, bool M> DEVICE i32 position_of(const extreme<A, M> &x) { return x.position; }

/* The position in memory of step i of a scan. */
DEVICE i64 position_at(const arguments &p, i64 i) { return IS_REVERSED ? p.length - 1 - i : i; }
