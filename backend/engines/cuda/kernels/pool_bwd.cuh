/* pool_bwd: dx of a maximum or mean of small windows, as window_bwd.cuh                           any type, any strides, sm_75 and up
   Formula   gathers: element i + offset = b * SIDE + e of patch b is tap e - k * STEP of the position k after the patch's first
   Tile      a thread makes RUN channels of SIDE1 x SIDE2 elements of dx, whole steps of the windows, so that which tap meets
             which element is known to the compiler; it adds in the order of memory: every run gives the same bits
   Ahead     a block asks for dy that the block AHEAD after it will read
   Limits    as pool.cuh
   Tried     numbers one by one, and all sums of floats (3x3 steps of two: 86 us for 73, of one: 71 for 54); masks where sums are floats
             (of one: 56); a bit of each number, tested per tap (as many steps); numbers found just before kept in the second cache by
             priority (nothing)
   Params    as pool.cuh, and AHEAD HAS_SAVED; PATCH1 and PATCH2 count steps per side */


constexpr int SIDE1 = PATCH1 * STEP1, SIDE2 = PATCH2 * STEP2;
/* Positions before the patch's own that reach it, and all that do. */
constexpr int BEFORE1 = (TAPS1 - 1) / STEP1, BEFORE2 = (TAPS2 - 1) / STEP2;
constexpr int REACHING1 = BEFORE1 + PATCH1, REACHING2 = BEFORE2 + PATCH2;

/* How many windows element e of a side lies in. */
constexpr DEVICE int windows_over(int e, int taps, int step) { return e % step < taps ? (taps - 1 - e % step) / step + 1 : 0; }

/* Gradients of maxima of 16 bits stay in pairs as they lie in memory: numbers are compared two at once, and two elements have a sum
   that rounds as it would by way of floats. Where more windows meet, sums are floats. */
constexpr int PAIRS = (RUN + 1) / 2;
constexpr bool IS_BF16 = same<x_t, bf16>::value, IS_HALF = IS_BF16 || same<x_t, f16>::value;
constexpr bool KEEPS_PAIRS = IS_MAXIMUM && TAPS0 == 1 && RUN % 2 == 0 && CHIP >= 800 && IS_HALF && same<x_t, y_t>::value && same<math_t, float>::value && !IS_SCALED && !HAS_OLD;

DEVICE u32 add_pair(u32 a, u32 b) {
    if constexpr (IS_BF16) asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(a) : "r"(0x3f803f80u), "r"(b));
    else asm("add.rn.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
    return a;
}

/* All bits of each half where two numbers are the same: those below 2^10 compare as halves do. */
DEVICE u32 mask_of_same(u32 a, u32 b) {
    u32 mask;
    asm("set.eq.u32.f16x2 %0, %1, %2;" : "=r"(mask) : "r"(a), "r"(b));
    return mask;
}

/* Adds a pair to two sums, each where the numbers are the same. */
template <class M> DEVICE void add_where_same(M& low, M& high, u32 pair, u32 a, u32 b) {
    asm("{\n.reg .pred p, q;\nsetp.eq.f16x2 p|q, %2, %3;\n@p add.f32 %0, %0, %4;\n@q add.f32 %1, %1, %5;\n}"
        : "+f"(low), "+f"(high) : "r"(a), "r"(b), "f"(half_of<x_t>(pair, 0)), "f"(half_of<x_t>(pair, 1)));
}

/* The numbers of RUN maxima, in pairs: 16 bits each, and what is no tap's number stays none. Bytes are loaded as words. */
template <class T> DEVICE void load_pairs(u32 (&pairs)[PAIRS], const T* from) {
    if constexpr (sizeof(T) == 1 && RUN % 4 == 0) {
        const run<u32, (RUN + 3) / 4> words = load_run<u32, (RUN + 3) / 4>((const u32*)from);
        #pragma unroll
        for (int i = 0; i < RUN / 2; i++) pairs[i] = __byte_perm(words.at[i / 2], 0, i % 2 ? 0x4342 : 0x4140);
    } else {
        const run<T, RUN> numbers = load_run<T, RUN>(from);
        #pragma unroll
        for (int i = 0; i < RUN / 2; i++) {
            const u32 low = (u32)to_integer(numbers.at[2 * i]), high = (u32)to_integer(numbers.at[2 * i + 1]);
            pairs[i] = (low < 0xffff ? low : 0xffff) | (high < 0xffff ? high : 0xffff) << 16;
        }
    }
}

/* What elements of dx have got. Which of the two is in use is known for each element; the other one is nowhere. */
struct gathered {
    math_t sum[SIDE1][SIDE2][RUN];
    u32 pairs[SIDE1][SIDE2][PAIRS];

    static constexpr DEVICE bool is_pair(int e1, int e2) { return KEEPS_PAIRS && windows_over(e1, TAPS1, STEP1) * windows_over(e2, TAPS2, STEP2) <= 2; }
    DEVICE void clear() {
        #pragma unroll
        for (int e1 = 0; e1 < SIDE1; e1++)
            #pragma unroll
            for (int e2 = 0; e2 < SIDE2; e2++)
                #pragma unroll
                for (int e = 0; e < RUN; e++) {
                    sum[e1][e2][e] = 0;
                    pairs[e1][e2][e / 2] = 0;
                }
    }
    /* What one more window gives back to an element, the first or not, where its numbers are the tap's. */
    DEVICE void add(int e1, int e2, int pair, u32 given, u32 numbers, u32 tap, bool is_first) {
        if (is_pair(e1, e2)) {
            const u32 taken = given & mask_of_same(numbers, tap);
            pairs[e1][e2][pair] = is_first ? taken : add_pair(pairs[e1][e2][pair], taken);
        } else if constexpr (KEEPS_PAIRS) {
            add_where_same(sum[e1][e2][2 * pair], sum[e1][e2][2 * pair + 1], given, numbers, tap);
        }
    }
};

/* Adds what position (k1, k2) of those that reach the patch gives back, in pairs. */
DEVICE void add_pairs(gathered& all, const run<y_t, RUN>& dy, const u32 (&numbers)[PAIRS], int k1, int k2) {
    #pragma unroll
    for (int e1 = 0; e1 < SIDE1; e1++)
        #pragma unroll
        for (int e2 = 0; e2 < SIDE2; e2++) {
            const int t1 = e1 - (k1 - BEFORE1) * STEP1, t2 = e2 - (k2 - BEFORE2) * STEP2;
            if (t1 < 0 || t1 >= TAPS1 || t2 < 0 || t2 >= TAPS2) continue;
            #pragma unroll
            for (int i = 0; i < RUN / 2; i++) all.add(e1, e2, i, ((const u32*)&dy)[i], numbers[i], (t1 * TAPS2 + t2) * 0x10001u, t1 + STEP1 >= TAPS1 && t2 + STEP2 >= TAPS2);
        }
}

DEVICE length_t nearest_position(const axis& a, length_t o) { return o < 0 ? 0 : o < a.y ? o : a.y - 1; }

/* Adds what position (k1, k2) of those that reach the patch gives back. From position `first` on, inner steps are the same for all
   threads; `again`, where maxima are found again, has their numbers. Templates, so that what was not printed is not looked up. */
template <bool IS_INTERIOR, class P, class A> DEVICE void add_position(gathered& all, const P& p, const axis (&axes)[3], const place& at, const length_t (&first)[3], length_t t0, int k1, int k2, const A& again) {
    const length_t o[3] = {first[0], first[1] + k1, first[2] + k2};
    const bool inside = IS_INTERIOR || (o[1] >= 0 && o[1] < axes[1].y && o[2] >= 0 && o[2] < axes[2].y);
    const length_t near[3] = {o[0], IS_INTERIOR ? first[1] : nearest_position(axes[1], o[1]), IS_INTERIOR ? first[2] : nearest_position(axes[2], o[2])};
    const offset_t dy_step = IS_INTERIOR ? k1 * axes[1].y_stride + k2 * axes[2].y_stride : 0;
    run<y_t, RUN> dy = load_channels(p.y + (at.n * (offset_t)p.y_n + at.c * (offset_t)p.y_c + near[0] * axes[0].y_stride + near[1] * axes[1].y_stride + near[2] * axes[2].y_stride) + dy_step);
    if constexpr (!IS_INTERIOR) mask_run(dy, mask_of(inside), 0);
    i32 where[RUN] = {};
    u32 pairs[PAIRS] = {};
    if constexpr (HAS_INDEX) {
        const offset_t step = IS_INTERIOR ? k1 * axes[1].index_stride + k2 * axes[2].index_stride : 0;
        const index_t* const from = p.index + (at.n * (offset_t)p.index_n + at.c * (offset_t)p.index_c + near[0] * axes[0].index_stride + near[1] * axes[1].index_stride + near[2] * axes[2].index_stride) + step;
        if constexpr (KEEPS_PAIRS) {
            load_pairs(pairs, from);
        } else {
            const run<index_t, RUN> numbers = load_run<index_t, RUN>(from);
            #pragma unroll
            for (int e = 0; e < RUN; e++) where[e] = (i32)to_integer(numbers.at[e]);
        }
    }
    if constexpr (HAS_SAVED) {
        #pragma unroll
        for (int e = 0; e < RUN; e++) where[e] = again.at[k1][k2].where[e];
        #pragma unroll
        for (int i = 0; KEEPS_PAIRS && i < RUN / 2; i++) pairs[i] = (u32)where[2 * i] | (u32)where[2 * i + 1] << 16;
    }
    if constexpr (KEEPS_PAIRS) {
        add_pairs(all, dy, pairs, k1, k2);
        return;
    }
    const int plane_tap = TAPS0 == 1 ? 0 : (int)t0 * TAPS1 * TAPS2;
    math_t back[RUN];
    const length_t counted = EXCLUDES_PADDING ? taps_inside(axes[0], o[0]) * taps_inside(axes[1], o[1]) * taps_inside(axes[2], o[2]) : TAPS0 * TAPS1 * TAPS2;
    #pragma unroll
    for (int e = 0; e < RUN; e++) {
        const math_t given = taken_from<y_t>::number(dy, e);
        back[e] = IS_MAXIMUM ? given : share<x_t>(given, counted);
    }
    #pragma unroll
    for (int e1 = 0; e1 < SIDE1; e1++)
        #pragma unroll
        for (int e2 = 0; e2 < SIDE2; e2++) {
            const int t1 = e1 - (k1 - BEFORE1) * STEP1, t2 = e2 - (k2 - BEFORE2) * STEP2;
            if (t1 < 0 || t1 >= TAPS1 || t2 < 0 || t2 >= TAPS2) continue;
            #pragma unroll
            for (int e = 0; e < RUN; e++)
                if (!IS_MAXIMUM || where[e] == plane_tap + t1 * TAPS2 + t2) all.sum[e1][e2][e] += back[e];
        }
}

template <bool IS_INTERIOR, class P, class A> DEVICE void add_positions(gathered& all, const P& p, const axis (&axes)[3], const place& at, const length_t (&first)[3], length_t t0, const A& again) {
    #pragma unroll
    for (int k1 = 0; k1 < REACHING1; k1++)
        #pragma unroll
        for (int k2 = 0; k2 < REACHING2; k2++) {
            add_position<IS_INTERIOR>(all, p, axes, at, first, t0, k1, k2, again);
        }
}

template <class P, class A> DEVICE void add_around(gathered& all, const P& p, const axis (&axes)[3], const place& at, const length_t (&first)[3], length_t t0, const A& again) {
    const bool is_interior = first[1] >= 0 && first[1] + REACHING1 <= axes[1].y && first[2] >= 0 && first[2] + REACHING2 <= axes[2].y;
    if (is_interior) add_positions<true>(all, p, axes, at, first, t0, again);
    else add_positions<false>(all, p, axes, at, first, t0, again);
}

template <class P> DEVICE void add_plane(gathered& all, const P& p, const axis (&axes)[3], const place& at, const length_t (&first)[3], length_t t0) {
    if constexpr (HAS_SAVED) {
        const offset_t strides[3] = {axes[0].saved_stride, axes[1].saved_stride, axes[2].saved_stride};
        const patch<REACHING1, REACHING2> again(p.saved + (at.n * (offset_t)p.saved_n + at.c * (offset_t)p.saved_c), axes, strides, first);
        add_around(all, p, axes, at, first, t0, again);
    } else {
        add_around(all, p, axes, at, first, t0, 0);
    }
}

template <class P> DEVICE void store_dx(const P& p, x_t* dx, const gathered& all, int e1, int e2) {
    run<x_t, RUN> out, old = {};
    if (gathered::is_pair(e1, e2)) {
        #pragma unroll
        for (int i = 0; i < RUN / 2; i++) ((u32*)&out)[i] = all.pairs[e1][e2][i];
        store_run<x_t, RUN>(dx, out);
        return;
    }
    if constexpr (HAS_OLD) old = load_run<x_t, RUN>(dx);
    #pragma unroll
    for (int e = 0; e < RUN; e++) {
        math_t scaled = IS_SCALED ? (math_t)__longlong_as_double(p.alpha) * all.sum[e1][e2][e] : all.sum[e1][e2][e];
        if constexpr (HAS_OLD) scaled += (math_t)__longlong_as_double(p.beta) * as<math_t>::of(old.at[e]);
        out.at[e] = from<x_t>::number(scaled);
    }
    store_run<x_t, RUN>(dx, out);
}

/* A block asks for the slab of memory that a block AHEAD after it reads, the first blocks for their own, too. A template, so that what
   was not printed is not looked up. */
template <class P> DEVICE void expect_ahead(const P& p, const void* memory) {
    if constexpr (AHEAD > 0) {
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            const i64 from = (i64)(blockIdx.x + i * AHEAD) * p.slab, left = p.whole - from;
            if (threadIdx.x == 0 && left > 0 && (i == 1 || blockIdx.x < AHEAD)) expect((const u8*)memory + from, (u32)(left < p.slab ? left : p.slab));
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) pool_bwd(const __grid_constant__ arguments p) {
    expect_ahead(p, p.y);
    begin_overlapped();
    axis axes[3];
    read_axes(axes, p);
    for (i64 turn = (i64)blockIdx.x * THREADS + threadIdx.x; turn < p.runs; turn += (i64)gridDim.x * THREADS) {
        const place at = locate(p, (position)turn);
        const length_t b1 = at.at[1] + (length_t)p.first1, b2 = at.at[2] + (length_t)p.first2;
        gathered all;
        all.clear();
        #pragma unroll
        for (int back = 0; back < (TAPS0 + STEP0 - 1) / STEP0; back++) {
            const length_t last = floor_of(at.at[0] + axes[0].offset, STEP0), o[3] = {last - back, b1 * PATCH1 - BEFORE1, b2 * PATCH2 - BEFORE2};
            const length_t t0 = at.at[0] - first_of(axes[0], o[0]);
            if (o[0] < 0 || o[0] >= axes[0].y || t0 >= TAPS0) continue;
            add_plane(all, p, axes, at, o, t0);
        }
        const length_t i1 = b1 * SIDE1 - axes[1].offset, i2 = b2 * SIDE2 - axes[2].offset;
        x_t* const dx = p.x + (at.n * (offset_t)p.x_n + at.c * (offset_t)p.x_c + at.at[0] * axes[0].x_stride + i1 * axes[1].x_stride + i2 * axes[2].x_stride);
        #pragma unroll
        for (int e1 = 0; e1 < SIDE1; e1++)
            #pragma unroll
            for (int e2 = 0; e2 < SIDE2; e2++)
                if (is_inside(axes[1], i1 + e1) && is_inside(axes[2], i2 + e2)) store_dx(p, dx + (e1 * axes[1].x_stride + e2 * axes[2].x_stride), all, e1, e2);
    }
}
