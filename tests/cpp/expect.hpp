/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the C++ tests: they count failures and print differences. */
#ifndef WEFT_TEST_EXPECT_HPP
#define WEFT_TEST_EXPECT_HPP

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "weft/weft.hpp"

namespace expect {

inline int failures = 0;

inline void holds(bool is_so, const char *what, int line) {
    if (!is_so)
        failures++, std::printf("line %d: %s\n", line, what);
}

inline void good(const weft::error_t &error, int line) { holds(error.is_good(), error.get_message().c_str(), line); }

/** Checks the code and the complete message. */
inline void fails(const weft::error_t &error, weft::error_code_t code, const std::string &message, int line) {
    holds(error.get_code() == code, ("code " + std::to_string(static_cast<int>(error.get_code()))).c_str(), line);
    holds(error.get_message() == message, ("got: " + error.get_message() + "\nexpected: " + message).c_str(), line);
}

inline void near(const std::vector<float> &got, const std::vector<double> &expected, int line,
                 double tolerance = 1e-5) {
    holds(got.size() == expected.size(), "sizes differ", line);
    for (std::size_t i = 0; i < got.size() && i < expected.size(); i++)
        if (!(std::fabs(got[i] - expected[i]) <= tolerance * (1 + std::fabs(expected[i])))) {
            std::string text = "element " + std::to_string(i) + ": " + std::to_string(got[i]) + ", expected " +
                               std::to_string(expected[i]);
            return holds(false, text.c_str(), line);
        }
}

/** Numbers in -1 .. 1 with a long period. */
inline std::vector<float> numbers(std::size_t count, unsigned seed) {
    std::vector<float> made(count);
    for (float &value : made) {
        seed = seed * 1664525u + 1013904223u;
        value = static_cast<float>(static_cast<int>(seed >> 16) - 32768) / 32768.0f;
    }
    return made;
}

} // namespace expect

#define HOLDS(condition) expect::holds((condition), #condition, __LINE__)
#define GOOD(call) expect::good((call), __LINE__)
#define FAILS(call, code, message) expect::fails((call), weft::error_code_t::code, message, __LINE__)
#define NEAR(got, expected) expect::near(got, expected, __LINE__)

#endif
