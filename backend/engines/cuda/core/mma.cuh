/* mma: tensor core products of one warp, C += A * B with C of 16 x 8, and the loads that bring A and B from shared memory
   into the places where the product wants them.
     A   16 x 32 bytes, four registers: rows 0-7 and 8-15 of the first 16 bytes, then of the last 16
     B   8 columns x 32 bytes, two registers: the first and the last 16 bytes of each column
     C   four registers: lane l has columns 2 (l % 4) and the next one of row l / 4, then of row l / 4 + 8 */

/* Each lane gives the address of one row of 16 bytes; lanes 8 q .. 8 q + 7 those of block q, 8 x 8 halves. Register q of
   lane l becomes halves 2 (l % 4) and the next one of row l / 4 of block q; transposed: of column l / 4. */
DEVICE void load_blocks(u32 (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}
DEVICE void load_blocks_transposed(u32 (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}

template <class A, class B> struct product;

template <> struct product<bf16, bf16> {
    template <bool HAS_K16> static DEVICE void add(float (&c)[4], const u32 (&a)[4], const u32 *b) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};
template <> struct product<f16, f16> {
    template <bool HAS_K16> static DEVICE void add(float (&c)[4], const u32 (&a)[4], const u32 *b) {
        if constexpr (HAS_K16) {
            asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                "{%0,%1,%2,%3};"
                : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
        } else {
            asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                : "r"(a[0]), "r"(a[1]), "r"(b[0]));
            asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                : "r"(a[2]), "r"(a[3]), "r"(b[1]));
        }
    }
};
template <> struct product<tf32, tf32> {
    template <bool HAS_K16> static DEVICE void add(float (&c)[4], const u32 (&a)[4], const u32 *b) {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};
template <> struct product<i8, i8> {
    template <bool HAS_K16> static DEVICE void add(i32 (&c)[4], const u32 (&a)[4], const u32 *b) {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};
template <> struct product<i8, u8> {
    template <bool HAS_K16> static DEVICE void add(i32 (&c)[4], const u32 (&a)[4], const u32 *b) {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};
template <> struct product<u8, i8> {
    template <bool HAS_K16> static DEVICE void add(i32 (&c)[4], const u32 (&a)[4], const u32 *b) {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};
template <> struct product<u8, u8> {
    template <bool HAS_K16> static DEVICE void add(i32 (&c)[4], const u32 (&a)[4], const u32 *b) {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};
