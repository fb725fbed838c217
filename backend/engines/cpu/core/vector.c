/* SPDX-License-Identifier: Apache-2.0 */
/* Instruction sets that this CPU supports and that the operating system lets a process use. */
#include "engines/cpu/core/vector.h"

#include "base/vectors.h"

#include <string.h>

#if defined __x86_64__
static bool begins(const char *name, const char *with) { return strncmp(name, with, strlen(with)) == 0; }

#if defined __linux__ && HAS_AMX
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Linux, from 5.16 on, enables AMX tiles on request, because its signal frames then grow by 8 KiB. It declines if a
   thread has a signal stack that is too small. Asked once, for the first product that would use tiles; threads that ask
   concurrently get the same answer. */
static bool may_use_tiles(void) {
    enum { REQUEST_STATE = 0x1023, TILE_DATA = 18, UNKNOWN = 0, GRANTED, DECLINED };
    static _Atomic int answer = UNKNOWN;
    if (atomic_load(&answer) == UNKNOWN)
        atomic_store(&answer, syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0 ? GRANTED : DECLINED);
    return atomic_load(&answer) == GRANTED;
}

static bool has_amx(const char *name) {
    if (begins(name, "amx-bf16"))
        return __builtin_cpu_supports("amx-bf16") && may_use_tiles();
    return __builtin_cpu_supports("amx-int8") && may_use_tiles();
}
#else
static bool has_amx(const char *name) { return (void)name, false; }
#endif

/* Longer names are tested first. */
bool cpu_runs(const char *name) {
    if (begins(name, "amx"))
        return has_amx(name);
    if (begins(name, "avx512bf16"))
        return cpu_has_avx512_bf16();
    if (begins(name, "avx512vnni"))
        return __builtin_cpu_supports("avx512vnni");
    if (begins(name, "avx512"))
        return __builtin_cpu_supports("avx512f");
    if (begins(name, "avx2"))
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
    return true;
}
#else
bool cpu_runs(const char *name) { return (void)name, true; }
#endif
