/* SPDX-License-Identifier: Apache-2.0 */
/* Settings in environment variables. Invalid values are reported on stderr, regardless of WEFT_LOG; callers read each
   variable once. */
#ifndef WEFT_BASE_ENVIRONMENT_H
#define WEFT_BASE_ENVIRONMENT_H

#include <stdbool.h>
#include <stdint.h>

/* "weft warning: <variable> is '<value>', <rule>" */
void environment_warn(const char *variable, const char *value, const char *rule);

/* An integer of at least 1; `otherwise` if the variable is unset or empty, or, with a warning, if its value is
   invalid. */
int64_t environment_number(const char *variable, int64_t otherwise);

/* True for "1", false for "0" and if the variable is unset or empty; any other value is false, with a warning. */
bool environment_flag(const char *variable);

#endif
