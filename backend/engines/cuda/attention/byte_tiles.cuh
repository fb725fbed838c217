/* byte_tiles: products of 16 rows by one warp, as warp_tiles has them, whose right factors have 8 bits in shared memory and
   become f16 or bf16, which hold them exactly, on their way to the tensor cores.
     scores    a block of 16 columns lies in the product's order byte_place(0) .. byte_place(15), q's rows alike: so a lane's four
               neighbours of a key are what it has to give
     results   sums of columns 16 j .. 16 j + 15: even ones in o[2 j], odd ones in o[2 j + 1], since a transposed load keeps
               neighbours together
   Rows are padded by 16 bytes, and read 32 bytes at a time. */

/* ---- Two bytes become two numbers of 16 bits ---- */

/* Where column i of a block of 16 is: columns 4 t .. 4 t + 3 are the product's 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. */
DEVICE int byte_place(int i) { return i % 16 / 4 * 2 + i % 2 + i % 4 / 2 * 8 + i / 16 * 16; }

template <class E> struct byte_pair; // as<S>(low two bytes of x)
template <> struct byte_pair<e4m3> {
    static DEVICE u32 halves(u32 x) {
        u32 y;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"((u16)x));
        return y;
    }
};
template <> struct byte_pair<e5m2> {
    static DEVICE u32 halves(u32 x) { return __byte_perm(x, 0, 0x1404); } /* e5m2 is the upper byte of f16 */
};

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
    static DEVICE u32 number(u32 x) {
        u32 y = __byte_perm(x ^ 0x8080, 0x64646464, 0x4140);
        asm("sub.rn.f16x2 %0, %0, %1;" : "+r"(y) : "r"(0x64806480u));
        return y;
    }
};
/* In bf16, 0x4300 + u is 128 + u for u < 128, and 0x4380 is 256. */
template <> struct two_bytes<bf16, i8> {
    static DEVICE u32 number(u32 x) {
        const u32 both = __byte_perm(x, 0x43434343, 0x4140);
        u32 y;
        asm("fma.rn.bf16x2 %0, %1, %2, %3;"
            : "=r"(y)
            : "r"(both & 0xff80ff80), "r"(0xbf80bf80u), "r"(both & 0xff7fff7f));
        return y;
    }
};

/* ---- Products ---- */

/* S: what scores are multiplied in; W: results. */
template <class S, class W> struct byte_tiles {
    static constexpr int PAD = 16;

    template <int DEPTH, class R, class E> static DEVICE void scores(float (&s)[1][2][4], const R &q, const E *k) {
        const E *from = k + (lane() % 16) * (DEPTH + PAD) + lane() / 16 * 16;
#pragma unroll
        for (int d = 0; d < DEPTH; d += 32) {
            u32 bytes[4], left[4], right[2];
            load_blocks(bytes, from + d);
#pragma unroll
            for (int c = 0; c < 2; c++) {
                q.get(left, 0, d / 16 + c);
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    right[0] = two_bytes<S, E>::number(bytes[2 * c + j]);
                    right[1] = two_bytes<S, E>::number(bytes[2 * c + j] >> 16);
                    product<S, S>::template add<true>(s[0][j], left, right);
                }
            }
        }
    }

    template <int VALUES, int PARTS, class L, class E>
    static DEVICE void results(float (&o)[1][VALUES / 8][4], const L &w, const E *v) {
        const E *from = v + (lane() % 16) * (VALUES + PAD) + lane() / 16 * 16;
#pragma unroll
        for (int d = 0; d < VALUES; d += 32) {
            u32 bytes[4];
            load_blocks_transposed(bytes, from + d);
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const u32 first = __byte_perm(bytes[2 * c], 0, 0x3120), last = __byte_perm(bytes[2 * c + 1], 0, 0x3120);
                const u32 even[2] = {two_bytes<W, E>::number(first), two_bytes<W, E>::number(last)};
                const u32 odd[2] = {two_bytes<W, E>::number(first >> 16), two_bytes<W, E>::number(last >> 16)};
#pragma unroll
                for (int p = 0; p < PARTS; p++) {
                    product<W, W>::template add<true>(o[0][d / 8 + 2 * c], w.at[p][0][0], even);
                    product<W, W>::template add<true>(o[0][d / 8 + 2 * c + 1], w.at[p][0][0], odd);
                }
            }
        }
    }
};
