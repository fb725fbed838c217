/* SPDX-License-Identifier: Apache-2.0 */
/* Macros that let compilers vectorize loops. */
#ifndef WEFT_ENGINES_CPU_VECTOR_H
#define WEFT_ENGINES_CPU_VECTOR_H

#include <stdbool.h>

/* Precedes a loop whose iterations are independent. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Compiles a function for three instruction sets; the loader chooses. */
#if defined __x86_64__ && defined __GLIBC__
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif

/* True if the compiler supports AMX intrinsics: GCC 11 and Clang 11, and newer. */
#if defined __x86_64__ && __has_include(<amxbf16intrin.h>)
#define HAS_AMX 1
#else
#define HAS_AMX 0
#endif

/* For tables of kernels: true if this CPU supports the instruction set that a kernel's name begins with, such as
   "avx512 8x32". */
bool cpu_runs(const char *name);

#endif
