/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of payloads under 32-byte keys that survives the process: what the kernel cache keeps on disk.
     WEFT_CACHE_DIR     the folder; default $XDG_CACHE_HOME/weft/v1, else ~/.cache/weft/v1
     WEFT_CACHE         rw (default), ro (never writes), off
     WEFT_CACHE_BYTES   the size to stay under, default 256 MiB; the entries used longest ago go first
   The folder must belong to this user or to root and be writable by its owner alone, or it is ignored with a warning.
   An entry carries its key, its length and the SHA-256 of its payload; one that does not fit them is deleted. Nothing
   here fails: a store that cannot serve finds nothing and keeps nothing. It must not know what the payloads are. */
#ifndef WEFT_RUNTIME_DISK_CACHE_H
#define WEFT_RUNTIME_DISK_CACHE_H

#include "base/text.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The payload kept under a key, for the caller to free; false when there is none. */
bool disk_cache_load(const uint8_t key[32], uint8_t **payload, size_t *bytes);

/* Keeps a payload; other processes see all of it or nothing. */
void disk_cache_save(const uint8_t key[32], const void *payload, size_t bytes);

/* {"folder", "mode", "problem", "entries", "bytes", "limit", "hits", "saved", "damaged", "evicted"} */
void disk_cache_report(struct text *json);

#endif
