/* kv_smem: slices of KEYS keys and values in shared memory, and their products with 16 rows of a decoding warp, with
     accumulators in the layout of warp_tiles:
     scores    S += Q K^T       results   O += P V
   Rows are padded by 16 bytes. With USES_TMA, TMA loads them as panels of 128 bytes per row, in which 16-byte chunks
   have index ^ row % 8. Either way, the 8 rows of a column are in different banks.
   8-bit numbers are converted to f16 or bf16, which represent them exactly, on their way to the tensor cores:
     scores    a block of 16 columns is in the order byte_position(0) .. byte_position(15), and so is Q's, so that a
               lane's four adjacent bytes of a key are the elements that it has to provide
     results   of columns 16 j .. 16 j + 15, even ones are in o[2 j] and odd ones in o[2 j + 1], since a transposed load
               keeps adjacent bytes together */

/* ---- Location of rows ---- */

template <class T, int WIDTH> struct slice_rows {
    static constexpr int BYTES = WIDTH * (int)sizeof(T), SIZE = KEYS * (int)decode_row_bytes(BYTES, USES_TMA);
    static constexpr int PITCH = USES_TMA ? BOX_BYTES : SIZE / KEYS, PANEL = KEYS * PITCH, PANELS = SIZE / PANEL;
    static constexpr int RUN = 16 / (int)sizeof(T), ACROSS = USES_TMA ? PITCH / 16 : BYTES / 16;
    static constexpr int RUNS = KEYS * ACROSS * PANELS; /* 16-byte chunks, without the padding */
    const char *row;
    u32 swizzle;

    /* Returns the address for a lane that reads the first or the second half of 32 bytes of row r. */
    DEVICE slice_rows(const void *rows, int r, int half)
        : row((const char *)rows + r * PITCH + (USES_TMA ? 0 : half * 16)),
          swizzle(USES_TMA ? (half ^ r % 8) * 16 : 0) {}
    DEVICE const void *at(int i) const {
        return USES_TMA ? row + i / 4 * PANEL + (i % 4 * 32 ^ swizzle) : row + i * 32;
    }
    static DEVICE int row_of_run(int i) { return i / ACROSS % KEYS; }
    static DEVICE int offset_of_run(int i) { return (i / ACROSS * PITCH + i % ACROSS * 16) / (int)sizeof(T); }
};

/* An MMA multiplies every element, including values of hidden keys by a P of 0, and 0 x NaN is NaN. So if a row may be
   hidden from some query, the group's threads clear elements that are not finite and flag the row; queries that see the
   row then set their results to NaN. To be called before the barrier that publishes the slice. */
template <class L, int GROUP, class T> DEVICE void clear_non_finite(T *rows, int *non_finite, int mark) {
#pragma unroll 2
    for (int i = (int)threadIdx.x % GROUP; i < L::RUNS; i += GROUP) {
        run<T, L::RUN> some = load_run<T, L::RUN>(rows + L::offset_of_run(i));
        bool is_clean = true;
#pragma unroll
        for (int e = 0; e < L::RUN; e++)
            is_clean = is_clean && is_finite(some.at[e]);
        if (is_clean)
            continue;
#pragma unroll
        for (int e = 0; e < L::RUN; e++)
            if (!is_finite(some.at[e]))
                some.at[e] = T{};
        store_run<T, L::RUN>(rows + L::offset_of_run(i), some);
        store_same(non_finite + L::row_of_run(i), mark);
    }
}

/* ---- Conversion of two bytes to two 16-bit numbers ---- */

/* Position of column i in a block of 16: columns 4 t .. 4 t + 3 are the MMA's 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. */
DEVICE int byte_position(int i) { return i % 16 / 4 * 2 + i % 2 + i % 4 / 2 * 8 + i / 16 * 16; }

template <class E> struct byte_pair;
template <> struct byte_pair<e4m3> {
    static DEVICE u32 halves(u32 x) { return ptx::cvt_f16x2_e4m3x2((u16)x); }
};
template <> struct byte_pair<e5m2> {
    static DEVICE u32 halves(u32 x) { return __byte_perm(x, 0, 0x1404); } /* e5m2 is the upper byte of f16 */
};

/* Converts the low two bytes of x. */
template <class S, class E> struct two_bytes {
    static DEVICE u32 number(u32 x) {
        const u32 pair = byte_pair<E>::halves(x);
        if constexpr (same<S, f16>::value)
            return pair;
        else
            return two_of<bf16>::number(to_float(f16{(u16)pair}), to_float(f16{(u16)(pair >> 16)}));
    }
};
/* In f16, 0x6400 + u is 1024 + u. */
template <> struct two_bytes<f16, i8> {
    static DEVICE u32 number(u32 x) { return ptx::sub_f16x2(__byte_perm(x ^ 0x8080, 0x64646464, 0x4140), 0x64806480u); }
};
/* In bf16, 0x4300 + u is 128 + u for u < 128, and 0x4380 is 256. */
template <> struct two_bytes<bf16, i8> {
    static DEVICE u32 number(u32 x) {
        const u32 both = __byte_perm(x, 0x43434343, 0x4140);
        return ptx::fma_bf16x2(both & 0xff80ff80, 0xbf80bf80u, both & 0xff7fff7f);
    }
};

/* ---- Products ---- */

/* S: type of the MMA's operands. */
template <class S, int WIDTH, class Q, class T> DEVICE void multiply_k(float (&s)[1][2][4], const Q &q, const T *keys) {
    constexpr bool IS_BYTES = sizeof(T) == 1;
    /* 8 x 8 matrices: both halves of 8 keys, then of the next 8; for bytes, the first halves of 16 keys, then the
       second. */
    const int row = IS_BYTES ? lane() % 16 : lane() % 8 + lane() / 16 * 8,
              half = IS_BYTES ? lane() / 16 : lane() / 8 % 2;
    const slice_rows<T, WIDTH> rows(keys, row, half);
    constexpr int STEPS = WIDTH * (int)sizeof(T) / 32,
                  UNROLL = WIDTH <= 128 ? STEPS : 4; /* fully unrolled, a deep slice would spill */
#pragma unroll UNROLL
    for (int i = 0; i < STEPS; i++) {
        u32 blocks[4], left[4], right[2];
        load_blocks(blocks, rows.at(i));
        if constexpr (!IS_BYTES) {
            q.get(left, 0, i);
            product<S, S>::template add<true>(s[0][0], left, blocks);
            product<S, S>::template add<true>(s[0][1], left, blocks + 2);
        } else {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                q.get(left, 0, 2 * i + c);
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    right[0] = two_bytes<S, T>::number(blocks[2 * c + j]);
                    right[1] = two_bytes<S, T>::number(blocks[2 * c + j] >> 16);
                    product<S, S>::template add<true>(s[0][j], left, right);
                }
            }
        }
    }
}

template <class S, int WIDTH, int PARTS, class W, class T>
DEVICE void multiply_v(float (&o)[1][WIDTH / 8][4], const W &p, const T *values) {
    const slice_rows<T, WIDTH> rows(values, lane() % 16, lane() / 16);
#pragma unroll
    for (int i = 0; i < WIDTH * (int)sizeof(T) / 32; i++) {
        u32 blocks[4];
        load_blocks_transposed(blocks, rows.at(i));
        if constexpr (sizeof(T) > 1) {
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                product<S, S>::template add<true>(o[0][2 * i], p.at[part][0][0], blocks);
                product<S, S>::template add<true>(o[0][2 * i + 1], p.at[part][0][0], blocks + 2);
            }
        } else {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const u32 first = __byte_perm(blocks[2 * c], 0, 0x3120),
                          last = __byte_perm(blocks[2 * c + 1], 0, 0x3120);
                const u32 even[2] = {two_bytes<S, T>::number(first), two_bytes<S, T>::number(last)};
                const u32 odd[2] = {two_bytes<S, T>::number(first >> 16), two_bytes<S, T>::number(last >> 16)};
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    product<S, S>::template add<true>(o[0][4 * i + 2 * c], p.at[part][0][0], even);
                    product<S, S>::template add<true>(o[0][4 * i + 2 * c + 1], p.at[part][0][0], odd);
                }
            }
        }
    }
}

/* Stores a lane's results of one of its rows, contiguously. */
template <class T, int WIDTH> DEVICE void store_results(float *row, const float (&o)[WIDTH / 8][4], int h) {
    if constexpr (sizeof(T) > 1)
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j++)
            store_run<float, 2>(row + 8 * j + lane() % 4 * 2, run<float, 2>{{o[j][2 * h], o[j][2 * h + 1]}});
    else
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j += 2)
            store_run<float, 4>(row + 8 * j + lane() % 4 * 4,
                                run<float, 4>{{o[j][2 * h], o[j + 1][2 * h], o[j][2 * h + 1], o[j + 1][2 * h + 1]}});
}
