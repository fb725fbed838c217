/* SPDX-License-Identifier: Apache-2.0 */
/* Opens shared libraries that are not Weft's own: the driver, and copies of NVRTC with their parts. The loader maps a
   file as its headers describe it, and the process dies of SIGBUS where the file ends earlier, as after an interrupted
   copy. Such a file is refused here, before the loader sees it. */
#ifndef WEFT_RUNTIME_LIBRARY_H
#define WEFT_RUNTIME_LIBRARY_H

#include <stdbool.h>

enum { LIBRARY_WHY_BYTES = 256 };

/* dlopen with RTLD_NOW | RTLD_LOCAL of a path, or of a name without slashes that the loader looks up. NULL: `why` holds
   the reason. */
void *library_open(const char *name, char why[LIBRARY_WHY_BYTES]);

/* True, with the reason, if the file at `path` ends before its last segment does. Files that cannot be read, or that
   are no libraries of this machine, are left to dlopen, which refuses them itself. */
bool library_is_cut_off(const char *path, char why[LIBRARY_WHY_BYTES]);

/* The same for a file of this name that the cache of ldconfig lists. */
bool library_is_cut_off_for_loader(const char *cache, const char *name, char why[LIBRARY_WHY_BYTES]);

#endif
