/* warp_tiles: products of 16 M rows by one warp, chained in registers if the arithmetic allows:
     scores    S += A B^T       A: 16 x DEPTH, B: 8 N x DEPTH, both in shared memory, contiguous along DEPTH
     p_operand the left operand computed from S
     results   O += P V         V: 8 N x WIDTH in shared memory, contiguous along WIDTH
   Accumulators have the layout of mma: s[j][2 h + e] of lane l is row l / 4 + 8 h, column score_column(j) + e; o has
   columns result_column(j) + e. Rows in shared memory are padded by 16 bytes, so that 8 of them use different banks.
   Two arithmetics: tensor cores for f16 and bf16, fused multiply-adds for float and double. */

DEVICE int lane() { return (int)threadIdx.x % 32; }
DEVICE int score_row(int h) { return lane() / 4 + 8 * h; }
DEVICE int score_column(int j) { return 8 * j + lane() % 4 * 2; }

/* ---- Tensor cores ---- */

template <class S> struct two_of;
template <> struct two_of<f16> {
    static DEVICE u32 number(float low, float high) {
        if constexpr (HAS_K16)
            return ptx::cvt_f16x2(high, low);
        else
            return (u32)from<f16>::number(low).bits | (u32)from<f16>::number(high).bits << 16;
    }
};
template <> struct two_of<bf16> {
    static DEVICE u32 number(float low, float high) { return ptx::cvt_bf16x2(high, low); }
};

template <class S> struct warp_tiles {
    using sum = float;
    static constexpr int PAD = 16 / sizeof(S);
    static constexpr bool NEEDS_SCRATCH = false;
    static DEVICE int result_column(int j) { return 8 * j + lane() % 4 * 2; }

    /* 16 M rows of a left operand in shared memory; IN_REGISTERS: stays in registers once loaded. */
    template <int DEPTH, int M, bool IN_REGISTERS> struct rows {
        const S *at;
        u32 registers[IN_REGISTERS ? M : 1][IN_REGISTERS ? DEPTH / 16 : 1][4];
        DEVICE void point(const S *tile) { at = tile + lane() % 16 * (DEPTH + PAD) + lane() / 16 * 8; }
        DEVICE void load() {
            if constexpr (IN_REGISTERS) {
#pragma unroll
                for (int m = 0; m < M; m++)
#pragma unroll
                    for (int k = 0; k < DEPTH / 16; k++)
                        load_blocks(registers[m][k], at + m * 16 * (DEPTH + PAD) + k * 16);
            }
        }
        DEVICE void get(u32 (&left)[4], int m, int k) const {
            if constexpr (IN_REGISTERS) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    left[i] = registers[m][k][i];
            } else {
                load_blocks(left, at + m * 16 * (DEPTH + PAD) + k * 16);
            }
        }
    };

    template <int DEPTH, int M, int N, bool IN_REGISTERS>
    static DEVICE void scores(float (&s)[M][N][4], const rows<DEPTH, M, IN_REGISTERS> &a, const S *b) {
        const S *from = b + (lane() % 8 + lane() / 16 * 8) * (DEPTH + PAD) + lane() / 8 % 2 * 8;
        constexpr int UNROLL =
            IN_REGISTERS || DEPTH <= 128 ? DEPTH / 16 : 4; /* with all loads of a deep tile in flight, registers would
                                                              spill */
#pragma unroll UNROLL
        for (int k = 0; k < DEPTH / 16; k++) {
            u32 left[M][4];
#pragma unroll
            for (int m = 0; m < M; m++)
                a.get(left[m], m, k);
#pragma unroll
            for (int j = 0; j < N; j += 2) {
                u32 right[4];
                load_blocks(right, from + j * 8 * (DEPTH + PAD) + k * 16);
#pragma unroll
                for (int m = 0; m < M; m++) {
                    product<S, S>::template add<HAS_K16>(s[m][j], left[m], right);
                    product<S, S>::template add<HAS_K16>(s[m][j + 1], left[m], right + 2);
                }
            }
        }
    }

    /* Columns 16 k .. 16 k + 15 of the accumulators are the registers of left operand k. PARTS 2: also holds the
       rounding error of the first part. */
    template <int M, int N, int PARTS> struct p_operand {
        u32 at[PARTS][M][N / 2][4];
        DEVICE void set(const float (&s)[M][N][4], S *) {
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int j = 0; j < N; j++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        const float low = s[m][j][2 * h], high = s[m][j][2 * h + 1];
                        const u32 both = two_of<S>::number(low, high);
                        at[0][m][j / 2][j % 2 * 2 + h] = both;
                        if constexpr (PARTS == 2)
                            at[1][m][j / 2][j % 2 * 2 + h] =
                                two_of<S>::number(low - to_float(S{(u16)both}), high - to_float(S{(u16)(both >> 16)}));
                    }
        }
    };

    /* `v`: the first of WIDTH columns, with a row stride of PITCH elements. */
    template <int PITCH, int WIDTH, int M, int N, int PARTS>
    static DEVICE void results(float (&o)[M][WIDTH / 8][4], const p_operand<M, N, PARTS> &w, const S *v) {
        const S *from = v + lane() % 16 * PITCH + lane() / 16 * 8;
#pragma unroll
        for (int k = 0; k < N / 2; k++)
#pragma unroll
            for (int d = 0; d < WIDTH / 16; d++) {
                u32 right[4];
                load_blocks_transposed(right, from + k * 16 * PITCH + d * 16);
#pragma unroll
                for (int p = 0; p < PARTS; p++)
#pragma unroll
                    for (int m = 0; m < M; m++) {
                        product<S, S>::template add<HAS_K16>(o[m][2 * d], w.at[p][m][k], right);
                        product<S, S>::template add<HAS_K16>(o[m][2 * d + 1], w.at[p][m][k], right + 2);
                    }
            }
    }
};

/* ---- Fused multiply-adds ---- */

template <class S> struct fma_tiles {
    using sum = S;
    static constexpr int PAD = 16 / sizeof(S), RUN = 16 / sizeof(S);
    static constexpr bool NEEDS_SCRATCH = true;
    /* Four adjacent columns of a pair of blocks, so that a row of V is read 16 bytes at a time. */
    static DEVICE int result_column(int j) { return j / 2 * 16 + lane() % 4 * 4 + j % 2 * 2; }

    template <int DEPTH, int M, bool IN_REGISTERS> struct rows {
        const S *at;
        DEVICE void point(const S *tile) { at = tile + lane() / 4 * (DEPTH + PAD); }
        DEVICE void load() {}
    };

    template <int DEPTH, int M, int N, bool IN_REGISTERS>
    static DEVICE void scores(S (&s)[M][N][4], const rows<DEPTH, M, IN_REGISTERS> &a, const S *b) {
        const S *from = b + lane() % 4 * 2 * (DEPTH + PAD);
#pragma unroll 1
        for (int k = 0; k < DEPTH; k += RUN) {
            run<S, RUN> left[M][2];
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    left[m][h] = load_run<S, RUN>(a.at + (m * 16 + h * 8) * (DEPTH + PAD) + k);
#pragma unroll
            for (int j = 0; j < N; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const run<S, RUN> right = load_run<S, RUN>(from + (8 * j + e) * (DEPTH + PAD) + k);
#pragma unroll
                    for (int i = 0; i < RUN; i++)
#pragma unroll
                        for (int m = 0; m < M; m++)
#pragma unroll
                            for (int h = 0; h < 2; h++)
                                s[m][j][2 * h + e] += left[m][h].at[i] * right.at[i];
                }
        }
    }

    /* P passes through the warp's own shared memory, since four lanes hold the P of a row. */
    template <int M, int N, int PARTS> struct p_operand {
        const S *at;
        DEVICE void set(const S (&s)[M][N][4], S *scratch) {
            __syncwarp();
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int j = 0; j < N; j++)
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        store_run<S, 2>(scratch + (m * 16 + h * 8 + lane() / 4) * (8 * N + PAD) + score_column(j),
                                        run<S, 2>{{s[m][j][2 * h], s[m][j][2 * h + 1]}});
            __syncwarp();
            at = scratch + lane() / 4 * (8 * N + PAD);
        }
    };

    template <int PITCH, int WIDTH, int M, int N, int PARTS>
    static DEVICE void results(S (&o)[M][WIDTH / 8][4], const p_operand<M, N, PARTS> &w, const S *v) {
        const S *from = v + lane() % 4 * 4;
#pragma unroll 1
        for (int k = 0; k < 8 * N; k += RUN) {
            run<S, RUN> left[M][2];
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    left[m][h] = load_run<S, RUN>(w.at + (m * 16 + h * 8) * (8 * N + PAD) + k);
#pragma unroll
            for (int i = 0; i < RUN; i++)
#pragma unroll
                for (int d = 0; d < WIDTH / 16; d++) {
                    S right[4];
#pragma unroll
                    for (int c = 0; c < 4; c += RUN) {
                        const run<S, RUN> some = load_run<S, RUN>(from + (k + i) * PITCH + d * 16 + c);
#pragma unroll
                        for (int e = 0; e < RUN; e++)
                            right[c + e] = some.at[e];
                    }
#pragma unroll
                    for (int m = 0; m < M; m++)
#pragma unroll
                        for (int h = 0; h < 2; h++)
#pragma unroll
                            for (int c = 0; c < 4; c++)
                                o[m][2 * d + c / 2][2 * h + c % 2] += left[m][h].at[i] * right[c];
                }
        }
    }
};
template <> struct warp_tiles<float> : fma_tiles<float> {};
template <> struct warp_tiles<double> : fma_tiles<double> {};
