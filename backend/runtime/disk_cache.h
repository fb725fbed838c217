/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of payloads with 32-byte keys that outlives the process: the disk part of the kernel cache.
     WEFT_CACHE_DIR     the folder; default $XDG_CACHE_HOME/weft/v1, else ~/.cache/weft/v1
     WEFT_CACHE         rw (default), ro (never writes), off
     WEFT_CACHE_BYTES   maximum size, default 256 MiB; the least recently used entries are removed first
   The folder must belong to this user or to root and be writable only by its owner, otherwise it is ignored with a
   warning. An entry contains its key, its length and the SHA-256 of its payload; if they do not match, it is deleted.
   No function fails: an unusable cache finds nothing and stores nothing. The cache does not interpret the payloads. */
#ifndef WEFT_RUNTIME_DISK_CACHE_H
#define WEFT_RUNTIME_DISK_CACHE_H

#include "base/text.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Loads the payload of a key, which the caller frees; false if the key is unknown. */
bool disk_cache_load(const uint8_t key[32], uint8_t **payload, size_t *bytes);

/* Saves a payload; other processes see all of it or nothing. */
void disk_cache_save(const uint8_t key[32], const void *payload, size_t bytes);

/* {"folder", "mode", "problem", "entries", "bytes", "limit", "hits", "saved", "damaged", "evicted"} */
void disk_cache_report(struct text *json);

#endif
