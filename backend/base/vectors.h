/* SPDX-License-Identifier: Apache-2.0 */
/* Vector extensions for every compiler that builds the library: GCC 8 and newer, and Clang 13 and newer. */
#ifndef WEFT_BASE_VECTORS_H
#define WEFT_BASE_VECTORS_H

#include <stdbool.h>
#include <stdint.h>

/* The vector of the elements with the indices that follow: the elements of `a` are numbered first, then those of `b`.
   Clang, and GCC 12 and newer, have __builtin_shufflevector; every GCC has __builtin_shuffle, whose indices are a
   vector of integers as wide as the elements. */
#if defined __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (INDICES(a)){__VA_ARGS__})
#define INDICES(a) INTEGER_AS_WIDE_AS((a)[0]) __attribute__((vector_size(sizeof(a))))
#define INTEGER_AS_WIDE_AS(x)                                                                                          \
    __typeof__(_Generic(&(char[sizeof(x)]){0},                                                                         \
                   char (*)[1]: (int8_t)0,                                                                             \
                   char (*)[2]: (int16_t)0,                                                                            \
                   char (*)[4]: (int32_t)0,                                                                            \
                   char (*)[8]: (int64_t)0))
#endif

/* Converts each element of `v` to the element type of the vector type `type`, which has the same number of elements. */
#if defined __clang__ || __GNUC__ >= 9
#define CONVERT(v, type) __builtin_convertvector(v, type)
#else
#define CONVERT(v, type)                                                                                               \
    ({                                                                                                                 \
        const __typeof__(v) convert_from = (v);                                                                        \
        type convert_to;                                                                                               \
        for (unsigned convert_i = 0; convert_i < sizeof convert_from / sizeof convert_from[0]; convert_i++)            \
            convert_to[convert_i] = (__typeof__(convert_to[0]))convert_from[convert_i];                                \
        convert_to;                                                                                                    \
    })
#endif

/* True if the compiler has the intrinsics of AVX512_BF16: GCC 10 and newer, and Clang 9 and newer. */
#if defined __x86_64__ && __has_include(<avx512bf16intrin.h>)
#define HAS_AVX512_BF16 1
#else
#define HAS_AVX512_BF16 0
#endif

/* True if this processor converts f16 (F16C), and the system saves the registers of AVX. __builtin_cpu_supports("f16c")
   needs GCC 11 or Clang 17. The processor is asked once. */
bool cpu_has_f16c(void);

/* True if this processor, and the compiler, have AVX512_BF16. */
bool cpu_has_avx512_bf16(void);

#endif
