/* SPDX-License-Identifier: Apache-2.0 */
/* Opens foreign shared libraries: the driver, and NVRTC with its parts. The loader maps a file as its headers describe
   it, and the process dies of SIGBUS if the file is shorter, for example after an interrupted copy. Such a file is
   refused here, before the loader opens it. */
#ifndef WEFT_RUNTIME_LIBRARY_H
#define WEFT_RUNTIME_LIBRARY_H

#include <stdbool.h>

enum { LIBRARY_WHY_BYTES = 256 };

/* dlopen with RTLD_NOW | RTLD_LOCAL of a path, or of a name without slashes that the loader looks up. NULL on failure,
   with the reason in `why`. */
void *library_open(const char *name, char why[LIBRARY_WHY_BYTES]);

/* True, with the reason, if the file at `path` ends before its last segment. Files that cannot be read, or that are no
   libraries for this machine, are left to dlopen, which refuses them. */
bool library_is_truncated(const char *path, char why[LIBRARY_WHY_BYTES]);

/* The same for the files of this name in the cache of ldconfig. */
bool library_is_truncated_for_loader(const char *cache, const char *name, char why[LIBRARY_WHY_BYTES]);

#endif
