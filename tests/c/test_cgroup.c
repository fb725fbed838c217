/* SPDX-License-Identifier: Apache-2.0 */
/* Quotas of control groups, with trees of files as Linux creates them: versions 1 and 2, containers that see the whole
   hierarchy or only their own group, tighter limits in parent groups, and invalid files. */
#include "harness.h"
#include "runtime/cgroup.h"

#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/weft-cgroup-XXXXXX";

/* Writes a file of the tree and creates its folders. */
static void place(const char *path, const char *text) {
    char name[512];
    snprintf(name, sizeof name, "%s%s", root, path);
    for (char *at = name + sizeof root; (at = strchr(at, '/')); *at++ = '/') {
        *at = '\0';
        mkdir(name, 0700);
    }
    FILE *file = fopen(name, "w");
    if (!file || fputs(text, file) < 0 || fclose(file))
        exit(1);
}

static void remove_tree(void) {
    char command[64];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    if (system(command))
        exit(1);
}

struct file {
    const char *path, *text;
};
#define V1 "30 23 0:28 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
#define V2 "25 20 0:24 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
#define CGROUP "/proc/self/cgroup"
#define MOUNTS "/proc/self/mountinfo"

static const struct {
    const char *what;
    int64_t processors; /* 0: no limit */
    struct file files[6];
} cases[] = {
    {"no control groups", 0, {{"/nothing", ""}}},
    {"version 2, a quarter more than 2",
     3,
     {{CGROUP, "0::/app\n"}, {MOUNTS, V2}, {"/sys/fs/cgroup/app/cpu.max", "225000 100000\n"}}},
    {"version 2, half a processor", 1, {{CGROUP, "0::/\n"}, {MOUNTS, V2}, {"/sys/fs/cgroup/cpu.max", "5000 10000\n"}}},
    {"version 2, no limit", 0, {{CGROUP, "0::/app\n"}, {MOUNTS, V2}, {"/sys/fs/cgroup/app/cpu.max", "max 100000\n"}}},
    {"version 2, tighter above",
     2,
     {{CGROUP, "0::/a/b/c\n"},
      {MOUNTS, V2},
      {"/sys/fs/cgroup/a/b/c/cpu.max", "800000 100000\n"},
      {"/sys/fs/cgroup/a/cpu.max", "200000 100000\n"}}},
    {"version 1, among other hierarchies",
     4,
     {{CGROUP, "9:cpuset:/app\n4:cpuacct,cpu:/app\n1:memory:/\n0::/\n"},
      {MOUNTS, "31 23 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n" V1},
      {"/sys/fs/cgroup/cpu/app/cpu.cfs_quota_us", "400000\n"},
      {"/sys/fs/cgroup/cpu/app/cpu.cfs_period_us", "100000\n"},
      {"/sys/fs/cgroup/cpuset/app/cpu.cfs_quota_us", "100000\n"},
      {"/sys/fs/cgroup/cpuset/app/cpu.cfs_period_us", "100000\n"}}},
    {"version 1, no limit",
     0,
     {{CGROUP, "4:cpu:/\n"},
      {MOUNTS, V1},
      {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
      {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}}},
    {"a container that sees its own group at the top",
     2,
     {{CGROUP, "4:cpu:/docker/1f2e\n"},
      {MOUNTS, "30 23 0:28 /docker/1f2e /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n"},
      {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n"},
      {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}}},
    {"a group that is not below what is mounted",
     5,
     {{CGROUP, "0::/../elsewhere\n"}, {MOUNTS, V2}, {"/sys/fs/cgroup/cpu.max", "500000 100000\n"}}},
    {"the tighter of both versions",
     2,
     {{CGROUP, "4:cpu:/\n0::/\n"},
      {MOUNTS, V1 "25 20 0:24 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"},
      {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "700000\n"},
      {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"},
      {"/sys/fs/cgroup/unified/cpu.max", "200000 100000\n"}}},
    {"nonsense",
     0,
     {{CGROUP, "4cpu\n0::\n:::\n"}, {MOUNTS, "- -\n25 - cgroup2\n" V2}, {"/sys/fs/cgroup/cpu.max", "2 -3\n"}}},
};

int main(void) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!mkdtemp(strcpy(root, "/tmp/weft-cgroup-XXXXXX")))
            return 1;
        for (int k = 0; k < 6 && cases[i].files[k].path; k++)
            place(cases[i].files[k].path, cases[i].files[k].text);
        int64_t found = cgroup_processors(root), wanted = cases[i].processors ? cases[i].processors : INT64_MAX;
        CHECK(found == wanted, "%s: %lld processors, not %lld", cases[i].what, (long long)found, (long long)wanted);
        remove_tree();
    }
    return harness_end();
}
