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

/* Where the last loadable segment ends in the file; 0 for files that are no libraries of this machine. */
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

bool library_is_cut_off(const char *path, char why[LIBRARY_WHY_BYTES]) {
    struct stat info;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    uint64_t end = file < 0 ? 0 : end_of_segments(file);
    bool is_cut_off = end && fstat(file, &info) == 0 && (uint64_t)info.st_size < end;
    if (is_cut_off)
        snprintf(why, LIBRARY_WHY_BYTES, "the file is cut off: its headers describe %llu bytes, it has %llu",
                 (unsigned long long)end, (unsigned long long)info.st_size);
    if (file >= 0)
        close(file);
    return is_cut_off;
}

/* True if the first file of this name in the loader's folders, LD_LIBRARY_PATH first, is cut off. Folders that only
   ldconfig knows are not searched. */
static bool is_found_cut_off(const char *name, char why[LIBRARY_WHY_BYTES]) {
    bool is_cut_off = false;
#ifdef __GLIBC__
    Dl_serinfo size, *folders;
    void *process = dlopen(NULL, RTLD_LAZY);
    if (!process || dlinfo(process, RTLD_DI_SERINFOSIZE, &size) || !(folders = malloc(size.dls_size)))
        return false;
    /* The second call writes the header of the allocated struct, which the third one checks. */
    if (dlinfo(process, RTLD_DI_SERINFOSIZE, folders) == 0 && dlinfo(process, RTLD_DI_SERINFO, folders) == 0)
        for (unsigned i = 0; i < folders->dls_cnt; i++) {
            char path[PATH_MAX];
            if (snprintf(path, sizeof path, "%s/%s", folders->dls_serpath[i].dls_name, name) >= PATH_MAX ||
                access(path, R_OK))
                continue;
            is_cut_off = library_is_cut_off(path, why);
            break;
        }
    free(folders);
    dlclose(process);
#else
    (void)name, (void)why;
#endif
    return is_cut_off;
}

void *library_open(const char *name, char why[LIBRARY_WHY_BYTES]) {
    if (strchr(name, '/') ? library_is_cut_off(name, why) : is_found_cut_off(name, why))
        return NULL;
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        snprintf(why, LIBRARY_WHY_BYTES, "%s", dlerror());
    return library;
}
