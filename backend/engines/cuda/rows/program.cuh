/* program: definitions that all generated row programs use. Included before the generated code, which precedes the
   kernel
   Generated code defines struct arguments; struct base and the functions that load and store vectors; struct row, the
   numbers of one row; and pass<P> for each pass, which lists its reductions as reductions<...>
   Params    WIDTH COLUMN_SUMS column_t */

namespace weft {

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

/* Converts to a type that can be stored as any storage type. */
DEVICE float as_number(float x) { return x; }
DEVICE double as_number(double x) { return x; }
DEVICE i64 as_number(i64 x) { return x; }
template <class T> DEVICE float as_number(T x) { return to_float(x); }

/* ---- Reductions -------------------------------------------------------------------------------------------------- */

template <int... I> struct indices {};
template <int N, int... I> struct count_to : count_to<N - 1, N - 1, I...> {};
template <int... I> struct count_to<0, I...> {
    using type = indices<I...>;
};

/* A tuple of values of different types: member<I>(x) is the I-th. */
template <class... T> struct tuple {};
template <class T> struct tuple<T> {
    T first;
};
template <class T, class U, class... REST> struct tuple<T, U, REST...> {
    T first;
    tuple<U, REST...> rest;
};
template <int I, class T> DEVICE auto &member(T &t) {
    if constexpr (I == 0)
        return t.first;
    else
        return member<I - 1>(t.rest);
}

/* The reductions of one pass, R... being types of core/reduce.cuh: accumulators of each thread, which become partial
   results, which combine. */
template <class I, class... R> struct reductions_of;
template <int... I, class... R> struct reductions_of<indices<I...>, R...> {
    static constexpr bool CLOSES = sizeof...(R) > 0, COMMUTES = (true && ... && R::COMMUTES);
    using accumulators = tuple<typename R::accumulator...>;
    using total = tuple<R...>;
    /* Elements that are accumulated together. */
    template <int N> struct values {
        tuple<decltype(R::number)[N]...> of;
    };

    static DEVICE accumulators nothing() {
        accumulators t;
        ((member<I>(t) = R::accumulator::none()), ...);
        return t;
    }
    template <int N> static DEVICE void add(accumulators &t, const values<N> &x) {
        (member<I>(t).added(member<I>(x.of)), ...);
    }
    static DEVICE total finished(const accumulators &a) {
        total t;
        ((member<I>(t) = member<I>(a).finished()), ...);
        return t;
    }
    static DEVICE total none() {
        total t;
        ((member<I>(t) = R::none()), ...);
        return t;
    }
    static DEVICE total joined(const total &a, const total &b) {
        total t;
        ((member<I>(t) = R::joined(member<I>(a), member<I>(b))), ...);
        return t;
    }
    /* Combines lanes that differ in the bits FIRST .. LAST. */
    template <int FIRST, int LAST> static DEVICE total of_lanes(const total &a) {
        total t;
        ((member<I>(t) = reduce_lanes<R, FIRST, LAST>(member<I>(a))), ...);
        return t;
    }
};
template <class... R> using reductions = reductions_of<typename count_to<sizeof...(R)>::type, R...>;

/* ---- Sums of columns --------------------------------------------------------------------------------------------- */

/* Sums over rows for the positions of one vector. */
struct column {
    run<column_t, WIDTH> at[COLUMN_SUMS > 0 ? COLUMN_SUMS : 1];
};

DEVICE void clear_column(column &c) {
#pragma unroll
    for (int k = 0; k < COLUMN_SUMS; k++)
        for (int e = 0; e < WIDTH; e++)
            c.at[k].at[e] = 0;
}

} // namespace weft
