/* SPDX-License-Identifier: Apache-2.0 */
/* Control groups of Linux, by which containers and services limit a process. It must not know what for. */
#ifndef WEFT_RUNTIME_CGROUP_H
#define WEFT_RUNTIME_CGROUP_H

#include <stdint.h>

/* How many processors' time this process may take, by the quotas of its own control group and those above, of version 1
   and 2: the tightest, rounded up, since a part of a processor still shortens the work. INT64_MAX: no limit that can be
   read. files: what stands before each path, "" but in tests. */
int64_t cgroup_processors(const char *files);

#endif
