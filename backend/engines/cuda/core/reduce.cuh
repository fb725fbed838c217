/* reduce: combines elements to totals. An accumulator adds chunks of elements (added) and converts to a total
   (finished); a total has an identity (none) and combines with another one. All threads that combine the same totals
   get the same bits: either the operation commutes (COMMUTES), or the order is fixed. NaN propagates. */

namespace weft {

/* ---- Between threads ---- */

template <class T> DEVICE T shuffle_xor(const T &x, int mask) {
    struct words {
        u32 at[sizeof(T) / 4];
    };
    union {
        words from;
        T number;
    } both;
    both.number = x;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(T) / 4); i++)
        both.from.at[i] = __shfl_xor_sync(0xffffffffu, both.from.at[i], mask);
    return both.number;
}

/* Reads another lane's value. */
template <class T> DEVICE T shuffle_from(const T &x, int lane) {
    union {
        u32 words[(sizeof(T) + 3) / 4];
        T numbers;
    } both;
    both.numbers = x;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(T) / 4); i++)
        both.words[i] = __shfl_sync(0xffffffffu, both.words[i], lane);
    return both.numbers;
}

/* Combines lanes whose indices differ in the bits FIRST .. LAST; all of them get the total: P::joined, lower lanes
   first. */
template <class P, int FIRST, int LAST, class T> DEVICE T reduce_lanes(T x) {
#pragma unroll
    for (int mask = FIRST; mask <= LAST; mask *= 2) {
        const T other = shuffle_xor(x, mask);
        if (P::COMMUTES || !(threadIdx.x & mask))
            x = P::joined(x, other);
        else
            x = P::joined(other, x);
    }
    return x;
}

/* ---- Sums and products ---- */

DEVICE float plus(float a, float b) { return a + b; }
DEVICE double plus(double a, double b) { return a + b; }
DEVICE i64 plus(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
DEVICE float times(float a, float b) { return a * b; }
DEVICE double times(double a, double b) { return a * b; }
DEVICE i64 times(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }

/* Adds several numbers to one, in two chains if there are many; products are fused into single instructions. */
template <class A, int N> DEVICE A plus_all(A number, const A (&x)[N]) {
    A odd = (A)0;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (N > 2 && i == 1)
            odd = x[i];
        else if (N > 2 && i % 2)
            odd = plus(odd, x[i]);
        else
            number = plus(number, x[i]);
    return N > 2 ? plus(number, odd) : number;
}

template <class A> struct sum {
    A number;
    using accumulator = sum;
    static constexpr bool COMMUTES = true;
    static DEVICE sum none() { return {(A)0}; }
    template <int N> DEVICE void added(const A (&x)[N]) { number = plus_all(number, x); }
    DEVICE sum finished() const { return *this; }
    static DEVICE sum joined(const sum &a, const sum &b) { return {plus(a.number, b.number)}; }
};

template <class A> struct product {
    A number;
    using accumulator = product;
    static constexpr bool COMMUTES = true;
    static DEVICE product none() { return {(A)1}; }
    template <int N> DEVICE void added(const A (&x)[N]) {
#pragma unroll
        for (int i = 0; i < N; i++)
            number = times(number, x[i]);
    }
    DEVICE product finished() const { return *this; }
    static DEVICE product joined(const product &a, const product &b) { return {times(a.number, b.number)}; }
};

/* ---- Extremes ---- */

template <class A> struct ends;
template <> struct ends<float> {
    static DEVICE float low() { return __int_as_float(0xff800000); }
    static DEVICE float high() { return __int_as_float(0x7f800000); }
};
template <> struct ends<double> {
    static DEVICE double low() { return -(double)ends<float>::high(); }
    static DEVICE double high() { return (double)ends<float>::high(); }
};
template <> struct ends<i64> {
    static DEVICE i64 low() { return (i64)0x8000000000000000ull; }
    static DEVICE i64 high() { return 0x7fffffffffffffffll; }
};

template <class A> DEVICE A larger(A a, A b) { return a > b || a != a ? a : b; }
template <> DEVICE float larger(float a, float b) {
    if constexpr (CHIP < 800)
        return a > b || a != a ? a : b;
    return ptx::max_nan(a, b);
}
template <class A> DEVICE A smaller(A a, A b) { return a < b || a != a ? a : b; }
template <> DEVICE float smaller(float a, float b) {
    if constexpr (CHIP < 800)
        return a < b || a != a ? a : b;
    return ptx::min_nan(a, b);
}

template <class A> struct largest {
    A number;
    using accumulator = largest;
    static constexpr bool COMMUTES = true;
    static DEVICE largest none() { return {ends<A>::low()}; }
    template <int N> DEVICE void added(const A (&x)[N]) {
#pragma unroll
        for (int i = 0; i < N; i++)
            number = larger(number, x[i]);
    }
    DEVICE largest finished() const { return *this; }
    static DEVICE largest joined(const largest &a, const largest &b) { return {larger(a.number, b.number)}; }
};

template <class A> struct least {
    A number;
    using accumulator = least;
    static constexpr bool COMMUTES = true;
    static DEVICE least none() { return {ends<A>::high()}; }
    template <int N> DEVICE void added(const A (&x)[N]) {
#pragma unroll
        for (int i = 0; i < N; i++)
            number = smaller(number, x[i]);
    }
    DEVICE least finished() const { return *this; }
    static DEVICE least joined(const least &a, const least &b) { return {smaller(a.number, b.number)}; }
};

/* ---- Mean and squared deviations ---- */

/* Returns 1 / sqrt(x), and part / whole, not necessarily exact to the last bit. */
DEVICE float inverse_root(float x) { return ptx::rsqrt(x); }
DEVICE double inverse_root(double x) { return 1 / ::sqrt(x); }
DEVICE float share(float part, float total) { return part * reciprocal_approx(total); }
DEVICE double share(double part, double total) { return part / total; }

/* The mean of some elements, around which sums of all elements can be computed. */
template <class T, int N> DEVICE T mean_of(const T (&some)[N]) {
    float mean = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        mean += to_float(some[i]) * (1.0f / N);
    return from<T>::number(mean);
}

/* Returns the mean of elements at a stride of `step`. */
template <class T> DEVICE T sample(const T *p, i64 step) {
    constexpr int SAMPLES = 16;
    T some[SAMPLES];
#pragma unroll
    for (int i = 0; i < SAMPLES; i++)
        some[i] = p[i * step];
    return mean_of(some);
}

/* Chan's formula combines moments around different means without cancellation of large numbers. */
template <class A> struct moments {
    A count, number, squares; /* number: the mean */
    static constexpr bool COMMUTES = false;
    static DEVICE moments none() { return {(A)0, (A)0, (A)0}; }
    static DEVICE moments joined(const moments &a, const moments &b) {
        const A count = a.count + b.count;
        const A weight = count > 0 ? share(b.count, count) : (A)0, distance = b.number - a.number;
        return {count, a.count > 0 ? a.number + distance * weight : b.number,
                a.squares + b.squares + distance * distance * a.count * weight};
    }

    /* Sums around the first element, which is at most sqrt(count) standard deviations from the mean, so that at most
       count units in the last place cancel in the end. */
    struct accumulator {
        A count, shift, sum, squares;
        static DEVICE accumulator none() { return {(A)0, (A)0, (A)0, (A)0}; }
        template <int N> DEVICE void added(const A (&x)[N]) {
            A near[N], square[N];
            shift = count > 0 ? shift : x[0];
#pragma unroll
            for (int i = 0; i < N; i++) {
                near[i] = x[i] - shift;
                square[i] = near[i] * near[i];
            }
            count += (A)N;
            sum = plus_all(sum, near);
            squares = plus_all(squares, square);
        }
        DEVICE moments finished() const {
            const A mean = count > 0 ? share(sum, count) : (A)0, rest = squares - sum * mean;
            return {count, shift + mean, rest < 0 ? (A)0 : rest};
        }
    };
};

/* ---- Weights of softmax ---- */

/* The reference point of the exponentials; finite even if all scores are -inf. */
template <class A> DEVICE A shift_of(A most) { return most == ends<A>::low() ? (A)0 : most; }

/* Returns e^(score - shift), where score <= shift, and 1 for infinity minus itself. */
DEVICE float weight(float score, float shift) {
    float distance = score == shift ? 0.0f : score - shift;
    distance = distance < -150.0f ? -150.0f : distance;
    const float high = distance * 1.44269504f, low = fmaf(distance, 1.44269504f, -high);
    const float power = exp2_approx(high);
    return fmaf(power, low * 0.693147181f, power);
}
DEVICE double weight(double score, double shift) { return score == shift ? 1.0 : ::exp(score - shift); }

/* The same to 20 bits near the maximum, for 16-bit results, up to a factor that all weights of a shift share. NaN is
   detected with the largest score; here it results from infinity minus itself and counts as 0. */
DEVICE float brief_weight(float score, float shift) {
    return exp2_approx(fminf(fmaf(score, 1.44269504f, shift * -1.44269504f), 0.0f));
}
DEVICE double brief_weight(double score, double shift) { return weight(score, shift); }

/* The largest score so far and the sum of weights relative to it; the former propagates NaN. */
template <class A, bool IS_BRIEF> struct weights {
    A number, sum;
    using accumulator = weights;
    static constexpr bool COMMUTES = false;
    static DEVICE A of(A score, A shift) { return IS_BRIEF ? brief_weight(score, shift) : weight(score, shift); }
    static DEVICE weights none() { return {ends<A>::low(), (A)0}; }
    template <int N> DEVICE void added(const A (&x)[N]) {
        A most = number, each[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            most = larger(most, x[i]);
        const A shift = shift_of(most);
#pragma unroll
        for (int i = 0; i < N; i++)
            each[i] = of(x[i], shift);
        sum = plus_all(sum * of(number, shift), each);
        number = most;
    }
    DEVICE weights finished() const { return *this; }
    static DEVICE weights joined(const weights &a, const weights &b) {
        const A most = larger(a.number, b.number), shift = shift_of(most);
        return {most, a.sum * of(a.number, shift) + b.sum * of(b.number, shift)};
    }
};

/* Like the general template, but with a single exponential per lane: reduces the largest score first, then the sums
   relative to it. */
template <class P, int FIRST, int LAST, class A, bool IS_BRIEF>
DEVICE weights<A, IS_BRIEF> reduce_lanes(weights<A, IS_BRIEF> x) {
    A most = x.number;
#pragma unroll
    for (int mask = FIRST; mask <= LAST; mask *= 2)
        most = larger(most, shuffle_xor(most, mask));
    x.sum *= weights<A, IS_BRIEF>::of(x.number, shift_of(most));
    x.number = most;
#pragma unroll
    for (int mask = FIRST; mask <= LAST; mask *= 2)
        x.sum += shuffle_xor(x.sum, mask);
    return x;
}

/* ---- Integers ---- */

DEVICE i64 magnitude(i64 x) { return x == ends<i64>::low() ? ends<i64>::high() : x < 0 ? -x : x; }

/* The largest integer whose square is at most x. */
DEVICE i64 integer_root(i64 x) {
    if (x <= 0)
        return 0;
    u64 root = (u64)::sqrt((double)x);
    while (root * root > (u64)x)
        root--;
    while ((root + 1) * (root + 1) <= (u64)x)
        root++;
    return (i64)root;
}

} // namespace weft
