/* SPDX-License-Identifier: Apache-2.0 */
/* Philox-4x32-10 of base/philox.h, compared with the generator's published test vectors, and the conversion of its
   words to numbers at both ends of their range. Prints one line per failed check and exits non-zero. */
#include "base/philox.h"
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void test_known_answers(void) {
    static const struct {
        struct philox counter;
        unsigned key[2];
        struct philox words;
    } answers[] = {
        {{{0, 0, 0, 0}}, {0, 0}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
        {{{~0u, ~0u, ~0u, ~0u}}, {~0u, ~0u}, {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
        {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
         {0xa4093822, 0x299f31d0},
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
    };
    for (int i = 0; i < 3; i++) {
        struct philox words = philox_block(answers[i].counter, answers[i].key[0], answers[i].key[1]);
        CHECK(memcmp(&words, &answers[i].words, sizeof words) == 0, "answer %d: %08x %08x %08x %08x", i, words.word[0],
              words.word[1], words.word[2], words.word[3]);
    }
}

/* The seed is the key; index and offset are the halves of the counter, low words first. */
static void test_sequences(void) {
    struct philox words = philox_words(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88);
    CHECK(words.word[0] == 0xd16cfe09 && words.word[3] == 0x24126ea1, "%08x", words.word[0]);
    CHECK(philox_index(0, 3, 5) == 0 && philox_index(0, 4, 5) == 1 && philox_index(1, 0, 5) == 2,
          "blocks of a row of 5");
    CHECK(philox_index(1, 0, 8) == 2 && philox_index(3, 7, 8) == 7, "blocks of a row of 8");
    CHECK(philox_index(1ull << 40, 9, 1 << 20) == (1ull << 58) + 2, "large rows");
}

static void test_numbers(void) {
    CHECK(philox_unit(0) == 0 && philox_unit(255) == 0 && philox_unit(256) == 0x1p-24, "low end");
    CHECK(philox_unit(~0u) == 1 - 0x1p-24 && (float)philox_unit(~0u) < 1, "high end");
    static const double probabilities[] = {0, 0x1p-30, 0x1p-24, 0.1, 0.3, 0.5, 1 - 0x1p-24, 1 - 0x1p-30, 1};
    for (int i = 0; i < 9; i++) {
        unsigned threshold = philox_threshold(probabilities[i]);
        for (unsigned step = 0; step < 4; step++) {
            unsigned high = threshold + step - 2;
            if (high < 1u << 24)
                CHECK((philox_unit(high << 8) < probabilities[i]) == (high < threshold), "p = %g, high = %u",
                      probabilities[i], high);
        }
    }
    CHECK(philox_threshold(1) == 1u << 24 && philox_threshold(0) == 0, "always and never");
}

int main(void) {
    RUN(test_known_answers());
    RUN(test_sequences());
    RUN(test_numbers());
    return harness_end();
}
