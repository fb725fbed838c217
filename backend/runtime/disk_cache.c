/* SPDX-License-Identifier: Apache-2.0 */
/* The folder is opened once and all accesses are relative to it, so that it cannot be exchanged afterwards. Entries are
   written to a temporary file, synchronized and renamed. The modification time of an entry is the time of its last use.
   */
#define _GNU_SOURCE
#include "runtime/disk_cache.h"
#include "base/bytes.h"
#include "base/environment.h"
#include "base/hash.h"
#include "base/trace.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char magic[8] = {'W', 'E', 'F', 'T', 'K', 'E', 'E', 'P'};
/* HEADER_BYTES: magic number, format, key, digest of the payload, its length. ENTRY_BYTES_MAX: larger files cannot be
   kernels. */
enum { FORMAT = 1, HEADER_BYTES = 8 + 4 + 32 + 32 + 8, ENTRY_BYTES_MAX = 128 << 20 };
/* Listing the folder takes milliseconds, so only every 64th save checks whether other processes have filled it.
   STALE_SECONDS: writing a file never takes an hour. */
enum { SAVES_PER_TRIM = 64, STALE_SECONDS = 3600 };

enum mode { MODE_OFF, MODE_READ, MODE_WRITE };
static const char *const mode_names[] = {"off", "ro", "rw"};

/* Only written by open_store, then constant, so it is read without a lock. */
static struct {
    enum mode mode;
    /* Stays open as long as the process lives. */
    int folder; /* descriptor */
    char path[PATH_MAX];
    char problem[PATH_MAX + 256]; /* why the mode is less than requested */
    /* Maximum size of the folder in bytes. */
    int64_t limit;
} store;
static pthread_once_t open_once = PTHREAD_ONCE_INIT;
/* Only one thread of this process trims at a time. */
static pthread_mutex_t trim_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_llong estimate, save_count; /* estimated size of the folder; saves of this process */
static atomic_llong hits, saved, damaged, evicted;

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static void lower_mode(enum mode mode, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Only called by open_store, once per process, before the mode is read. */
static void lower_mode(enum mode mode, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(store.problem, sizeof store.problem, format, arguments);
    va_end(arguments);
    store.mode = mode;
    trace(WEFT_SEV_WARNING, "kernel cache: %s", store.problem);
}

/* An empty or missing WEFT_CACHE means rw; a relative HOME or XDG_CACHE_HOME is ignored, as the XDG standard requires.
   */
static void read_settings(void) {
    const char *mode = getenv("WEFT_CACHE"), *folder = getenv("WEFT_CACHE_DIR"), *shared = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    store.mode = MODE_WRITE;
    /* MODE_OFF .. MODE_WRITE are 0 .. 2, the indices of their names. */
    for (int m = MODE_OFF; mode && m <= MODE_WRITE; m++)
        if (strcmp(mode, mode_names[m]) == 0)
            store.mode = (enum mode)m;
    if (mode && *mode && strcmp(mode, mode_names[store.mode]) != 0)
        environment_warn("WEFT_CACHE", mode, "which is not rw, ro or off. It is taken as rw.");
    store.limit = environment_number("WEFT_CACHE_BYTES", 256 << 20);
    int length = -1;
    /* The first variable that is set decides, even if its folder turns out to be unusable, so that users notice it. */
    if (folder && *folder)
        length = snprintf(store.path, sizeof store.path, "%s", folder);
    else if (shared && *shared == '/')
        length = snprintf(store.path, sizeof store.path, "%s/weft/v1", shared);
    else if (home && *home == '/')
        length = snprintf(store.path, sizeof store.path, "%s/.cache/weft/v1", home);
    if (store.mode != MODE_OFF && (length < 0 || (size_t)length >= sizeof store.path))
        lower_mode(MODE_OFF,
                   "no folder for it: HOME is not set. Set WEFT_CACHE_DIR, or WEFT_CACHE=off to silence this warning.");
}

/* Failures appear when the folder is opened. 0700: other users must neither read nor plant code. */
static void make_folders(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    mkdir(path, 0700);
}

/* Root could replace the library itself. Any other user who can write the folder could make this process run their own
   code. */
static bool is_trusted_owner(uid_t owner) { return owner == geteuid() || owner == 0; }

/* Sets `store`. The mode is lowered to what the folder allows, with a warning for each reason. */
static void open_store(void) {
    struct stat info;
    read_settings();
    if (store.mode == MODE_OFF)
        return;
    if (store.mode == MODE_WRITE)
        make_folders(store.path);
    /* NOFOLLOW: the last component could be a link to anywhere. CLOEXEC: child programs do not inherit the descriptor.
       */
    store.folder = open(store.path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (store.folder < 0 || fstat(store.folder, &info))
        lower_mode(MODE_OFF,
                   "'%s' cannot be opened (%s). Every process compiles its kernels again; set WEFT_CACHE_DIR to "
                   "a folder of yours, or WEFT_CACHE=off to silence this warning.",
                   store.path, errno == ELOOP || errno == ENOTDIR ? "it is a link or not a folder" : strerror(errno));
    /* Checks the open folder instead of its path, which might be exchanged in between. */
    else if (!is_trusted_owner(info.st_uid) || info.st_mode & (S_IWGRP | S_IWOTH))
        lower_mode(MODE_OFF,
                   "'%s' is ignored: %s, who could plant code there. Set WEFT_CACHE_DIR to a folder that only you "
                   "can write (chmod 700).",
                   store.path, is_trusted_owner(info.st_uid) ? "others can write it" : "it belongs to another user");
    /* EACCESS: with the effective rights of the process. */
    else if (store.mode == MODE_WRITE && faccessat(store.folder, ".", W_OK, AT_EACCESS))
        lower_mode(MODE_READ,
                   "'%s' cannot be written (%s); it is only read. Set WEFT_CACHE_DIR to a folder of yours, or "
                   "WEFT_CACHE=ro to silence this warning.",
                   store.path, strerror(errno));
}

static enum mode open_mode(void) {
    pthread_once(&open_once, open_store);
    return store.mode;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

/* 64 digits, ".weft" and the zero: 70 bytes. */
static void print_name(char name[80], const uint8_t key[32]) {
    sha256_hex(name, key);
    strcpy(name + 64, ".weft");
}

/* read may return less than requested, and a signal may interrupt it. False at the end of the file. */
static bool read_all(int file, uint8_t *dst, size_t bytes) {
    while (bytes > 0) {
        ssize_t got = read(file, dst, bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        dst += got;
        bytes -= (size_t)got;
    }
    return true;
}

/* Returns the payload of an entry, or NULL if anything does not match. Detects truncated files, other formats, renamed
   files and bit errors of the disk, but not manipulation by someone who can write the folder. */
static const uint8_t *check_entry(size_t *payload_bytes, const uint8_t *data, size_t bytes, const uint8_t key[32]) {
    struct byte_reader reader;
    struct sha256 hash;
    char found_magic[8];
    uint8_t found_key[32], wanted[32], digest[32];
    byte_reader_init(&reader, data, bytes);
    byte_get_raw(&reader, found_magic, sizeof found_magic);
    uint32_t format = byte_get_u32(&reader);
    byte_get_raw(&reader, found_key, sizeof found_key);
    byte_get_raw(&reader, wanted, sizeof wanted);
    const uint8_t *payload = byte_get_block(&reader, payload_bytes);
    /* `position != bytes`: nothing may follow the payload. */
    if (reader.bad || reader.position != bytes || format != FORMAT || memcmp(found_magic, magic, sizeof magic) != 0 ||
        memcmp(found_key, key, 32) != 0)
        return NULL;
    sha256_init(&hash);
    sha256_update(&hash, payload, *payload_bytes);
    sha256_final(digest, &hash);
    return memcmp(digest, wanted, sizeof digest) == 0 ? payload : NULL;
}

/* Reads the whole file of an entry; the caller frees it. NULL with *problem set: the file cannot be trusted. NULL
   without: memory is exhausted. */
static uint8_t *read_entry(int file, size_t *bytes, const char **problem) {
    struct stat info;
    if (fstat(file, &info) || !S_ISREG(info.st_mode))
        *problem = "is not a regular file";
    /* The folder is trusted, but root or its owner may have moved another user's file into it. */
    else if (!is_trusted_owner(info.st_uid))
        *problem = "belongs to another user";
    else if (info.st_size < HEADER_BYTES || info.st_size > ENTRY_BYTES_MAX)
        *problem = "is damaged";
    if (*problem)
        return NULL;
    uint8_t *data = malloc((size_t)info.st_size);
    if (data && !read_all(file, data, (size_t)info.st_size)) {
        *problem = "is damaged";
        free(data);
        return NULL;
    }
    *bytes = (size_t)info.st_size;
    return data;
}

/* The caller frees the payload. A hit updates the entry's time of last use. */
bool disk_cache_load(const uint8_t key[32], uint8_t **payload, size_t *bytes) {
    char name[80];
    size_t file_bytes = 0;
    const char *problem = NULL;
    if (open_mode() == MODE_OFF)
        return false;
    print_name(name, key);
    /* NONBLOCK: opening a pipe of that name must not block. */
    int file = openat(store.folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    /* ELOOP is the result of NOFOLLOW for a link; any other failure means that the entry does not exist. */
    if (file < 0 && errno != ELOOP)
        return false;
    uint8_t *data = NULL;
    const uint8_t *contents = NULL;
    if (file < 0)
        problem = "is a link";
    else
        data = read_entry(file, &file_bytes, &problem);
    if (data && !(contents = check_entry(bytes, data, file_bytes, key)))
        problem = "is damaged";
    if (problem) {
        atomic_fetch_add(&damaged, 1);
        trace(WEFT_SEV_WARNING, "kernel cache: '%s/%s' %s; it is dropped and compiled again.", store.path, name,
              problem);
        /* Removed, so that the next process does not find it; in read-only mode it stays, and each process warns. */
        if (store.mode == MODE_WRITE)
            unlinkat(store.folder, name, 0);
    }
    if (contents) {
        /* The payload is moved to the front, so that the caller can free the pointer. */
        memmove(data, contents, *bytes);
        *payload = data;
        atomic_fetch_add(&hits, 1);
        /* The modification time is the time of last use, which trimming uses. */
        if (store.mode == MODE_WRITE)
            futimens(file, NULL);
    } else {
        free(data);
    }
    if (file >= 0)
        close(file);
    return contents != NULL;
}

/* ---- Trimming ---------------------------------------------------------------------------------------------------- */

struct entry {
    char name[80];
    int64_t bytes;
    /* The modification time. */
    struct timespec used;
};

/* Comparison for qsort, ascending. */
static int compare_use(const void *left, const void *right) {
    const struct timespec *a = &((const struct entry *)left)->used, *b = &((const struct entry *)right)->used;
    if (a->tv_sec != b->tv_sec)
        return a->tv_sec < b->tv_sec ? -1 : 1;
    return a->tv_nsec < b->tv_nsec ? -1 : a->tv_nsec > b->tv_nsec;
}

/* Lists the entries, oldest first; the caller frees the list. Temporary files of dead processes are removed. */
static struct entry *list_entries(size_t *count, int64_t *bytes) {
    struct entry *entries = NULL;
    size_t capacity = 0;
    struct stat info;
    *count = 0;
    *bytes = 0;
    /* Opened again, because fdopendir takes over its descriptor, and two listings must not share a position. */
    int again = openat(store.folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = again < 0 ? NULL : fdopendir(again);
    for (struct dirent *item; folder && (item = readdir(folder));) {
        size_t length = strlen(item->d_name);
        /* Files may vanish between readdir and fstatat if another process trims. */
        if (fstatat(store.folder, item->d_name, &info, AT_SYMLINK_NOFOLLOW) || !S_ISREG(info.st_mode))
            continue;
        if (store.mode == MODE_WRITE && strncmp(item->d_name, ".tmp-", 5) == 0 &&
            info.st_mtim.tv_sec < time(NULL) - STALE_SECONDS)
            unlinkat(store.folder, item->d_name, 0);
        /* 64 hexadecimal digits and ".weft". */
        if (length != 69 || strcmp(item->d_name + 64, ".weft") != 0)
            continue;
        struct entry *grown = bytes_grow(entries, &capacity, (*count + 1) * sizeof *entries);
        if (!grown)
            break;
        entries = grown;
        entries[*count] = (struct entry){.bytes = info.st_size, .used = info.st_mtim};
        strcpy(entries[*count].name, item->d_name);
        *bytes += info.st_size;
        ++*count;
    }
    if (folder)
        closedir(folder);
    if (*count)
        qsort(entries, *count, sizeof *entries, compare_use);
    return entries;
}

/* If the folder exceeds the limit, removes the least recently used entries until it is an eighth below the limit, so
   that trimming is rare. Other processes may trim at the same time, so a missing entry is no error. */
static void trim(void) {
    size_t count;
    int64_t bytes;
    pthread_mutex_lock(&trim_lock);
    struct entry *entries = list_entries(&count, &bytes);
    bool is_over = bytes > store.limit;
    for (size_t i = 0; is_over && i < count && bytes > store.limit - store.limit / 8; i++)
        if (unlinkat(store.folder, entries[i].name, 0) == 0) {
            bytes -= entries[i].bytes;
            atomic_fetch_add(&evicted, 1);
        }
    /* Entries that other threads save meanwhile may be missing from the estimate until the next listing. */
    atomic_store(&estimate, bytes);
    free(entries);
    pthread_mutex_unlock(&trim_lock);
}

/* ---- Saving ------------------------------------------------------------------------------------------------------ */

/* Writes all bytes, or returns false. write may write less than requested, and a signal may interrupt it. */
static bool write_all(int file, const uint8_t *src, size_t bytes) {
    while (bytes > 0) {
        ssize_t put = write(file, src, bytes);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        src += put;
        bytes -= (size_t)put;
    }
    return true;
}

/* Readers see a complete entry or none, because rename is atomic within a folder. fsync comes first, because a crash
   could otherwise leave an empty file. */
static bool write_entry(const char *name, const struct byte_writer *entry) {
    static atomic_uint serial;
    char aside[80];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now); /* process ids are not unique if machines or containers share the folder */
    snprintf(aside, sizeof aside, ".tmp-%ld-%u-%ld", (long)getpid(), atomic_fetch_add(&serial, 1u), now.tv_nsec);
    /* EXCL: fails if the name exists. 0600: other users must not read it. */
    int file = openat(store.folder, aside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0)
        return false;
    bool is_whole = write_all(file, entry->data, entry->length) && fsync(file) == 0;
    is_whole = close(file) == 0 && is_whole && renameat(store.folder, aside, store.folder, name) == 0;
    /* close and unlink below may change errno, which the caller reports. */
    int problem = errno;
    if (!is_whole)
        unlinkat(store.folder, aside, 0);
    errno = problem;
    return is_whole;
}

/* No lock is needed: threads and processes may save the same key at once, and the last one wins. */
void disk_cache_save(const uint8_t key[32], const void *payload, size_t bytes) {
    static atomic_bool has_warned;
    char name[80];
    uint8_t digest[32];
    struct sha256 hash;
    struct byte_writer entry;
    if (open_mode() != MODE_WRITE || bytes > ENTRY_BYTES_MAX - HEADER_BYTES)
        return;
    sha256_init(&hash);
    sha256_update(&hash, payload, bytes);
    sha256_final(digest, &hash);
    byte_writer_init(&entry);
    byte_put_raw(&entry, magic, sizeof magic);
    byte_put_u32(&entry, FORMAT);
    byte_put_raw(&entry, key, 32);
    byte_put_raw(&entry, digest, sizeof digest);
    byte_put_block(&entry, payload, bytes);
    print_name(name, key);
    if (!entry.failed && write_entry(name, &entry)) {
        atomic_fetch_add(&saved, 1);
        int64_t now = atomic_fetch_add(&estimate, (long long)entry.length) + (int64_t)entry.length;
        /* The first save trims too, to learn how full earlier processes left the folder. */
        if (atomic_fetch_add(&save_count, 1) % SAVES_PER_TRIM == 0 || now > store.limit)
            trim();
    } else if (!atomic_exchange(&has_warned, true)) {
        /* One warning per process, because a full disk would cause one for every kernel. */
        trace(WEFT_SEV_WARNING,
              "kernel cache: an entry could not be written to '%s' (%s). Make room there, or set "
              "WEFT_CACHE_DIR to another folder.",
              store.path, strerror(errno));
    }
    byte_writer_free(&entry);
}

void disk_cache_report(struct text *json) {
    size_t count = 0;
    int64_t bytes = 0;
    /* Opens the cache, so that the report describes what an execution would use. */
    enum mode mode = open_mode();
    if (mode != MODE_OFF)
        free(list_entries(&count, &bytes));
    text_add(json, "{\"folder\":");
    text_json_string(json, store.path);
    text_add(json, ",\"mode\":\"%s\",\"problem\":", mode_names[mode]);
    text_json_string(json, *store.problem ? store.problem : NULL);
    text_add(json,
             ",\"entries\":%zu,\"bytes\":%lld,\"limit\":%lld,\"hits\":%lld,\"saved\":%lld,\"damaged\":%lld,\"evicted\":"
             "%lld}",
             count, (long long)bytes, (long long)store.limit, (long long)atomic_load(&hits),
             (long long)atomic_load(&saved), (long long)atomic_load(&damaged), (long long)atomic_load(&evicted));
}
