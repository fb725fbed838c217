/* index: from a position in a list to coordinates. Divisors are run-time numbers, so the host sends each with its
   reciprocal: n / d = umulhi(n, magic) >> shift, exact for every n below 2^31. */

struct divisor {
    u32 value, magic, shift, unused;
};

DEVICE u32 divide(u32 n, const divisor &d) { return d.value == 1 ? n : __umulhi(n, d.magic) >> d.shift; }
