/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel cache: program text in, machine code out, compiled at most once. The key covers everything that determines
   the result: text, headers, options in order, target architecture, NVRTC's version and build, Weft's version. Lookups
   go to memory, then to disk (runtime/disk_cache.h), then to the compiler; threads that need the same program wait for
   the one that compiles it. WEFT_DUMP_DIR names a folder that receives every program used, with its headers, options,
   log and machine code. The cache knows no devices: code is loaded elsewhere. */
#ifndef WEFT_RUNTIME_CACHE_H
#define WEFT_RUNTIME_CACHE_H

#include "runtime/nvrtc.h"

/* Machine code of one program; immutable, shared, counted. */
struct code {
    uint8_t key[32];
    const char *name;  /* of the program */
    const void *image; /* see struct compiled */
    size_t bytes;
    bool is_ptx;
    const char *log; /* what the compiler said, never NULL */
};

/* What struct program's headers_digest is. */
void cache_digest_headers(uint8_t digest[32], const struct program_header *headers, int count);

/* What a program for an architecture ("sm_90a") is known by, whichever compiler makes code of it: a hash of all that
   goes in, the version of Weft included. */
void cache_identify(uint8_t identity[32], const struct program *program, const char *arch);

/* The code of a program for an architecture ("sm_90a"); give it back with cache_release. Fails as nvrtc_choose and
   nvrtc_compile do. */
weftStatus_t cache_get(const struct code **code, const struct program *program, const char *arch);

/* Code that was not compiled here, as from a saved plan; it is copied, and never goes to disk. */
weftStatus_t cache_adopt(const struct code **code, const char *name, const void *image, size_t bytes, bool is_ptx);

/* NULL does nothing. Code that nobody holds stays in memory until 64 MiB of it are idle. */
void cache_release(const struct code *code);

/* {"compiled", "shared", "in_memory", "disk": as disk_cache_report}; shared: requests that found the code in memory or
   waited for it. */
void cache_report(struct text *json);

#endif
