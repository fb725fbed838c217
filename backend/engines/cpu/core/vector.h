/* SPDX-License-Identifier: Apache-2.0 */
/* How loops are asked to become vector code. */
#ifndef WEFT_ENGINES_CPU_VECTOR_H
#define WEFT_ENGINES_CPU_VECTOR_H

#include <stdbool.h>

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

/* Whether the compiler knows AMX's tiles: GCC and clang from 11 on. */
#if defined __x86_64__ && __has_include(<amxbf16intrin.h>)
#define HAS_AMX 1
#else
#define HAS_AMX 0
#endif

/* Where kernels for several CPUs stand in a table: whether this one runs what a kernel's name begins with, as "avx512
   8x32". */
bool cpu_runs(const char *name);

#endif
