/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "runtime/library.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* End of the last loadable segment in the file; 0 if the file is not a library for this machine. */
static uint64_t end_of_segments(int file) {
    ElfW(Ehdr) header;
    ElfW(Phdr) segment;
    uint64_t end = 0;
    if (pread(file, &header, sizeof header, 0) != sizeof header || memcmp(header.e_ident, ELFMAG, SELFMAG) ||
        header.e_ident[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) ||
        header.e_phentsize != sizeof segment)
        return 0;
    for (int i = 0; i < header.e_phnum; i++) {
        off_t at = (off_t)(header.e_phoff + (uint64_t)i * sizeof segment);
        if (pread(file, &segment, sizeof segment, at) != sizeof segment)
            return 0;
        uint64_t last = segment.p_offset + segment.p_filesz;
        if (segment.p_type == PT_LOAD && last > end)
            end = last;
    }
    return end;
}

bool library_is_truncated(const char *path, char why[LIBRARY_WHY_BYTES]) {
    struct stat info;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    uint64_t end = file < 0 ? 0 : end_of_segments(file);
    bool is_truncated = end && fstat(file, &info) == 0 && (uint64_t)info.st_size < end;
    if (is_truncated)
        snprintf(why, LIBRARY_WHY_BYTES, "the file is truncated: its headers describe %llu bytes, it has %llu",
                 (unsigned long long)end, (unsigned long long)info.st_size);
    if (file >= 0)
        close(file);
    return is_truncated;
}

/* The file that ldconfig writes, in the format of glibc 2.2 and newer. */
struct loader_cache {
    char magic[20];
    uint32_t count, string_bytes, unused[5];
};
struct loader_cache_entry {
    int32_t flags;
    uint32_t name, path; /* offsets from the header */
    uint32_t version;
    uint64_t capabilities;
};

/* Checks all files with this name, because the choice of the loader depends on the processor. */
static bool is_truncated_in_cache(const char *data, size_t bytes, const char *name, char why[LIBRARY_WHY_BYTES]) {
    struct loader_cache header;
    size_t length = strlen(name) + 1;
    /* ldconfig of glibc before 2.32 puts data in an older format before the header. */
    const char *start = memmem(data, bytes, "glibc-ld.so.cache1.1", sizeof header.magic);
    bytes -= start ? (size_t)(start - data) : bytes;
    if (bytes < sizeof header)
        return false;
    memcpy(&header, start, sizeof header);
    for (size_t at = sizeof header; header.count-- > 0; at += sizeof(struct loader_cache_entry)) {
        struct loader_cache_entry entry;
        if (bytes - at < sizeof entry)
            return false;
        memcpy(&entry, start + at, sizeof entry);
        bool is_named =
            entry.name < bytes && bytes - entry.name >= length && memcmp(start + entry.name, name, length) == 0;
        bool has_path = entry.path < bytes && memchr(start + entry.path, 0, bytes - entry.path);
        if (is_named && has_path && library_is_truncated(start + entry.path, why))
            return true;
    }
    return false;
}

bool library_is_truncated_for_loader(const char *cache, const char *name, char why[LIBRARY_WHY_BYTES]) {
    int file = open(cache, O_RDONLY | O_CLOEXEC);
    struct stat info;
    bool is_truncated = false;
    char *data = NULL;
    if (file >= 0 && fstat(file, &info) == 0 && info.st_size > 0 && (data = malloc((size_t)info.st_size))) {
        ssize_t bytes = read(file, data, (size_t)info.st_size);
        is_truncated = bytes > 0 && is_truncated_in_cache(data, (size_t)bytes, name, why);
    }
    free(data);
    if (file >= 0)
        close(file);
    return is_truncated;
}

#ifdef __GLIBC__
/* True if a readable file of this name is in the loader's folders, LD_LIBRARY_PATH first; the first one is checked. */
static bool is_in_folders(const char *name, bool *is_truncated, char why[LIBRARY_WHY_BYTES]) {
    bool is_found = false;
    Dl_serinfo size, *folders;
    void *process = dlopen(NULL, RTLD_LAZY);
    if (!process || dlinfo(process, RTLD_DI_SERINFOSIZE, &size) || !(folders = malloc(size.dls_size)))
        return false;
    /* The second call initializes the header of the allocated struct, which the third call checks. */
    if (dlinfo(process, RTLD_DI_SERINFOSIZE, folders) == 0 && dlinfo(process, RTLD_DI_SERINFO, folders) == 0)
        for (unsigned i = 0; i < folders->dls_cnt && !is_found; i++) {
            char path[PATH_MAX];
            if (snprintf(path, sizeof path, "%s/%s", folders->dls_serpath[i].dls_name, name) >= PATH_MAX ||
                access(path, R_OK))
                continue;
            *is_truncated = library_is_truncated(path, why);
            is_found = true;
        }
    free(folders);
    dlclose(process);
    return is_found;
}

#endif

/* True if the file that the loader would choose for this name is truncated. The loader searches LD_LIBRARY_PATH, then
   the cache of ldconfig, which includes its own folders. */
static bool is_found_truncated(const char *name, char why[LIBRARY_WHY_BYTES]) {
    bool is_truncated = false;
#ifdef __GLIBC__
    if (!is_in_folders(name, &is_truncated, why))
        is_truncated = library_is_truncated_for_loader("/etc/ld.so.cache", name, why);
#else
    (void)name, (void)why;
#endif
    return is_truncated;
}

void *library_open(const char *name, char why[LIBRARY_WHY_BYTES]) {
    if (strchr(name, '/') ? library_is_truncated(name, why) : is_found_truncated(name, why))
        return NULL;
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        snprintf(why, LIBRARY_WHY_BYTES, "%s", dlerror());
    return library;
}
