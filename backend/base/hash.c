/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 as defined by FIPS 180-4. It hashes bytes; callers that hash a struct select its relevant fields. */
#include "base/hash.h"

#include <string.h>

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t ROUND_WORDS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

/* By 1 .. 31: a shift by 32 is undefined. Inline, so that builds with sanitizers contain no call either. */
static inline uint32_t rotate_right(uint32_t word, int by) { return word >> by | word << (32 - by); }

/* The standard defines words and lengths in big-endian order, whatever the machine. */
static inline uint32_t read_big_endian(const uint8_t *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static void write_big_endian(uint8_t *bytes, uint32_t word) {
    for (int i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(word >> (24 - 8 * i));
}

/* The 64 words that the rounds use: the block itself, then mixtures of earlier words. */
static void expand_block(uint32_t words[64], const uint8_t block[64]) {
    for (int i = 0; i < 16; i++)
        words[i] = read_big_endian(block + 4 * i);
    for (int i = 16; i < 64; i++) {
        /* sigma 0 and sigma 1 in lower case, section 4.1.2: two rotations and a shift. */
        uint32_t x = words[i - 15], y = words[i - 2];
        uint32_t s0 = rotate_right(x, 7) ^ rotate_right(x, 18) ^ x >> 3;
        uint32_t s1 = rotate_right(y, 17) ^ rotate_right(y, 19) ^ y >> 10;
        words[i] = words[i - 16] + s0 + words[i - 7] + s1;
    }
}

/* The 64 rounds of FIPS 180-4, section 6.2.2; a .. h are the standard's working variables. */
static void mix_block(uint32_t state[8], const uint8_t block[64]) {
    uint32_t words[64];
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6];
    uint32_t h = state[7];
    expand_block(words, block);
    for (int i = 0; i < 64; i++) {
        /* The upper-case sigmas and the functions Ch and Maj of the same section. */
        uint32_t s1 = rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25);
        uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + ROUND_WORDS[i] + words[i];
        uint32_t s0 = rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22);
        uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
        /* The comma operator keeps the rotation of the eight variables in the standard's order: each gets the old value
           of the previous one. */
        h = g, g = f, f = e, e = d + t1;
        d = c, c = b, b = a, a = t1 + t2;
    }
    /* The state is added, not replaced, which makes the compression a one-way function. */
    const uint32_t mixed[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++)
        state[i] += mixed[i];
}

void sha256_init(struct sha256 *hash) {
    /* The first 32 bits of the fractional parts of the square roots of the first 8 primes. */
    *hash = (struct sha256){
        .state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

/* Full blocks are mixed at once; the rest is stored in hash->block. */
void sha256_update(struct sha256 *hash, const void *data, size_t bytes) {
    const uint8_t *src = data;
    while (bytes > 0) {
        /* 0 .. 63 bytes that are left from previous calls. */
        size_t held = hash->bytes % 64;
        size_t taken = bytes < 64 - held ? bytes : 64 - held;
        memcpy(hash->block + held, src, taken);
        hash->bytes += taken;
        src += taken;
        bytes -= taken;
        if (held + taken == 64)
            mix_block(hash->state, hash->block);
    }
}

void sha256_final(uint8_t digest[32], struct sha256 *hash) {
    /* A one bit, zeros, and the length in bits in the last 8 bytes of a block. */
    static const uint8_t one_bit_then_zeros[64] = {0x80};
    /* The length of the message itself, read before the padding is hashed. */
    uint64_t bits = hash->bytes * 8;
    uint8_t length[8];
    write_big_endian(length, (uint32_t)(bits >> 32));
    write_big_endian(length + 4, (uint32_t)bits);
    /* 1 .. 64 bytes, so that 8 are left of the last block: 119 = 64 + 55, where 55 = 64 - 8 - 1. */
    sha256_update(hash, one_bit_then_zeros, 1 + (119 - hash->bytes % 64) % 64);
    sha256_update(hash, length, sizeof length);
    for (int i = 0; i < 8; i++)
        write_big_endian(digest + 4 * i, hash->state[i]);
}

void sha256_hex(char out[65], const uint8_t digest[32]) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 32; i++) {
        out[2 * i] = digits[digest[i] >> 4];
        out[2 * i + 1] = digits[digest[i] & 15];
    }
    out[64] = '\0';
}
