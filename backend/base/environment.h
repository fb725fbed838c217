/* SPDX-License-Identifier: Apache-2.0 */
/* Settings in variables of the environment. Nonsense in one is told on the standard error stream, whatever WEFT_LOG
   says; who reads one reads it once. */
#ifndef WEFT_BASE_ENVIRONMENT_H
#define WEFT_BASE_ENVIRONMENT_H

#include <stdbool.h>
#include <stdint.h>

/* "weft warning: <variable> is '<value>', <rule>" */
void environment_warn(const char *variable, const char *value, const char *rule);

/* A number of things, 1 or more; `otherwise` where the variable is unset or empty, or, with a warning, no such
   number. */
int64_t environment_number(const char *variable, int64_t otherwise);

/* True for "1", false for "0" and where the variable is unset or empty; anything else is false, with a warning. */
bool environment_flag(const char *variable);

#endif
