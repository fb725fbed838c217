/* SPDX-License-Identifier: Apache-2.0 */
/* NVRTC, NVIDIA's run-time compiler: finds the copies on this machine, chooses one by rule, and turns program text into
   machine code. Copies are looked for in
     WEFT_NVRTC           files or folders, divided by colons; when it is set, nowhere else
     the process          what another library has loaded already
     the search paths     which a language's frontend hands over (Python: sys.path)
     beside libweft       wheels installed in the same place
     CONDA_PREFIX, the system's loader, CUDA_HOME, CUDA_PATH, /usr/local/cuda*
   and of those that serve the chip and are not newer than the driver's CUDA major version, the newest is taken; of
   equals the first found. A copy without its libnvrtc-builtins is taken only if no other serves, one of which a file is
   cut off is never taken. Every copy keeps the reason why it was taken or not. Libraries stay loaded.
   It must not know what kernels compute, nor caches. */
#ifndef WEFT_RUNTIME_NVRTC_H
#define WEFT_RUNTIME_NVRTC_H

#include "base/status.h"
#include "base/text.h"
#include <stdbool.h>
#include <stdint.h>

/* A header that exists in memory alone; the program includes it by this name. */
struct program_header {
    const char *name, *text;
};

struct program {
    const char *name; /* what messages and dumps call it: "map.cu" */
    const char *text;
    int header_count;
    const struct program_header *headers;
    const uint8_t
        *headers_digest;     /* 32 bytes that stand for the headers where programs share them; NULL: they are hashed */
    const uint8_t *identity; /* what cache_identify gave, of 32 bytes; NULL: it is found */
    int option_count;        /* beside the architecture, which nvrtc_compile adds */
    const char *const *options;
};

struct compiled {
    void *image; /* a cubin; or PTX, zero-terminated, the zero counted in bytes */
    size_t bytes;
    bool is_ptx;
    char *log; /* what the compiler said, also after a failure; NULL when it never came to compile */
};

struct nvrtc_choice {
    const struct nvrtc *compiler;
    int version;        /* 1000 * major + 10 * minor */
    int64_t file_bytes; /* of the library: tells builds of one version apart */
    char target[24];    /* "sm_90a"; "compute_90" when no copy knows the chip and PTX must do */
    bool is_ptx;
};

/* Folders and files, divided by colons, to look in as well: a folder may hold the library itself or, as site-packages
   does, nvidia/cu13/lib or nvidia/cuda_nvrtc/lib. Replaces what was handed over before (NULL: nothing); copies found
   stay. */
weftStatus_t nvrtc_set_search_paths(const char *paths);

/* The compiler to use for an architecture, "sm_90a". Fails with
     NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING   there is none, or none that can be loaded
     NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER       the newest one that knows the chip is newer than the driver
     NOT_SUPPORTED_ARCH_MISMATCH                  none knows the chip */
weftStatus_t nvrtc_choose(struct nvrtc_choice *choice, const char *arch);

/* Compiles; free the result with compiled_free, also after a failure. A program that does not compile is
   INTERNAL_ERROR_COMPILATION_FAILED with the first error, its line in our text, and the log. */
weftStatus_t nvrtc_compile(struct compiled *out, const struct nvrtc_choice *choice, const struct program *program);
void compiled_free(struct compiled *compiled);

/* Every copy found as a JSON array of {"path", "found_by", "version", "archs", "builtins", "is_chosen", "verdict"},
   judged for an architecture. */
void nvrtc_report(struct text *json, const char *arch);

#endif
