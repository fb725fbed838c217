/* SPDX-License-Identifier: Apache-2.0 */
/* Philox-4x32-10, the counter-based generator of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (2011):
   128 bits of counter and 64 bits of key yield 128 random bits, without state. Includes nothing and uses only built-in
   types, so that device code can include the same text. */
#ifndef WEFT_BASE_PHILOX_H
#define WEFT_BASE_PHILOX_H

struct philox {
    unsigned word[4];
};

/* The full 64-bit product; device code uses an instruction that compilers do not generate. */
#ifndef PHILOX_PRODUCT
#define PHILOX_PRODUCT(a, b) ((unsigned long long)(a) * (b))
#endif

static inline struct philox philox_block(struct philox counter, unsigned key0, unsigned key1) {
    for (int round = 0; round < 10; round++) {
        unsigned long long left = PHILOX_PRODUCT(0xD2511F53u, counter.word[0]);
        unsigned long long right = PHILOX_PRODUCT(0xCD9E8D57u, counter.word[2]);
        struct philox next = {{(unsigned)(right >> 32) ^ counter.word[1] ^ key0, (unsigned)right,
                               (unsigned)(left >> 32) ^ counter.word[3] ^ key1, (unsigned)left}};
        counter = next;
        key0 += 0x9E3779B9u; /* fraction bits of the golden ratio */
        key1 += 0xBB67AE85u; /* fraction bits of the square root of 3 */
    }
    return counter;
}

/* The random words of block `index` of a sequence. Seed and offset select the sequence: sequences with different
   offsets never overlap, however long they are. */
static inline struct philox philox_words(unsigned long long seed, unsigned long long offset, unsigned long long index) {
    struct philox counter = {{(unsigned)index, (unsigned)(index >> 32), (unsigned)offset, (unsigned)(offset >> 32)}};
    return philox_block(counter, (unsigned)seed, (unsigned)(seed >> 32));
}

/* The block of an element of a tensor, which is seen as rows of its last dimension: rows are counted in row-major
   order, each starts with a new block, and a block is used by four adjacent elements. The element's word is column %
   4. */
static inline unsigned long long philox_index(unsigned long long row, unsigned long long column,
                                              unsigned long long columns) {
    return row * ((columns + 3) / 4) + column / 4;
}

/* Converts a word to a number in [0, 1), which is exact in single precision. */
static inline double philox_unit(unsigned word) { return (word >> 8) * 0x1p-24; }

/* Returns the bound for which philox_unit(word) < probability exactly if (word >> 8) < bound. */
static inline unsigned philox_threshold(double probability) {
    double scaled = probability * 0x1p24;
    unsigned floor = (unsigned)scaled;
    return floor < scaled ? floor + 1 : floor;
}

#endif
