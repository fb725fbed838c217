/* SPDX-License-Identifier: Apache-2.0 */
#include "base/vectors.h"

#if defined __x86_64__
#include <cpuid.h>
#include <stdatomic.h>

bool cpu_has_f16c(void) {
    enum { UNKNOWN, ABSENT, PRESENT };
    static _Atomic int answer = UNKNOWN; /* CPUID costs a microsecond, and tens of them in a virtual machine */
    if (atomic_load_explicit(&answer, memory_order_relaxed) == UNKNOWN) {
        unsigned a, b, c = 0, d;
        bool has = __builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
        atomic_store_explicit(&answer, has ? PRESENT : ABSENT, memory_order_relaxed);
    }
    return atomic_load_explicit(&answer, memory_order_relaxed) == PRESENT;
}
#else
bool cpu_has_f16c(void) { return false; }
#endif

#if HAS_AVX512_BF16
bool cpu_has_avx512_bf16(void) { return __builtin_cpu_supports("avx512bf16"); }
#else
bool cpu_has_avx512_bf16(void) { return false; }
#endif
