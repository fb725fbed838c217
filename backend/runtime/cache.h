/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel cache: program text in, machine code out, compiled at most once. The key covers everything that determines
   the result: text, headers, options in order, target architecture, NVRTC's version and build, Weft's version. Lookups
   go to memory, then to disk (runtime/disk_cache.h), then to the compiler; threads that need the same program wait for
   the one that compiles it. WEFT_DUMP_DIR names a folder that receives every program used, with its headers, options,
   log and machine code. The cache knows no devices: code is loaded elsewhere. */
#ifndef WEFT_RUNTIME_CACHE_H
#define WEFT_RUNTIME_CACHE_H

#include "runtime/nvrtc.h"

/* Machine code of one program; immutable, shared, reference counted. */
struct code {
    uint8_t key[32];
    const char *name;  /* name of the program */
    const void *image; /* see struct compiled */
    size_t bytes;
    bool is_ptx;
    const char *log; /* the compiler's log, never NULL */
};

/* Computes struct program's headers_digest. */
void cache_digest_headers(uint8_t digest[32], const struct program_header *headers, int count);

/* Identifies a program for an architecture ("sm_90a"), independent of the compiler: a hash of all inputs, including
   Weft's version. */
void cache_identify(uint8_t identity[32], const struct program *program, const char *arch);

/* Returns the code of a program for an architecture ("sm_90a"); release it with cache_release. Fails as nvrtc_choose
   and nvrtc_compile do. */
weftStatus_t cache_get(const struct code **code, const struct program *program, const char *arch);

/* Adds code that was compiled elsewhere, such as that of a saved plan. It is copied and never saved to disk. */
weftStatus_t cache_adopt(const struct code **code, const char *name, const void *image, size_t bytes, bool is_ptx);

/* NULL is allowed. Code without references stays cached until 64 MiB are idle. */
void cache_release(const struct code *code);

/* {"compiled", "shared", "in_memory", "disk": as disk_cache_report}; shared: requests that found the code in memory or
   waited for it. */
void cache_report(struct text *json);

#endif
