/* SPDX-License-Identifier: Apache-2.0 */
/* All entries are in one list under one lock. A thread that misses inserts a pending entry, fills it without the lock,
   and wakes the threads that wait for it. They share a failure too; a failed entry leaves the list, so that a later
   call tries again. */
#define _GNU_SOURCE
#include "runtime/cache.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "runtime/disk_cache.h"
#include "runtime/dump.h"
#include "weft/weft.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum state { PENDING, COMPLETE, FAILED };
/* Limit on the code that has no references and is cached for later plans: a few thousand kernels. */
enum { IDLE_BYTES_MAX = 64 << 20 };

/* An entry is in the list while it is pending or complete, referenced or idle (references is 0). A failed one has left
   the list and is freed with its last reference. */
struct entry {
    struct code code; /* first member: what callers hold */
    struct entry *next;
    int references;
    uint64_t idle_since; /* value of release_count; the smallest is evicted first */
    enum state state;
    pthread_cond_t done;
    weftStatus_t status; /* status of the compilation; text holds its message */
    char *text;
    char *name;
    struct compiled compiled;
};

/* Guards everything below and the entries, except the fields that the filling thread writes. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Newest first. A search compares 32 bytes per entry, which is cheap compared with hashing a program. */
static struct entry *entries;
static uint64_t release_count;
static size_t idle_bytes;
/* Since the start of the process, only for cache_report. */
static int64_t compile_count, share_count;

/* ---- Keys -------------------------------------------------------------------------------------------------------- */

/* Hashes the length first, so that adjacent parts cannot be confused. */
static void hash_part(struct sha256 *hash, const void *data, size_t bytes) {
    uint64_t length = bytes;
    sha256_update(hash, &length, sizeof length);
    sha256_update(hash, data, bytes);
}

static void hash_text(struct sha256 *hash, const char *text) { hash_part(hash, text, strlen(text)); }

void cache_digest_headers(uint8_t digest[32], const struct program_header *headers, int count) {
    struct sha256 hash;
    sha256_init(&hash);
    for (int i = 0; i < count; i++) {
        hash_text(&hash, headers[i].name);
        hash_text(&hash, headers[i].text);
    }
    sha256_final(digest, &hash);
}

/* Hashes everything that determines the code, except the compiler, whose version make_key adds. The name is included,
   because the cached log mentions it. */
void cache_identify(uint8_t identity[32], const struct program *program, const char *arch) {
    struct sha256 hash;
    uint8_t headers[32];
    /* Includes the library's version, because its headers may change without any other text changing. */
    int64_t numbers[] = {WEFT_MAJOR, WEFT_MINOR, WEFT_PATCHLEVEL, program->header_count, program->option_count};
    /* Programs that share headers also share their digest, which is computed once. */
    if (!program->headers_digest)
        cache_digest_headers(headers, program->headers, program->header_count);
    sha256_init(&hash);
    hash_text(&hash, "weft program");
    hash_part(&hash, numbers, sizeof numbers);
    hash_text(&hash, arch);
    hash_text(&hash, program->name);
    hash_text(&hash, program->text);
    hash_part(&hash, program->headers_digest ? program->headers_digest : headers, sizeof headers);
    for (int i = 0; i < program->option_count; i++)
        hash_text(&hash, program->options[i]);
    sha256_final(identity, &hash);
}

/* The identity is for the requested architecture. If PTX for an older one is compiled instead, it is recomputed for
   that target. */
static void make_key(uint8_t key[32], const struct program *program, const char *arch,
                     const struct nvrtc_choice *choice) {
    struct sha256 hash;
    uint8_t identity[32];
    /* Copies of NVRTC with the same version may be different builds; the file size distinguishes most of them. */
    int64_t numbers[] = {choice->version, choice->file_bytes};
    if (program->identity && strcmp(choice->target, arch) == 0)
        memcpy(identity, program->identity, sizeof identity);
    else
        cache_identify(identity, program, choice->target);
    sha256_init(&hash);
    hash_text(&hash, "weft kernel");
    hash_part(&hash, identity, sizeof identity);
    hash_part(&hash, numbers, sizeof numbers);
    sha256_final(key, &hash);
}

/* ---- Entries ----------------------------------------------------------------------------------------------------- */

/* A new entry with one reference, the caller's, which is not in the list yet. */
static struct entry *new_entry(const uint8_t key[32], const char *name) {
    struct entry *entry = calloc(1, sizeof *entry);
    if (!entry || !(entry->name = strdup(name))) {
        free(entry);
        return NULL;
    }
    memcpy(entry->code.key, key, 32);
    entry->code.name = entry->name;
    entry->references = 1;
    /* Never fails on Linux with default attributes. */
    pthread_cond_init(&entry->done, NULL);
    return entry;
}

/* The entry must not be referenced or in the list. */
static void free_entry(struct entry *entry) {
    pthread_cond_destroy(&entry->done);
    compiled_free(&entry->compiled);
    free(entry->name);
    free(entry->text);
    free(entry);
}

/* Does nothing if the entry is not in the list, such as a failed one. */
static void unlink_entry(struct entry *entry) {
    struct entry **at = &entries;
    while (*at && *at != entry)
        at = &(*at)->next;
    if (*at)
        *at = entry->next;
}

/* Evicts idle entries, least recently released first, until the idle ones fit. Referenced entries do not count: they
   cannot be freed. */
static void drop_idle(void) {
    /* Linear in the number of entries, and rare. */
    while (idle_bytes > IDLE_BYTES_MAX) {
        struct entry *oldest = NULL;
        for (struct entry *entry = entries; entry; entry = entry->next)
            if (!entry->references && (!oldest || entry->idle_since < oldest->idle_since))
                oldest = entry;
        if (!oldest)
            return;
        idle_bytes -= oldest->code.bytes;
        unlink_entry(oldest);
        free_entry(oldest);
    }
}

/* All functions below require the lock to be held. */

/* Releases one reference. */
static void release_entry(struct entry *entry) {
    if (--entry->references)
        return;
    if (entry->state == FAILED) { /* left the list when it failed */
        free_entry(entry);
        return;
    }
    entry->idle_since = ++release_count;
    idle_bytes += entry->code.bytes;
    drop_idle();
}

/* Finds the entry of a key, waits until it is complete or failed, and adds a reference for the caller. NULL: the caller
   must fill a new one. */
static struct entry *find_entry(const uint8_t key[32]) {
    struct entry *entry = entries;
    while (entry && memcmp(entry->code.key, key, 32) != 0)
        entry = entry->next;
    if (!entry)
        return NULL;
    /* An idle entry becomes referenced, so it no longer counts as idle. */
    if (!entry->references++)
        idle_bytes -= entry->code.bytes;
    /* The reference keeps the entry alive while this thread waits without the lock. */
    while (entry->state == PENDING)
        pthread_cond_wait(&entry->done, &lock);
    share_count++;
    return entry;
}

/* The lock is held. From here on the entry's code does not change. */
static void publish(struct entry *entry, weftStatus_t status) {
    entry->status = status;
    entry->state = status ? FAILED : COMPLETE;
    /* Waiting threads have their own last message, so the text is stored. */
    entry->text = status ? strdup(status_text()) : NULL;
    /* Zero before: find_entry returns no entry that has not been published. */
    entry->code.image = entry->compiled.image;
    entry->code.bytes = entry->compiled.bytes;
    entry->code.is_ptx = entry->compiled.is_ptx;
    entry->code.log = entry->compiled.log ? entry->compiled.log : "";
    if (status)
        unlink_entry(entry);
    pthread_cond_broadcast(&entry->done);
}

/* ---- Filling ----------------------------------------------------------------------------------------------------- */

/* Saves is_ptx, log and image. If the disk cache cannot store them, the code is still in memory; only the next process
   compiles again. */
static void save(const struct entry *entry) {
    struct byte_writer writer;
    byte_writer_init(&writer);
    byte_put_u8(&writer, entry->compiled.is_ptx);
    byte_put_block(&writer, entry->compiled.log, strlen(entry->compiled.log));
    byte_put_block(&writer, entry->compiled.image, entry->compiled.bytes);
    if (!writer.failed)
        disk_cache_save(entry->code.key, writer.data, writer.length);
    byte_writer_free(&writer);
}

/* Fills entry->compiled from the disk cache; false, without a change, if there is no valid entry. The payload is
   copied, because image and log are freed separately. */
static bool load(struct entry *entry) {
    uint8_t *payload;
    size_t bytes, log_bytes, image_bytes;
    struct byte_reader reader;
    struct compiled loaded = {0};
    /* The contents of the folder are not trusted: damaged entries count as missing. */
    if (!disk_cache_load(entry->code.key, &payload, &bytes))
        return false;
    byte_reader_init(&reader, payload, bytes);
    /* A bad reader returns zeros and NULL; it is checked once, below. */
    loaded.is_ptx = byte_get_u8(&reader);
    const uint8_t *log = byte_get_block(&reader, &log_bytes), *image = byte_get_block(&reader, &image_bytes);
    if (!reader.bad && image_bytes) {
        loaded.bytes = image_bytes;
        loaded.image = malloc(image_bytes);
        /* One zeroed byte more: the log is a C string, but saved with its length. */
        loaded.log = calloc(1, log_bytes + 1);
    }
    bool is_found = loaded.image && loaded.log;
    if (is_found) {
        memcpy(loaded.log, log, log_bytes);
        memcpy(loaded.image, image, image_bytes);
        entry->compiled = loaded;
    } else {
        compiled_free(&loaded);
    }
    free(payload);
    return is_found;
}

/* Needs no lock: until publish only this thread accesses entry->compiled. */
static weftStatus_t fill(struct entry *entry, const struct program *program, const struct nvrtc_choice *choice) {
    weftStatus_t status = WEFT_STATUS_SUCCESS;
    if (!load(entry)) {
        status = nvrtc_compile(&entry->compiled, choice, program);
        pthread_mutex_lock(&lock);
        compile_count++;
        pthread_mutex_unlock(&lock);
        if (!status)
            save(entry);
    }
    /* Cached programs and programs that do not compile are dumped too. */
    dump_program(program, choice, entry->code.key, &entry->compiled);
    return status;
}

/* The lock is not held while a program compiles. Other programs can be looked up meanwhile, and threads that need the
   same program wait for it. */
weftStatus_t cache_get(const struct code **code, const struct program *program, const char *arch) {
    struct nvrtc_choice choice;
    uint8_t key[32];
    *code = NULL;
    /* First, because the compiler's version is part of the key. */
    TRY(nvrtc_choose(&choice, arch));
    make_key(key, program, arch, &choice);
    pthread_mutex_lock(&lock);
    struct entry *entry = find_entry(key);
    if (!entry && (entry = new_entry(key, program->name))) {
        /* Inserted before it is complete, so that other threads with the same key find it and wait. */
        entry->next = entries;
        entries = entry;
        pthread_mutex_unlock(&lock);
        weftStatus_t status = fill(entry, program, &choice);
        pthread_mutex_lock(&lock);
        publish(entry, status);
    }
    weftStatus_t status = entry ? entry->status : status_no_memory(sizeof *entry);
    if (entry && status) {
        /* Sets this thread's message, even if another thread's attempt failed. */
        status_fail(status, "%s", entry->text ? entry->text : status_name(status));
        release_entry(entry);
    } else if (entry) {
        *code = &entry->code;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* The key depends only on the image, so that plans with the same code share it. */
weftStatus_t cache_adopt(const struct code **code, const char *name, const void *image, size_t bytes, bool is_ptx) {
    struct sha256 hash;
    uint8_t key[32];
    *code = NULL;
    sha256_init(&hash);
    /* A prefix other than that of programs, because both kinds of keys share one list. */
    hash_text(&hash, "weft image");
    hash_part(&hash, image, bytes);
    sha256_final(key, &hash);
    pthread_mutex_lock(&lock);
    struct entry *entry = find_entry(key);
    if (!entry && (entry = new_entry(key, name))) {
        /* malloc(0) may return NULL without an error. */
        entry->compiled = (struct compiled){.image = malloc(bytes ? bytes : 1), .bytes = bytes, .is_ptx = is_ptx};
        if (entry->compiled.image) {
            memcpy(entry->compiled.image, image, bytes);
            entry->next = entries;
            entries = entry;
            publish(entry, WEFT_STATUS_SUCCESS);
        } else {
            free_entry(entry);
            entry = NULL;
        }
    }
    pthread_mutex_unlock(&lock);
    if (!entry)
        return status_no_memory(bytes);
    *code = &entry->code;
    return WEFT_STATUS_SUCCESS;
}

void cache_release(const struct code *code) {
    if (!code)
        return;
    pthread_mutex_lock(&lock);
    /* `code` is the first member of its entry, so both have the same address. */
    release_entry((struct entry *)code);
    pthread_mutex_unlock(&lock);
}

void cache_report(struct text *json) {
    int64_t count = 0;
    /* A snapshot: other threads may add entries. */
    pthread_mutex_lock(&lock);
    for (const struct entry *entry = entries; entry; entry = entry->next)
        count++;
    text_add(json, "{\"compiled\":%lld,\"shared\":%lld,\"in_memory\":%lld,\"disk\":", (long long)compile_count,
             (long long)share_count, (long long)count);
    pthread_mutex_unlock(&lock);
    disk_cache_report(json);
    text_add(json, "}");
}
