/* few_bits: exact conversion of 4-bit and 8-bit integers in a word to pairs of f16 or bf16, without one conversion per
   number
   Method    the bits are inserted into the fraction of 2^10 (f16) or 2^7 (bf16), where the unit is 1, and the offset is
             subtracted. The sign bit of signed numbers is flipped, which adds half their range
   bf16      of 4 bits: the bits themselves represent multiples of the smallest denormal, so that two positions in a
   word need
             no shift; the results are the numbers divided by UNIT
   Order     4-bit pairs are numbers e and e + 4 of a word, 8-bit pairs 2e and 2e + 1. Sums of products do not depend on
             the order if both operands have the same one: join() makes such pairs of adjacent elements */

/* Returns x y + z for each element of a pair, rounded once. */
DEVICE u32 multiply_add(u32 x, u32 y, u32 z, f16) { return ptx::fma_f16x2(x, y, z); }
DEVICE u32 multiply_add(u32 x, u32 y, u32 z, bf16) { return ptx::fma_bf16x2(x, y, z); }
/* x & y ^ z. */
DEVICE u32 mask_xor(u32 x, u32 y, u32 z) { return ptx::lop3<0x6a>(x, y, z); }

template <class F> struct pair_numbers;
template <> struct pair_numbers<f16> {
    static constexpr u32 ONE = 0x3c003c00, BASE = 0x64006400, MINUS_BASE = 0xe400e400, MINUS_BASE_8 = 0xe408e408,
                         MINUS_BASE_128 = 0xe480e480;
};
template <> struct pair_numbers<bf16> {
    static constexpr u32 ONE = 0x3f803f80, BASE = 0x43004300, MINUS_BASE = 0xc300c300;
};
constexpr u32 MINUS_ZEROS = 0x80008000;

/* Conversion of the pairs of a word. */
template <class T> struct few_bits;

template <bool IS_SIGNED> struct four_bits {
    static constexpr int PAIRS = 4;
    static DEVICE constexpr float unit(f16) { return 1; }
    static DEVICE constexpr float unit(bf16) { return 64; }
    static DEVICE u32 times_unit(u32 pair, f16) { return pair; }
    static DEVICE u32 times_unit(u32 pair, bf16) { return multiply_add(pair, 0x42804280, MINUS_ZEROS, bf16{}); }
    /* Returns the bits of a pair at their position in the word, or eight bits to the right of it. */
    static DEVICE u32 bits(u32 word, int e, u32 others) {
        return mask_xor(e >= 2 ? word >> 8 : word, e % 2 ? 0x00f000f0 : 0x000f000f,
                        others | (!IS_SIGNED ? 0
                                  : e % 2    ? 0x00800080
                                             : 0x00080008));
    }
    static DEVICE u32 pair(u32 word, int e, f16) {
        constexpr u32 SIXTEENTH = 0x2c002c00, MINUS_64 = 0xd400d400, MINUS_72 = 0xd480d480;
        using numbers = pair_numbers<f16>;
        const u32 raised = bits(word, e, numbers::BASE);
        if (e % 2)
            return multiply_add(raised, SIXTEENTH, IS_SIGNED ? MINUS_72 : MINUS_64, f16{});
        return multiply_add(raised, numbers::ONE, IS_SIGNED ? numbers::MINUS_BASE_8 : numbers::MINUS_BASE, f16{});
    }
    static DEVICE u32 pair(u32 word, int e, bf16) {
        constexpr u32 POWER_127 = 0x7f007f00, POWER_123 = 0x7d007d00,
                      MINUS_EIGHTH = 0xbe00be00; /* the smallest number is 2^-133 */
        return multiply_add(bits(word, e, 0), e % 2 ? POWER_123 : POWER_127, IS_SIGNED ? MINUS_EIGHTH : MINUS_ZEROS,
                            bf16{});
    }
    /* Joins eight adjacent elements in four words. */
    static DEVICE u32 join(const u32 (&r)[4], int e) {
        return __byte_perm(r[e / 2], r[2 + e / 2], e % 2 ? 0x7632 : 0x5410);
    }
};
template <> struct few_bits<i4> : four_bits<true> {};
template <> struct few_bits<u4> : four_bits<false> {};

template <bool IS_SIGNED> struct eight_bits {
    static constexpr int PAIRS = 2;
    template <class F> static DEVICE constexpr float unit(F) { return 1; }
    template <class F> static DEVICE u32 times_unit(u32 pair, F) { return pair; }
    static DEVICE u32 pair(u32 word, int e, f16) {
        using numbers = pair_numbers<f16>;
        const u32 raised = __byte_perm(IS_SIGNED ? word ^ 0x80808080 : word, numbers::BASE, e ? 0x5352 : 0x5150);
        return multiply_add(raised, numbers::ONE, IS_SIGNED ? numbers::MINUS_BASE_128 : numbers::MINUS_BASE, f16{});
    }
    /* The fraction has only 7 bits. The eighth bit, worth -128 if signed and 128 otherwise, changes the subtracted
       offset from 128 to 256. */
    static DEVICE u32 pair(u32 word, int e, bf16) {
        const u32 two = __byte_perm(IS_SIGNED ? word : word ^ 0x80808080, 0, e ? 0x4342 : 0x4140);
        const u32 raised = mask_xor(two, 0x007f007f, pair_numbers<bf16>::BASE),
                  taken = mask_xor(two, 0x00800080, pair_numbers<bf16>::MINUS_BASE);
        const u32 number = multiply_add(raised, pair_numbers<bf16>::ONE, taken, bf16{});
        return IS_SIGNED ? number : multiply_add(number, pair_numbers<bf16>::ONE, pair_numbers<bf16>::BASE, bf16{});
    }
    static DEVICE u32 join(const u32 (&r)[4], int e) { return r[e]; }
};
template <> struct few_bits<i8> : eight_bits<true> {};
template <> struct few_bits<u8> : eight_bits<false> {};
