/* few_bits: whole numbers of 4 and 8 bits from a word as pairs of f16 or bf16, exact, without a conversion per number: their bits go
   into the fraction of 2^10 or 2^7, where a unit is 1, and what that adds is taken away. Numbers with a sign come with its bit turned,
   which adds half their range.
     Pairs     of 4 bits: numbers e and e + 4 of a word; of 8 bits: 2e and 2e + 1. Sums of products do not mind the order, if both
               factors have it: join() makes such pairs of neighbours */

/* In pairs: x y + z, rounded once. */
DEVICE u32 multiply_add(u32 x, u32 y, u32 z, f16) { u32 r; asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z)); return r; }
DEVICE u32 multiply_add(u32 x, u32 y, u32 z, bf16) { u32 r; asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z)); return r; }
/* x & y ^ z. */
DEVICE u32 mask_turn(u32 x, u32 y, u32 z) { u32 r; asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(r) : "r"(x), "r"(y), "r"(z)); return r; }
DEVICE u32 narrow_pair(float low, float high) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r; }

template <class F> struct pair_numbers;
template <> struct pair_numbers<f16> { static constexpr u32 ONE = 0x3c003c00, BASE = 0x64006400, MINUS_BASE = 0xe400e400, MINUS_BASE_8 = 0xe408e408, MINUS_BASE_128 = 0xe480e480; };
template <> struct pair_numbers<bf16> { static constexpr u32 ONE = 0x3f803f80, BASE = 0x43004300, MINUS_BASE = 0xc300c300, MINUS_BASE_8 = 0xc308c308; };
constexpr u32 MINUS_ZEROS = 0x80008000;

/* N pairs of a word. */
template <class T> struct few_bits;

template <bool IS_SIGNED> struct four_bits {
    static constexpr int PAIRS = 4;
    template <class F> static DEVICE u32 pair(u32 word, int e, F) {
        using numbers = pair_numbers<F>;
        const u32 raised = mask_turn(word >> e * 4, 0x000f000f, numbers::BASE | (IS_SIGNED ? 0x00080008 : 0));
        return multiply_add(raised, numbers::ONE, IS_SIGNED ? numbers::MINUS_BASE_8 : numbers::MINUS_BASE, F{});
    }
    /* Of eight neighbours in four words. */
    static DEVICE u32 join(const u32 (&r)[4], int e) { return __byte_perm(r[e / 2], r[2 + e / 2], e % 2 ? 0x7632 : 0x5410); }
};
template <> struct few_bits<i4> : four_bits<true> {};
template <> struct few_bits<u4> : four_bits<false> {};

template <bool IS_SIGNED> struct eight_bits {
    static constexpr int PAIRS = 2;
    static DEVICE u32 pair(u32 word, int e, f16) {
        using numbers = pair_numbers<f16>;
        const u32 raised = __byte_perm(IS_SIGNED ? word ^ 0x80808080 : word, numbers::BASE, e ? 0x5352 : 0x5150);
        return multiply_add(raised, numbers::ONE, IS_SIGNED ? numbers::MINUS_BASE_128 : numbers::MINUS_BASE, f16{});
    }
    static DEVICE u32 pair(u32 word, int e, bf16) { /* whose fraction is too short: through that of 2^23 */
        constexpr u32 BASE = 0x4b000000;
        const u32 turned = IS_SIGNED ? word ^ 0x80808080 : word;
        const float bias = IS_SIGNED ? 8388736.0f : 8388608.0f;
        const float low = __uint_as_float(__byte_perm(turned, BASE, e ? 0x7652 : 0x7650)), high = __uint_as_float(__byte_perm(turned, BASE, e ? 0x7653 : 0x7651));
        return narrow_pair(low - bias, high - bias);
    }
    static DEVICE u32 join(const u32 (&r)[4], int e) { return r[e]; }
};
template <> struct few_bits<i8> : eight_bits<true> {};
template <> struct few_bits<u8> : eight_bits<false> {};
