/* SPDX-License-Identifier: Apache-2.0 */
/* Text under construction: messages, JSON, kernel source. Out of memory sets a sticky flag, keeps
   what was written before and turns later additions into nothing, so a caller asks once, at the
   end. It must not know what the text says. */
#ifndef WEFT_BASE_TEXT_H
#define WEFT_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct text {
    char *chars; /* zero-terminated once anything was added; NULL before: see text_string */
    size_t length, capacity;
    bool failed; /* out of memory, or a format printf refuses */
};

void text_init(struct text *text);
void text_free(struct text *text);

/* The text so far as a C string, never NULL; the next addition may move it. */
const char *text_string(const struct text *text);

/* As printf. Prints floating point with the locale's decimal point: where a parser will read the
   number, use text_json_number. */
void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Plain characters, with no limit on their number and no meaning of '%'. */
void text_add_chars(struct text *text, const char *chars, size_t length);

/* A JSON string, quoted and escaped; `null` for NULL. The result is valid UTF-8 whatever comes
   in: a byte that belongs to no valid sequence turns into U+FFFD. */
void text_json_string(struct text *text, const char *string);

/* The shortest decimal that reads back as the same double, in any locale; `null` for infinities
   and NaN, which JSON lacks. */
void text_json_number(struct text *text, double value);

#endif
