/* SPDX-License-Identifier: Apache-2.0 */
/* Records which basic blocks of which kernels ran, by the test that ran them. tools/kernel_coverage.py reads the
   records. Nothing is recorded unless EMULATOR_COVERAGE names a folder. All calls come from one thread at a time. */
#ifndef WEFT_TESTS_EMULATOR_COVERAGE_H
#define WEFT_TESTS_EMULATOR_COVERAGE_H

#include "ptx.h"

/* Writes the blocks of a module that was loaded from a text, unless an earlier process wrote them. */
void coverage_add(const struct module *module, const char *text);

/* Writes the blocks that ran in the previous test if the current test, PYTEST_CURRENT_TEST, differs from it. Called
   before each launch. */
void coverage_follow_test(void);

/* Writes the executed blocks of a module that is about to be freed. */
void coverage_remove(const struct module *module);

#endif
