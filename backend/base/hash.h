/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes: SHA-256 for keys that must never collide (cache keys, payload checks), and a fast 64-bit hash for tables in
   memory, which is not secure against attackers. */
#ifndef WEFT_BASE_HASH_H
#define WEFT_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

struct sha256 {
    uint32_t state[8];
    uint64_t bytes;    /* hashed so far */
    uint8_t block[64]; /* the last bytes % 64 of them, not yet mixed */
};

void sha256_init(struct sha256 *hash);
void sha256_update(struct sha256 *hash, const void *data, size_t bytes);

/* Writes the digest and ends the hash: call sha256_init to start a new one. */
void sha256_final(uint8_t digest[32], struct sha256 *hash);

/* The digest in lower-case hexadecimal, with a terminating zero. */
void sha256_hex(char out[65], const uint8_t digest[32]);

#endif
