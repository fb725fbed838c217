/* SPDX-License-Identifier: Apache-2.0 */
/* NVRTC, NVIDIA's run-time compiler: finds the copies on this machine, chooses one, and compiles program text to
   machine code. Copies are searched in
     WEFT_NVRTC           files or folders, separated by colons; if it is set, nothing else is searched
     the process          libraries that are already loaded
     the search paths     set by a language's frontend (Python: sys.path)
     next to libweft      wheels installed in the same place
     CONDA_PREFIX, the system's loader, CUDA_HOME, CUDA_PATH, /usr/local/cuda*
   Among the copies that support the chip and are not newer than the driver's CUDA major version, the newest is used;
   the first one in case of a tie. A copy without its libnvrtc-builtins is only used if there is no other, and a copy
   with a truncated file is never used. The reason for each decision is recorded for reports. Libraries stay loaded.
   This file knows nothing of kernels and caches. */
#ifndef WEFT_RUNTIME_NVRTC_H
#define WEFT_RUNTIME_NVRTC_H

#include "base/status.h"
#include "base/text.h"
#include <stdbool.h>
#include <stdint.h>

/* A header that only exists in memory; the program includes it by this name. */
struct program_header {
    const char *name, *text;
};

struct program {
    const char *name; /* its name in messages and dumps: "map.cu" */
    const char *text;
    int header_count;
    const struct program_header *headers;
    const uint8_t
        *headers_digest;     /* 32 bytes that represent headers shared by several programs; NULL: they are hashed */
    const uint8_t *identity; /* the 32 bytes of cache_identify; NULL: computed when needed */
    int option_count;        /* without the architecture, which nvrtc_compile adds */
    const char *const *options;
};

struct compiled {
    void *image; /* a cubin, or zero-terminated PTX, whose zero is included in bytes */
    size_t bytes;
    bool is_ptx;
    char *log; /* the compiler's log, also after a failure; NULL if nothing was compiled */
};

struct nvrtc_choice {
    const struct nvrtc *compiler;
    int version;        /* 1000 * major + 10 * minor */
    int64_t file_bytes; /* size of the library, which distinguishes builds of one version */
    char target[24];    /* "sm_90a", or "compute_90" if no copy supports the chip and PTX is used */
    bool is_ptx;
};

/* Sets additional folders and files to search, separated by colons. A folder may contain the library itself or, as
   site-packages does, nvidia/cu13/lib or nvidia/cuda_nvrtc/lib. Replaces the earlier setting (NULL: none); copies that
   were found remain known. */
weftStatus_t nvrtc_set_search_paths(const char *paths);

/* Chooses the compiler for an architecture such as "sm_90a". Fails with
     NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING   no copy exists or none can be loaded
     NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER       the newest one that supports the chip is newer than the driver
     NOT_SUPPORTED_ARCH_MISMATCH                  none supports the chip */
weftStatus_t nvrtc_choose(struct nvrtc_choice *choice, const char *arch);

/* Compiles a program; release the result with compiled_free, also after a failure. If the program does not compile, the
   status is INTERNAL_ERROR_COMPILATION_FAILED and the message contains the first error, its source line, and the log.
   */
weftStatus_t nvrtc_compile(struct compiled *out, const struct nvrtc_choice *choice, const struct program *program);
void compiled_free(struct compiled *compiled);

/* All copies as a JSON array of {"path", "found_by", "version", "archs", "builtins", "is_chosen", "verdict"}, judged
   for an architecture. */
void nvrtc_report(struct text *json, const char *arch);

#endif
