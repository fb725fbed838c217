/* SPDX-License-Identifier: Apache-2.0 */
/* CPU quotas of Linux control groups, which containers and services use to limit a process. */
#ifndef WEFT_RUNTIME_CGROUP_H
#define WEFT_RUNTIME_CGROUP_H

#include <stdint.h>

/* Number of processors that the quotas of this process's control group and its ancestors allow, versions 1 and 2. The
   smallest quota counts, rounded up, because a fraction of a processor still shortens the work. INT64_MAX if no limit
   can be read. files: prefix of all paths, only set by tests. */
int64_t cgroup_processors(const char *files);

#endif
