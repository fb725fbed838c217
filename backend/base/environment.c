/* SPDX-License-Identifier: Apache-2.0 */
/* Settings in environment variables. Warnings do not use base/trace.h, which may itself be reading a setting. The names
   of the variables are those of the callers. */
#include "base/environment.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void environment_warn(const char *variable, const char *value, const char *rule) {
    /* At most 100 characters of a value, so that a huge one does not flood the terminal. */
    fprintf(stderr, "weft warning: %s is '%.100s', %s\n", variable, value, rule);
}

int64_t environment_number(const char *variable, int64_t otherwise) {
    const char *text = getenv(variable);
    char *end;
    if (!text || !*text)
        return otherwise;
    /* strtoll reports an overflow only by errno, and does not clear it. */
    errno = 0;
    long long number = strtoll(text, &end, 10);
    /* The whole text must be a number: "8 threads" or "0x8" cause a warning. */
    if (!errno && !*end && number > 0)
        return number;
    environment_warn(variable, text, "which is not an integer of at least 1. It is ignored.");
    return otherwise;
}

bool environment_flag(const char *variable) {
    const char *text = getenv(variable);
    if (text && *text && strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
        environment_warn(variable, text, "which is neither 0 nor 1. It is ignored.");
    return text && !strcmp(text, "1");
}
