/* types: integers of known size, and the storage types of tensors with their conversions to and from float and double.
   NVRTC compiles this without any CUDA header. Conversions round to nearest even; integers and fp8 saturate, and NaN
   becomes 0 in integers. */

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

#define DEVICE __device__ __forceinline__

constexpr int CHIP = __CUDA_ARCH__; /* 900 for sm_90: tests whether an instruction exists */

#include "core/ptx_base.cuh"

struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};
struct e4m3 {
    u8 bits;
};
struct e5m2 {
    u8 bits;
};
struct e8m0 {
    u8 bits;
};
struct bool8 {
    u8 bits;
};
struct tf32 {
    u32 bits;
}; /* a float with a 10-bit fraction, only in registers and shared memory */

/* Types narrower than a byte: one byte each in registers, packed from the lowest bits in memory (see packed).
   Conversions use only the bits that belong to the element. */
struct e2m1 {
    u8 bits;
};
struct i4 {
    u8 bits;
};
struct u4 {
    u8 bits;
};
struct bool1 {
    u8 bits;
};

/* ---- To float ---- */

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(double x) { return (float)x; }
DEVICE float to_float(f16 x) { return ptx::cvt_f32_f16(x.bits); }
DEVICE float to_float(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
/* Converts in the same way, but not before the number is used: converting data that is loaded ahead would take twice
   the registers. */
DEVICE float to_float_late(bf16 x) { return ptx::mov_pair(0, x.bits); }
/* One of two elements in a word, which stays whole until then; otherwise each would be extracted when it is loaded. */
DEVICE float to_float_late(u32 pair, int e) { return __uint_as_float(ptx::prmt(pair, 0, e ? 0x3244 : 0x1044)); }
DEVICE float to_float(i8 x) { return (float)x; }
DEVICE float to_float(u8 x) { return (float)x; }
DEVICE float to_float(i32 x) { return (float)x; }
DEVICE float to_float(u32 x) { return (float)x; }
DEVICE float to_float(i64 x) { return (float)x; }
DEVICE float to_float(bool8 x) { return x.bits ? 1.0f : 0.0f; }
DEVICE float to_float(bool1 x) { return (float)(x.bits & 1); }
DEVICE float to_float(u4 x) { return (float)(x.bits & 15); }
DEVICE float to_float(i4 x) { return (float)((i32)((u32)x.bits << 28) >> 28); }
DEVICE float to_float(e8m0 x) {
    return __uint_as_float(x.bits == 0 ? 1u << 22 : x.bits == 255 ? 0x7fc00000u : (u32)x.bits << 23);
}

/* fp8 by shifting exponent and fraction into the float fields and scaling by the difference of the biases: correct on
   every device, including subnormals. */
DEVICE float to_float(e4m3 x) {
    u32 magnitude = x.bits & 0x7f, sign = (u32)(x.bits & 0x80) << 24;
    float y = __uint_as_float(magnitude << 20) * 1.329227995784916e36f; /* 2^120 */
    return __uint_as_float(sign | (magnitude == 0x7f ? 0x7fffffffu : __float_as_uint(y)));
}
DEVICE float to_float(e5m2 x) {
    u32 magnitude = x.bits & 0x7f, sign = (u32)(x.bits & 0x80) << 24;
    float y = __uint_as_float(magnitude << 21) * 5.192296858534828e33f; /* 2^112 */
    u32 bits = magnitude > 0x7c ? 0x7fffffffu : magnitude == 0x7c ? 0x7f800000u : __float_as_uint(y);
    return __uint_as_float(sign | bits);
}

DEVICE float to_float(e2m1 x) {
    float y = __uint_as_float((u32)(x.bits & 7) << 22) * 8.507059173023462e37f; /* 2^126 */
    return __uint_as_float((u32)(x.bits & 8) << 28 | __float_as_uint(y));
}

/* ---- To double and to integer ---- */

template <class T> DEVICE double to_double(T x) { return (double)to_float(x); }
template <> DEVICE double to_double(double x) { return x; }
template <> DEVICE double to_double(i32 x) { return (double)x; }
template <> DEVICE double to_double(u32 x) { return (double)x; }
template <> DEVICE double to_double(i64 x) { return (double)x; }

DEVICE i64 round_to_integer(double x) {
    return x != x                        ? 0
           : x >= 9.2233720368547758e18  ? 0x7fffffffffffffffll
           : x <= -9.2233720368547758e18 ? (i64)0x8000000000000000ull
                                         : __double2ll_rn(x);
}
template <class T> DEVICE i64 to_integer(T x) { return round_to_integer(to_double(x)); }
template <> DEVICE i64 to_integer(i8 x) { return x; }
template <> DEVICE i64 to_integer(u8 x) { return x; }
template <> DEVICE i64 to_integer(i32 x) { return x; }
template <> DEVICE i64 to_integer(u32 x) { return x; }
template <> DEVICE i64 to_integer(i64 x) { return x; }
template <> DEVICE i64 to_integer(bool8 x) { return x.bits != 0; }
template <> DEVICE i64 to_integer(bool1 x) { return x.bits & 1; }
template <> DEVICE i64 to_integer(u4 x) { return x.bits & 15; }
template <> DEVICE i64 to_integer(i4 x) { return (i32)((u32)x.bits << 28) >> 28; }

/* Any compute type from any storage type. */
template <class A> struct as;
template <> struct as<float> {
    template <class T> static DEVICE float of(T x) { return to_float(x); }
};
template <> struct as<double> {
    template <class T> static DEVICE double of(T x) { return to_double(x); }
};
template <> struct as<i64> {
    template <class T> static DEVICE i64 of(T x) { return to_integer(x); }
};

/* ---- From float ---- */

DEVICE u8 pack_fp8(double x, int fraction_bits, int bias, u32 largest, u32 nan) {
    u32 sign = __double2hiint(x) < 0 ? 0x80 : 0;
    double magnitude = fabs(x);
    if (x != x)
        return (u8)(sign | nan);
    int exponent = (__double2hiint(magnitude) >> 20) - 1023;
    if (exponent < 1 - bias)
        exponent = 1 - bias;
    /* Scales to units in the last place at this exponent; rounding up may carry into the exponent, as it should. */
    double scale = __hiloint2double((1023 + fraction_bits - exponent) << 20, 0);
    if (exponent > 40)
        return (u8)(sign | largest);
    u32 code = (u32)((exponent + bias - 1) << fraction_bits) + (u32)__double2ll_rn(magnitude * scale);
    return (u8)(sign | (code > largest ? largest : code));
}

template <class T> struct from;
template <> struct from<float> {
    static DEVICE float number(float x) { return x; }
    static DEVICE float number(double x) { return (float)x; }
    static DEVICE float number(i64 x) { return (float)x; }
};
template <> struct from<double> {
    template <class A> static DEVICE double number(A x) { return (double)x; }
};
template <> struct from<f16> {
    static DEVICE f16 number(float x) { return f16{ptx::cvt_f16(x)}; }
    static DEVICE f16 number(double x) { return f16{ptx::cvt_f16(x)}; }
    static DEVICE f16 number(i64 x) { return number((double)x); }
};
/* If the device has a conversion instruction, the assembler merges conversions of adjacent elements into one of a
   pair. */
template <> struct from<bf16> {
    static DEVICE bf16 number(float x) {
        if constexpr (CHIP >= 800)
            return bf16{ptx::cvt_bf16(x)};
        u32 bits = __float_as_uint(x);
        if (x != x)
            return bf16{(u16)(bits >> 16 | 0x40)};
        return bf16{(u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
    }
    /* Rounds to odd first, so that the second rounding sees the direction of the first one. */
    static DEVICE bf16 number(double x) {
        float y = __double2float_rz(x);
        u32 inexact = (double)y != x && x == x;
        return number(__uint_as_float(__float_as_uint(y) | inexact));
    }
    static DEVICE bf16 number(i64 x) {
        const float y = __ll2float_rz(x);
        return number(__uint_as_float(__float_as_uint(y) | ((i64)y != x)));
    }
};
template <> struct from<tf32> {
    static DEVICE tf32 number(float x) { return tf32{ptx::cvt_tf32(x)}; }
};
template <> struct from<e4m3> {
    template <class A> static DEVICE e4m3 number(A x) { return e4m3{pack_fp8((double)x, 3, 7, 0x7e, 0x7f)}; }
    static DEVICE e4m3 number(float x) {
        if constexpr (CHIP < 890)
            return number((double)x);
        return e4m3{(u8)ptx::cvt_e4m3x2(0.0f, x)};
    }
};
template <> struct from<e5m2> {
    template <class A> static DEVICE e5m2 number(A x) { return e5m2{pack_fp8((double)x, 2, 15, 0x7b, 0x7e)}; }
    static DEVICE e5m2 number(float x) {
        if constexpr (CHIP < 890)
            return number((double)x);
        return e5m2{(u8)ptx::cvt_e5m2x2(0.0f, x)};
    }
};
/* The type has only an exponent: no zero and no sign. Halfway between two powers, the upper one is even. */
template <> struct from<e8m0> {
    template <class A> static DEVICE e8m0 number(A number) {
        const double x = (double)number;
        if (x != x)
            return e8m0{255};
        if (x <= 5.877471754111438e-39)
            return e8m0{0}; /* 2^-127 */
        if (x >= 1.7014118346046923e38)
            return e8m0{254}; /* 2^127 */
        const u64 rebased = (u64)__double_as_longlong(x) - (896ull << 52);
        return e8m0{(u8)((rebased + (1ull << 51)) >> 52)};
    }
};
/* Has no NaN, which becomes the largest number. */
template <> struct from<e2m1> {
    template <class A> static DEVICE e2m1 number(A x) {
        const u8 code = pack_fp8((double)x, 1, 1, 7, 7);
        return e2m1{x != x ? (u8)7 : (u8)((code & 0x80) >> 4 | (code & 7))};
    }
};
template <> struct from<i64> {
    template <class A> static DEVICE i64 number(A x) { return round_to_integer((double)x); }
    static DEVICE i64 number(i64 x) { return x; }
};
template <i64 LOW, i64 HIGH> DEVICE i64 clamp(i64 x) { return x < LOW ? LOW : x > HIGH ? HIGH : x; }
template <> struct from<i8> {
    template <class A> static DEVICE i8 number(A x) { return (i8)clamp<-128, 127>(from<i64>::number(x)); }
};
template <> struct from<u8> {
    template <class A> static DEVICE u8 number(A x) { return (u8)clamp<0, 255>(from<i64>::number(x)); }
};
template <> struct from<i32> {
    template <class A> static DEVICE i32 number(A x) {
        return (i32)clamp<-2147483648ll, 2147483647ll>(from<i64>::number(x));
    }
};
template <> struct from<u32> {
    template <class A> static DEVICE u32 number(A x) { return (u32)clamp<0, 4294967295ll>(from<i64>::number(x)); }
};
template <> struct from<i4> {
    template <class A> static DEVICE i4 number(A x) { return i4{(u8)(clamp<-8, 7>(from<i64>::number(x)) & 15)}; }
};
template <> struct from<u4> {
    template <class A> static DEVICE u4 number(A x) { return u4{(u8)clamp<0, 15>(from<i64>::number(x))}; }
};
template <> struct from<bool1> {
    template <class A> static DEVICE bool1 number(A x) { return bool1{(u8)(x != (A)0)}; }
};
template <> struct from<bool8> {
    template <class A> static DEVICE bool8 number(A x) { return bool8{(u8)(x != (A)0)}; }
};

/* The compute type that represents every relevant number of a storage type: integers use i64. */
template <class T> struct wide {
    using type = double;
};
template <> struct wide<float> {
    using type = float;
};
template <> struct wide<i8> {
    using type = i64;
};
template <> struct wide<u8> {
    using type = i64;
};
template <> struct wide<i32> {
    using type = i64;
};
template <> struct wide<u32> {
    using type = i64;
};
template <> struct wide<i64> {
    using type = i64;
};
template <> struct wide<bool8> {
    using type = i64;
};
template <> struct wide<bool1> {
    using type = i64;
};
template <> struct wide<i4> {
    using type = i64;
};
template <> struct wide<u4> {
    using type = i64;
};

/* Storage type T from any storage or compute type; from itself, bit by bit. */
template <class T, class S> struct conversion {
    static DEVICE T of(S x) { return from<T>::number(as<typename wide<S>::type>::of(x)); }
};
template <class T> struct conversion<T, T> {
    static DEVICE T of(T x) { return x; }
};
template <class T, class S> DEVICE T convert(S x) { return conversion<T, S>::of(x); }

template <class A, class B> struct same {
    static constexpr bool value = false;
};
template <class A> struct same<A, A> {
    static constexpr bool value = true;
};

/* A compute value rounded to storage type T. */
template <class T, class A> DEVICE A rounded(A x) { return as<A>::of(from<T>::number(x)); }
/* In pairs, because conversions of single numbers are slow, and ptxas mistakes one of a wgmma accumulator for a read of
   an unfinished result, and serializes the products. */
template <class T> DEVICE u32 rounded_pair(float low, float high);
template <> DEVICE u32 rounded_pair<bf16>(float low, float high) { return ptx::cvt_bf16x2(high, low); }
template <> DEVICE u32 rounded_pair<f16>(float low, float high) { return ptx::cvt_f16x2(high, low); }
/* Rounds to four numbers of 8 bits, the first in the lowest byte; requires sm_89. */
template <class T> DEVICE u32 rounded_four(float a, float b, float c, float d) {
    if constexpr (same<T, e4m3>::value)
        return (u32)ptx::cvt_e4m3x2(b, a) | (u32)ptx::cvt_e4m3x2(d, c) << 16;
    else
        return (u32)ptx::cvt_e5m2x2(b, a) | (u32)ptx::cvt_e5m2x2(d, c) << 16;
}
template <> DEVICE float rounded<bf16, float>(float x) {
    if constexpr (CHIP < 800)
        return to_float(from<bf16>::number(x));
    return __uint_as_float(rounded_pair<bf16>(x, 0.0f) << 16);
}
template <> DEVICE float rounded<f16, float>(float x) {
    if constexpr (CHIP < 800)
        return to_float(from<f16>::number(x));
    return to_float(f16{(u16)rounded_pair<f16>(x, 0.0f)});
}

/* ---- Runs of elements: up to 16 bytes in one access ---- */

template <class T, int N> struct alignas(sizeof(T) * N <= 16 ? sizeof(T) * N : 16) run {
    T at[N];
};

template <class T, int N> DEVICE run<T, N> load_run(const T *p) { return *(const run<T, N> *)p; }
/* The stored form of a run in memory of type T, and the values that are read back. */
template <class T, int N> struct kept_run {
    run<T, N> stored;
    run<float, N> number;
};
template <class T, int N> DEVICE kept_run<T, N> keep_run(const run<float, N> &x) {
    kept_run<T, N> result;
#pragma unroll
    for (int i = 0; i < N; i += 2)
        if constexpr (CHIP >= 800 && (same<T, bf16>::value || same<T, f16>::value)) {
            const u32 pair = rounded_pair<T>(x.at[i], i + 1 < N ? x.at[i + 1] : 0.0f);
            if constexpr (N % 2 == 0)
                ((u32 *)result.stored.at)[i / 2] = pair;
            else
                result.stored.at[i].bits = (u16)pair;
            for (int e = 0; e < 2 && i + e < N; e++)
                result.number.at[i + e] = same<T, bf16>::value ? __uint_as_float(e ? pair & 0xffff0000 : pair << 16)
                                                               : to_float(f16{(u16)(e ? pair >> 16 : pair)});
        } else {
            for (int e = i; e < i + 2 && e < N; e++) {
                result.stored.at[e] = from<T>::number(x.at[e]);
                result.number.at[e] = as<float>::of(result.stored.at[e]);
            }
        }
    return result;
}

/* The bytes are stored as words, because the compiler splits copies of byte runs. */
template <int BYTES> struct alignas(BYTES < 16 ? BYTES : 16) chunk {
    u32 words[BYTES / 4];
};
template <class T, int N> DEVICE void store_run(T *p, const run<T, N> &r) {
    if constexpr (sizeof(T) == 1 && N % 4 == 0)
        *(chunk<N> *)p = *(const chunk<N> *)&r;
    else
        *(run<T, N> *)p = r;
}
template <class T, int N> DEVICE void copy_run(run<T, N> &to, const run<T, N> &r) { store_run<T, N>(to.at, r); }

/* One access to global memory, as inline assembly: the compiler splits some accesses. */
template <int BYTES> DEVICE chunk<BYTES> load_global(u64 p) {
    chunk<BYTES> r;
    if constexpr (BYTES == 16)
        ptx::ld_global_v4(r.words, p);
    else
        ptx::ld_global_v2(r.words, p);
    return r;
}
template <int BYTES> DEVICE void store_global(u64 p, const chunk<BYTES> &r) {
    if constexpr (BYTES == 16)
        ptx::st_global_v4(p, r.words);
    else
        ptx::st_global_v2(p, r.words);
}
template <class T, int N> DEVICE void store_global(T *p, const run<T, N> &r) {
    constexpr int BYTES = sizeof r % 16 == 0 ? 16 : (int)sizeof r;
    if constexpr (BYTES < 8)
        store_run<T, N>(p, r);
    else
#pragma unroll
        for (int i = 0; i < (int)sizeof r / BYTES; i++)
            store_global((u64)p + i * BYTES, ((const chunk<BYTES> *)&r)[i]);
}

/* ---- Elements narrower than a byte in memory ---- */

template <class T> constexpr int BITS = 8 * (int)sizeof(T);
template <> constexpr int BITS<e2m1> = 4;
template <> constexpr int BITS<i4> = 4;
template <> constexpr int BITS<u4> = 4;
template <> constexpr int BITS<bool1> = 1;

/* A pointer to an element that may begin within a byte; offsets count elements. */
template <class T> struct packed_pointer {
    u8 *base;
    i64 index;
    DEVICE packed_pointer operator+(i64 n) const { return {base, index + n}; }
    DEVICE u8 *byte() const { return base + index * BITS<T> / 8; }
    DEVICE int shift() const { return (int)(index * BITS<T>)&7; }
};
/* A pointer to the first element, which begins a byte: the form of arguments. */
template <class T> struct packed {
    u8 *base;
    DEVICE packed_pointer<T> operator+(i64 n) const { return {base, n}; }
    DEVICE operator packed_pointer<T>() const { return {base, 0}; }
};

/* N adjacent elements; if they fill bytes, they must begin at a multiple of N and are loaded in one access. */
template <class T, int N> DEVICE run<T, N> load_run(packed_pointer<T> p) {
    constexpr u32 MASK = (1u << BITS<T>)-1;
    run<T, N> r;
    if constexpr (N * BITS<T> % 8 == 0) {
        const run<u8, N * BITS<T> / 8> bytes = *(const run<u8, N * BITS<T> / 8> *)p.byte();
#pragma unroll
        for (int e = 0; e < N; e++)
            r.at[e].bits = (u8)(bytes.at[e * BITS<T> / 8] >> e * BITS<T> % 8 & MASK);
    } else {
#pragma unroll
        for (int e = 0; e < N; e++)
            r.at[e].bits = (u8)(*(p + e).byte() >> (p + e).shift() & MASK);
    }
    return r;
}

/* A thread that stores less than whole bytes must be the only one that stores to them. */
template <class T, int N> DEVICE void store_run(packed_pointer<T> p, const run<T, N> &r) {
    constexpr u32 MASK = (1u << BITS<T>)-1;
    if constexpr (N * BITS<T> % 8 == 0) {
        run<u8, N * BITS<T> / 8> bytes = {};
#pragma unroll
        for (int e = 0; e < N; e++)
            bytes.at[e * BITS<T> / 8] |= (u8)((r.at[e].bits & MASK) << e * BITS<T> % 8);
        *(run<u8, N * BITS<T> / 8> *)p.byte() = bytes;
    } else {
#pragma unroll
        for (int e = 0; e < N; e++) {
            const packed_pointer<T> to = p + e;
            *to.byte() = (u8)((*to.byte() & ~(MASK << to.shift())) | (r.at[e].bits & MASK) << to.shift());
        }
    }
}

/* A scalar that is passed in the arguments, usable where kernels expect a pointer. */
template <class T> struct by_value {
    u64 word;
    DEVICE operator const T *() const { return (const T *)&word; }
};
