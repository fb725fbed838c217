/* SPDX-License-Identifier: Apache-2.0 */
/* Finds CPU quotas: /proc/self/cgroup names the process's group in each hierarchy; /proc/self/mountinfo lists where a
   hierarchy is mounted and which group is at the top of the mount, because a container only sees its own groups. A
   missing or unreadable file means no limit. */
#define _GNU_SOURCE 1 /* getline */
#include "runtime/cgroup.h"

#include "base/number.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Small, because threads with stacks of 64 KiB call this. */
enum { PATH_BYTES = 1024 };
#define PATH_FORMAT "%1023s"

/* Version 2 has one hierarchy for all controllers, version 1 has one per controller or per few. */
struct hierarchy {
    bool is_v2;
    char group[PATH_BYTES]; /* the group of this process, relative to the root of the hierarchy */
    char top[PATH_BYTES];   /* the group that is mounted */
    char mount[PATH_BYTES]; /* mount point */
};

/* True if a comma-separated list contains the word. */
static bool has_word(const char *words, const char *word) {
    size_t length = strlen(word);
    for (const char *at = words; (at = strstr(at, word)); at += length)
        if ((at == words || at[-1] == ',') && strchr(",\n", at[length])) /* the end of the string matches too */
            return true;
    return false;
}

/* "4:cpu,cpuacct:/group"; version 2: "0::/group". */
static bool read_group(struct hierarchy *h, char *line) {
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group || strlen(group) >= PATH_BYTES)
        return false;
    *group++ = '\0', controllers++;
    group[strcspn(group, "\n")] = '\0';
    strcpy(h->group, group);
    return h->is_v2 ? !*controllers : has_word(controllers, "cpu");
}

/* "36 35 0:30 /top /mount options - type source options", with optional fields before the dash. */
static bool read_mount(struct hierarchy *h, char *line) {
    char type[32], options[PATH_BYTES];
    const char *rest = strstr(line, " - ");
    if (!rest || sscanf(rest, " - %31s %*s " PATH_FORMAT, type, options) != 2)
        return false;
    if (sscanf(line, "%*s %*s %*s " PATH_FORMAT " " PATH_FORMAT, h->top, h->mount) != 2)
        return false;
    return h->is_v2 ? strcmp(type, "cgroup2") == 0 : strcmp(type, "cgroup") == 0 && has_word(options, "cpu");
}

/* True if a line of a file is accepted by `read`, which stores its contents in h. */
static bool find_line(struct hierarchy *h, const char *files, const char *path,
                      bool (*read)(struct hierarchy *h, char *line)) {
    char name[PATH_BYTES], *line = NULL;
    size_t bytes = 0;
    bool is_found = false;
    snprintf(name, sizeof name, "%s%s", files, path);
    FILE *file = fopen(name, "r");
    while (file && !is_found && getline(&line, &bytes, file) > 0)
        is_found = read(h, line);
    free(line);
    if (file)
        fclose(file);
    return is_found;
}

/* Reads up to two numbers at the start of a group's file and returns how many there are. */
static int read_numbers(const char *files, const char *folder, const char *name, int64_t numbers[2]) {
    char path[2 * PATH_BYTES];
    long long first = 0, second = 0;
    snprintf(path, sizeof path, "%s%s/%s", files, folder, name);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    int count = fscanf(file, "%lld %lld", &first, &second);
    fclose(file);
    numbers[0] = first, numbers[1] = second;
    return count;
}

/* The quota in microseconds per period, in processors, rounded up. A word instead of the first number, or -1, means no
   limit. */
static int64_t processors_of(const struct hierarchy *h, const char *files, const char *folder) {
    int64_t quota[2] = {0}, period[2] = {0};
    if (h->is_v2 && read_numbers(files, folder, "cpu.max", quota) == 2)
        period[0] = quota[1];
    else if (!h->is_v2 && read_numbers(files, folder, "cpu.cfs_quota_us", quota) == 1)
        read_numbers(files, folder, "cpu.cfs_period_us", period);
    return quota[0] > 0 && period[0] > 0 ? divide_up(quota[0], period[0]) : INT64_MAX;
}

/* The group's path relative to the mounted group; a group outside of it counts as the mounted group. */
static const char *path_below(const struct hierarchy *h) {
    size_t length = strcmp(h->top, "/") == 0 ? 0 : strlen(h->top);
    bool is_below = strncmp(h->group, h->top, length) == 0 && !strstr(h->group, "/..");
    return is_below ? h->group + length : "";
}

/* The smallest limit of the group and all its ancestors. */
static int64_t tightest(const struct hierarchy *h, const char *files) {
    char folder[2 * PATH_BYTES];
    int64_t least = INT64_MAX;
    snprintf(folder, sizeof folder, "%s%s", h->mount, path_below(h));
    for (;;) {
        least = min64(least, processors_of(h, files, folder));
        char *last = strrchr(folder + strlen(h->mount), '/');
        if (!last)
            return least;
        *last = '\0';
    }
}

int64_t cgroup_processors(const char *files) {
    int64_t least = INT64_MAX;
    for (int version = 1; version <= 2; version++) {
        struct hierarchy h = {.is_v2 = version == 2};
        if (find_line(&h, files, "/proc/self/cgroup", read_group) &&
            find_line(&h, files, "/proc/self/mountinfo", read_mount))
            least = min64(least, tightest(&h, files));
    }
    return least;
}
