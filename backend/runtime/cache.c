/* SPDX-License-Identifier: Apache-2.0 */
/* Entries are in one list under one lock. Whoever misses puts an entry in that is being made, works without the lock,
   and wakes those who found it meanwhile; a failure is theirs too, and leaves the list so that a later call tries
   again. */
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

enum state { BEING_MADE, MADE, FAILED };
/* Bytes of code that nobody holds and that is kept for the next plan: some thousand kernels. */
enum { IDLE_BYTES_MAX = 64 << 20 };

/* In the list while it is being made or is made, held or idle; one that failed is out of it, and goes with its last
   reference. Idle: references is 0. */
struct entry {
    struct code code; /* first: what callers hold */
    struct entry *next;
    int references;
    uint64_t idle_since; /* a count of releases; the smallest goes first */
    enum state state;
    pthread_cond_t done;
    weftStatus_t status; /* of a failure, with its text */
    char *text;
    char *name;
    struct compiled compiled;
};

static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* guards all below and the entries, but for the maker's fields */
/* Newest first. A search compares 32 bytes an entry, which is little beside what a program's key costs to hash. */
static struct entry *entries;
static uint64_t release_count;
static size_t idle_bytes;
/* Since the process began, for cache_report alone. */
static int64_t compile_count, share_count;

/* ---- Keys -------------------------------------------------------------------------------------------------------- */

/* Lengths in front keep neighbours apart. */
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

/* Everything that decides what code comes out, but for the compiler, whose version make_key adds. The name counts, too:
   the log that is kept with the code speaks of it. */
void cache_identify(uint8_t identity[32], const struct program *program, const char *arch) {
    struct sha256 hash;
    uint8_t headers[32];
    /* Of the library's version, since its headers may change without any text here changing. */
    int64_t numbers[] = {WEFT_MAJOR, WEFT_MINOR, WEFT_PATCHLEVEL, program->header_count, program->option_count};
    /* Programs that share their headers share the digest, too, and need not hash them again. */
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

/* The identity is of the caller's own architecture; where PTX for an older one is compiled instead, another target
   comes in and the identity is found anew. */
static void make_key(uint8_t key[32], const struct program *program, const char *arch,
                     const struct nvrtc_choice *choice) {
    struct sha256 hash;
    uint8_t identity[32];
    /* Copies of NVRTC of one version may be different builds: their size tells most of them apart. */
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

/* With one reference, the caller's, and not in the list yet. */
static struct entry *make_entry(const uint8_t key[32], const char *name) {
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

/* Nobody may hold or find the entry any more. */
static void free_entry(struct entry *entry) {
    pthread_cond_destroy(&entry->done);
    compiled_free(&entry->compiled);
    free(entry->name);
    free(entry->text);
    free(entry);
}

/* Does nothing for an entry that is not in the list, as a failed one. */
static void unlink_entry(struct entry *entry) {
    struct entry **at = &entries;
    while (*at && *at != entry)
        at = &(*at)->next;
    if (*at)
        *at = entry->next;
}

/* Frees idle entries, those released longest ago first, until what is idle fits. Entries that are held do not count:
   they cannot be freed, and the plans that hold them are alive. */
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

/* Below, the lock is held. */

/* Gives up one reference. */
static void let_go(struct entry *entry) {
    if (--entry->references)
        return;
    if (entry->state == FAILED) { /* out of the list since it failed */
        free_entry(entry);
        return;
    }
    entry->idle_since = ++release_count;
    idle_bytes += entry->code.bytes;
    drop_idle();
}

/* An entry of this key, held for the caller and complete or failed; NULL: the caller must make it. */
static struct entry *find_entry(const uint8_t key[32]) {
    struct entry *entry = entries;
    while (entry && memcmp(entry->code.key, key, 32) != 0)
        entry = entry->next;
    if (!entry)
        return NULL;
    /* An idle entry becomes a held one, whose bytes no longer count as idle. */
    if (!entry->references++)
        idle_bytes -= entry->code.bytes;
    /* The reference taken above keeps the entry alive while this thread waits without the lock. */
    while (entry->state == BEING_MADE)
        pthread_cond_wait(&entry->done, &lock);
    share_count++;
    return entry;
}

/* The lock is held. From here on the entry's code does not change. */
static void publish(struct entry *entry, weftStatus_t status) {
    entry->status = status;
    entry->state = status ? FAILED : MADE;
    /* Those who waited are other threads, whose own last message is another. */
    entry->text = status ? strdup(status_text()) : NULL;
    /* Zero until here: find_entry lets nobody see an entry before it is published. */
    entry->code.image = entry->compiled.image;
    entry->code.bytes = entry->compiled.bytes;
    entry->code.is_ptx = entry->compiled.is_ptx;
    entry->code.log = entry->compiled.log ? entry->compiled.log : "";
    if (status)
        unlink_entry(entry);
    pthread_cond_broadcast(&entry->done);
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

/* What the store keeps: whether it is PTX, the log, the image. A store that cannot keep it is no failure: the code is
   in memory, and the next process compiles again. */
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

/* Fills entry->compiled from the store; false, and nothing changed, when there is no such entry or one that does not
   read well. The payload is copied, as image and log are freed apart. */
static bool load(struct entry *entry) {
    uint8_t *payload;
    size_t bytes, log_bytes, image_bytes;
    struct byte_reader reader;
    struct compiled found = {0};
    /* What the folder holds is not trusted: damaged entries count as not found. */
    if (!disk_cache_load(entry->code.key, &payload, &bytes))
        return false;
    byte_reader_init(&reader, payload, bytes);
    /* Of a bad reader these are zeros and NULL; asked once, below. */
    found.is_ptx = byte_get_u8(&reader);
    const uint8_t *log = byte_get_block(&reader, &log_bytes), *image = byte_get_block(&reader, &image_bytes);
    if (!reader.bad && image_bytes) {
        found.bytes = image_bytes;
        found.image = malloc(image_bytes);
        /* One byte more, zeroed: the log is a C string, while the store counts its length. */
        found.log = calloc(1, log_bytes + 1);
    }
    bool is_found = found.image && found.log;
    if (is_found) {
        memcpy(found.log, log, log_bytes);
        memcpy(found.image, image, image_bytes);
        entry->compiled = found;
    } else {
        compiled_free(&found);
    }
    free(payload);
    return is_found;
}

/* Runs without the lock: only this thread, the maker, touches entry->compiled until publish. */
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
    /* Also of what was found in the cache, and of what does not compile: whoever dumps wants to see it. */
    dump_program(program, choice, entry->code.key, &entry->compiled);
    return status;
}

/* The lock is not held while a program compiles: others find theirs meanwhile, and those who want the same wait for
   it. */
weftStatus_t cache_get(const struct code **code, const struct program *program, const char *arch) {
    struct nvrtc_choice choice;
    uint8_t key[32];
    *code = NULL;
    /* Chosen first, since the compiler's version is part of the key: another NVRTC makes code of its own. */
    TRY(nvrtc_choose(&choice, arch));
    make_key(key, program, arch, &choice);
    pthread_mutex_lock(&lock);
    struct entry *entry = find_entry(key);
    if (!entry && (entry = make_entry(key, program->name))) {
        /* In the list before it is made: whoever asks for the same key meanwhile finds it and waits. */
        entry->next = entries;
        entries = entry;
        pthread_mutex_unlock(&lock);
        weftStatus_t status = fill(entry, program, &choice);
        pthread_mutex_lock(&lock);
        publish(entry, status);
    }
    weftStatus_t status = entry ? entry->status : status_no_memory(sizeof *entry);
    if (entry && status) {
        /* Into this thread's own text, also when another thread's attempt failed. */
        status_fail(status, "%s", entry->text ? entry->text : status_name(status));
        let_go(entry);
    } else if (entry) {
        *code = &entry->code;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* Its key is of the image alone: two plans that carry the same code share it. */
weftStatus_t cache_adopt(const struct code **code, const char *name, const void *image, size_t bytes, bool is_ptx) {
    struct sha256 hash;
    uint8_t key[32];
    *code = NULL;
    sha256_init(&hash);
    /* Another prefix than that of programs: the two kinds of keys share one list. */
    hash_text(&hash, "weft image");
    hash_part(&hash, image, bytes);
    sha256_final(key, &hash);
    pthread_mutex_lock(&lock);
    struct entry *entry = find_entry(key);
    if (!entry && (entry = make_entry(key, name))) {
        /* malloc of 0 bytes may give NULL, which is no lack of memory. */
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
    /* `code` is the first member of its entry, so the two have one address. */
    let_go((struct entry *)code);
    pthread_mutex_unlock(&lock);
}

void cache_report(struct text *json) {
    int64_t count = 0;
    /* Counted while others may add: a snapshot, good for people. */
    pthread_mutex_lock(&lock);
    for (const struct entry *entry = entries; entry; entry = entry->next)
        count++;
    text_add(json, "{\"compiled\":%lld,\"shared\":%lld,\"in_memory\":%lld,\"disk\":", (long long)compile_count,
             (long long)share_count, (long long)count);
    pthread_mutex_unlock(&lock);
    disk_cache_report(json);
    text_add(json, "}");
}
