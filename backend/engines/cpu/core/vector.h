/* SPDX-License-Identifier: Apache-2.0 */
/* How loops are asked to become vector code. */
#ifndef WEFT_ENGINES_CPU_VECTOR_H
#define WEFT_ENGINES_CPU_VECTOR_H

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

#endif
