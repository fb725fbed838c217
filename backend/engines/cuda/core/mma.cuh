/* mma: tensor core products of one warp, C += A * B with C of 16 x 8, and the loads that bring fragments of A and B
   from shared memory into registers.
     A   16 x 32 bytes, four registers: rows 0-7 and 8-15 of the first 16 bytes, then of the last 16
     B   8 columns x 32 bytes, two registers: the first and the last 16 bytes of each column
     C   four registers: lane l has columns 2 (l % 4) and the next one of row l / 4, then of row l / 4 + 8 */

#include "core/ptx_mma.cuh"

/* Each lane passes the address of one row of 16 bytes; lanes 8 q .. 8 q + 7 pass the rows of block q, which has 8 x 8
   halves. Register q of lane l receives halves 2 (l % 4) and the next one of row l / 4 of block q or, transposed, of
   column l / 4. */
DEVICE void load_blocks(u32 (&r)[4], const void *row) { ldmatrix_x4(r, ptx::shared_address(row)); }
DEVICE void load_blocks_transposed(u32 (&r)[4], const void *row) { ldmatrix_x4_trans(r, ptx::shared_address(row)); }

template <class A, class B> struct product;

template <> struct product<bf16, bf16> {
    template <bool HAS_K16> static DEVICE void add(float (&c)[4], const u32 (&a)[4], const u32 *b) {
        mma_m16n8k16_bf16(c, a, b);
    }
};
template <> struct product<f16, f16> {
    template <bool HAS_K16> static DEVICE void add(float (&c)[4], const u32 (&a)[4], const u32 *b) {
        if constexpr (HAS_K16) {
            mma_m16n8k16_f16(c, a, b);
        } else {
            mma_m16n8k8_f16(c, a, b);
            mma_m16n8k8_f16(c, a + 2, b + 1);
        }
    }
};
template <> struct product<tf32, tf32> {
    template <bool HAS_K16> static DEVICE void add(float (&c)[4], const u32 (&a)[4], const u32 *b) {
        mma_m16n8k8_tf32(c, a, b);
    }
};
template <> struct product<i8, i8> {
    template <bool HAS_K16> static DEVICE void add(i32 (&c)[4], const u32 (&a)[4], const u32 *b) {
        mma_m16n8k32_s8_s8(c, a, b);
    }
};
template <> struct product<i8, u8> {
    template <bool HAS_K16> static DEVICE void add(i32 (&c)[4], const u32 (&a)[4], const u32 *b) {
        mma_m16n8k32_s8_u8(c, a, b);
    }
};
template <> struct product<u8, i8> {
    template <bool HAS_K16> static DEVICE void add(i32 (&c)[4], const u32 (&a)[4], const u32 *b) {
        mma_m16n8k32_u8_s8(c, a, b);
    }
};
template <> struct product<u8, u8> {
    template <bool HAS_K16> static DEVICE void add(i32 (&c)[4], const u32 (&a)[4], const u32 *b) {
        mma_m16n8k32_u8_u8(c, a, b);
    }
};
