/* exchange: a tile in shared memory that is loaded along one dim ("axis") and read along another ("last").
   Rows correspond to the last dim; the axis is along a row. Rows are an odd number of words, so that loads write them
   without bank conflicts, and every RUN rows start one word later, so that lanes, which read every RUN-th row, have no
   conflicts either. */

/* Four of the eight bytes of two words, each selected by a digit, the lowest first. Inline assembly, because the
   compiler would turn it into shifts. */
template <u32 DIGITS> DEVICE u32 pick_bytes(u32 a, u32 b) { return ptx::prmt(a, b, DIGITS); }

/* Word i gets part i of every word: transposes squares of 16-bit and of 8-bit elements. */
DEVICE void transpose_words(u32 (&w)[2]) {
    const u32 low = pick_bytes<0x5410>(w[0], w[1]);
    w[1] = pick_bytes<0x7632>(w[0], w[1]);
    w[0] = low;
}
DEVICE void transpose_words(u32 (&w)[4]) {
    const u32 a = pick_bytes<0x5140>(w[0], w[1]), b = pick_bytes<0x5140>(w[2], w[3]);
    const u32 c = pick_bytes<0x7362>(w[0], w[1]), d = pick_bytes<0x7362>(w[2], w[3]);
    w[0] = pick_bytes<0x5410>(a, b);
    w[1] = pick_bytes<0x7632>(a, b);
    w[2] = pick_bytes<0x5410>(c, d);
    w[3] = pick_bytes<0x7632>(c, d);
}

/* A loaded run, in whole words if it fills them: the compiler splits copies of byte runs. */
template <class T, int N, bool HAS_WORDS = sizeof(run<T, N>) % 4 == 0> struct read_run {
    using type = chunk<(int)sizeof(run<T, N>)>;
};
template <class T, int N> struct read_run<T, N, false> {
    using type = run<T, N>;
};

template <class T> struct exchange {
    static constexpr int PITCH = (TILE_AXIS * (int)sizeof(T) + 3) / 4 | 1;
    u32 words[TILE_LAST * PITCH + TILE_LAST / RUN];

    static DEVICE int row_of(int last) { return last * PITCH + (RUN > 1 ? last / RUN : 0); }

    /* N adjacent elements along the axis, starting at a multiple of N: whole words, or the part of a word that they
       fill. */
    template <int N> DEVICE run<T, N> take(int last, int axis) const {
        const u32 *row = words + row_of(last);
        if constexpr (sizeof(run<T, N>) < 4)
            return load_run<T, N>((const T *)row + axis);
        union {
            u32 words[(sizeof(run<T, N>) + 3) / 4];
            run<T, N> elements;
        } both;
#pragma unroll
        for (int i = 0; i < (int)(sizeof(run<T, N>) / 4); i++)
            both.words[i] = row[axis * (int)sizeof(T) / 4 + i];
        return both.elements;
    }

    /* COUNT adjacent elements along the last dim at each of N positions along the axis: as many words, whose bytes are
       permuted. */
    template <int COUNT, int N> DEVICE void transposed(run<T, COUNT> (&out)[N], int last, int axis) const {
        if constexpr (sizeof(run<T, N>) == 4 && N > 1 && COUNT % N == 0) {
#pragma unroll
            for (int e = 0; e < COUNT; e += N) {
                u32 w[N];
#pragma unroll
                for (int i = 0; i < N; i++)
                    w[i] = words[row_of(last + e + i) + axis / N];
                transpose_words(w);
#pragma unroll
                for (int i = 0; i < N; i++)
                    ((u32 *)&out[i])[e / N] = w[i];
            }
        } else {
#pragma unroll
            for (int e = 0; e < COUNT; e++) {
                const run<T, N> group = take<N>(last + e, axis);
#pragma unroll
                for (int i = 0; i < N; i++)
                    out[i].at[e] = group.at[i];
            }
        }
    }

    template <int BYTES> DEVICE void put(int last, int axis, const chunk<BYTES> &r) {
#pragma unroll
        for (int i = 0; i < BYTES / 4; i++)
            words[row_of(last) + axis * (int)sizeof(T) / 4 + i] = r.words[i];
    }
    template <int N> DEVICE void put(int last, int axis, const run<T, N> &r) {
#pragma unroll
        for (int e = 0; e < N; e++)
            ((T *)(words + row_of(last)))[axis + e] = r.at[e];
    }

    /* Loads the tile at `from`, whose elements along the last dim have stride `stride`, within the tensor's
       bounds. */
    template <int N> DEVICE void fill(const T *from, i64 stride, i64 left_axis, i64 left_last) {
        constexpr int PER_ROW = TILE_AXIS / N, ALL = TILE_LAST * PER_ROW, EACH = (ALL + THREADS - 1) / THREADS;
        constexpr int AT_ONCE = EACH < 8 ? EACH : 8;
        static_assert(TILE_AXIS % N == 0, "runs cover a row");
#pragma unroll 1
        for (int first = threadIdx.x; first < ALL; first += AT_ONCE * THREADS) {
            using read_t = typename read_run<T, N>::type;
            read_t in[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int n = first + i * THREADS, last = n / PER_ROW, axis = n % PER_ROW * N;
                if (n < ALL && last < left_last && axis < left_axis)
                    in[i] = *(const read_t *)(from + (last * stride + axis));
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int n = first + i * THREADS, last = n / PER_ROW, axis = n % PER_ROW * N;
                if (n < ALL && last < left_last && axis < left_axis)
                    put(last, axis, in[i]);
            }
        }
    }
};
