/* SPDX-License-Identifier: Apache-2.0 */
/* Determines which device files a program includes, directly or not. Only these are compiled with it, hashed into its
   identity and listed with it, so that changing one family's files keeps the kernels of other families in the cache.
   Each file is read and hashed once per process. */
#include "base/hash.h"
#include "engines/cuda/core/kernel.h"

#include <pthread.h>
#include <string.h>

/* One bit per device file, by its index in device_files. */
struct file_set {
    uint64_t words[DEVICE_FILES_MAX / 64];
};

/* Filled once, under pthread_once, and read-only afterwards: no lock is needed. */
static struct {
    struct file_set reached; /* the file itself and all files that it includes, directly or not */
    uint8_t digest[32];
    bool is_read;
} known[DEVICE_FILES_MAX];

/* Adds to a set the files that a text includes, directly or not. */
static void add_included(struct file_set *set, const char *text);

/* By pointer and length, because the name is not terminated. The list is short (below DEVICE_FILES_MAX) and is searched
   once per include line and program. */
static int find_file(const char *name, size_t length) {
    int count;
    const struct program_header *files = device_files(&count);
    for (int i = 0; i < count; i++)
        if (strncmp(files[i].name, name, length) == 0 && !files[i].name[length])
            return i;
    return -1;
}

/* Includes form no cycle (tools/check_floors.py), so this terminates. */
static void read_file(int i) {
    int count;
    const struct program_header *file = &device_files(&count)[i];
    if (known[i].is_read)
        return;
    known[i].is_read = true;
    known[i].reached.words[i / 64] = UINT64_C(1) << i % 64;
    add_included(&known[i].reached, file->text);
    cache_digest_headers(known[i].digest, file, 1);
}

static void add_included(struct file_set *set, const char *text) {
    static const char include[] = "#include \"";
    for (const char *at = text; (at = strstr(at, include)) != NULL;) {
        at += sizeof include - 1;
        int i = find_file(at, strcspn(at, "\"\n"));
        if (i < 0)
            continue; /* the compiler will report it */
        read_file(i);
        for (size_t w = 0; w < sizeof set->words / sizeof *set->words; w++)
            set->words[w] |= known[i].reached.words[w];
    }
}

static void read_all(void) {
    int count;
    device_files(&count);
    for (int i = 0; i < count; i++)
        read_file(i);
}

/* The digest covers the files' digests in the order of the list, so the order of includes does not matter. */
int kernel_headers(struct program_header headers[DEVICE_FILES_MAX], uint8_t digest[32], const char *text) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct file_set set = {{0}};
    struct sha256 hash;
    int count, reached = 0;
    const struct program_header *files = device_files(&count);
    pthread_once(&once, read_all);
    add_included(&set, text);
    sha256_init(&hash);
    for (int i = 0; i < count; i++)
        if (set.words[i / 64] >> i % 64 & 1) {
            headers[reached++] = files[i];
            sha256_update(&hash, known[i].digest, sizeof known[i].digest);
        }
    sha256_final(digest, &hash);
    return reached;
}
