/* SPDX-License-Identifier: Apache-2.0 */
/* Text under construction: messages, JSON, kernel source. If memory runs out, a sticky flag is set, the existing text
   is kept, and later additions have no effect, so callers check once at the end. */
#ifndef WEFT_BASE_TEXT_H
#define WEFT_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct text {
    char *chars; /* zero-terminated; NULL before the first addition: see text_string */
    size_t length, capacity;
    bool failed; /* out of memory, or a format that printf rejects */
};

void text_init(struct text *text);
void text_free(struct text *text);

/* The text so far as a C string, never NULL; the next addition may move it. */
const char *text_string(const struct text *text);

/* Like printf. Floating-point numbers have the locale's decimal point: use text_json_number for numbers that will be
   parsed. */
void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Adds `length` characters verbatim; '%' has no special meaning. */
void text_add_chars(struct text *text, const char *chars, size_t length);

/* A JSON string, quoted and escaped; `null` for NULL. The result is always valid UTF-8: bytes that belong to no valid
   sequence become U+FFFD. */
void text_json_string(struct text *text, const char *string);

/* The shortest decimal that reads back as the same double, in any locale; `null` for infinities and NaN, which JSON
   does not have. */
void text_json_number(struct text *text, double value);

/* The ending of a regular plural: empty for 1, otherwise "s". */
static inline const char *plural(int64_t count) { return count == 1 ? "" : "s"; }

#endif
