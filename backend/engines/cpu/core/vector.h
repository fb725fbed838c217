/* SPDX-License-Identifier: Apache-2.0 */
/* How loops are asked to become vector code. */
#ifndef WEFT_ENGINES_CPU_VECTOR_H
#define WEFT_ENGINES_CPU_VECTOR_H

#include <stdbool.h>
#include <string.h>

/* Before a loop whose iterations read nothing that others write. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Of a function that is compiled three times; the loader picks. */
#if defined __x86_64__ && defined __GLIBC__
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif

/* Where kernels for several CPUs stand in a table: whether this one runs what a kernel's name begins with, as "avx512
   8x32". */
static inline bool cpu_runs(const char *name) {
#if defined __x86_64__
    if (strncmp(name, "avx512", 6) == 0)
        return __builtin_cpu_supports("avx512f");
    if (strncmp(name, "avx2", 4) == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    (void)name;
    return true;
}

#endif
