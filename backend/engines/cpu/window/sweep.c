/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/cpu/window/sweep.h"

#include <stddef.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

#if defined(__x86_64__)
#define NAME(name) avx512_##name
#define TARGET __attribute__((target("avx512f")))
#define LANES 16
#include "engines/cpu/window/sweep_define.h"
#define NAME(name) avx2_##name
#define TARGET __attribute__((target("avx2")))
#define LANES 8
#include "engines/cpu/window/sweep_define.h"
#endif
/* 16-byte vectors: SSE2, NEON, or whatever the compiler makes of them */
#define NAME(name) plain_##name
#define TARGET
#define LANES 4
#include "engines/cpu/window/sweep_define.h"

static const struct sweep_kernels all[] = {
#if defined(__x86_64__)
    {"avx512", avx512_maximum, avx512_sum},
    {"avx2", avx2_maximum, avx2_sum},
#endif
    {"plain", plain_maximum, plain_sum},
};

static bool cpu_runs(const struct sweep_kernels *kernels) {
#if defined(__x86_64__)
    if (strcmp(kernels->name, "avx512") == 0)
        return __builtin_cpu_supports("avx512f");
    if (strcmp(kernels->name, "avx2") == 0)
        return __builtin_cpu_supports("avx2");
#endif
    (void)kernels;
    return true;
}

const struct sweep_kernels *sweep_kernels(int rank) {
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (cpu_runs(&all[i]) && rank-- == 0)
            return &all[i];
    return NULL;
}
