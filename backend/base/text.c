/* SPDX-License-Identifier: Apache-2.0 */
/* A growing string with JSON output. Every addition calls `reserve` or prints into existing space; errors set a sticky
   flag, which the owner of the text checks. The only JSON elements are strings and numbers. */
#include "base/text.h"

#include "base/bytes.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void text_init(struct text *text) { *text = (struct text){0}; }

void text_free(struct text *text) {
    free(text->chars);
    text_init(text);
}

const char *text_string(const struct text *text) { return text->chars ? text->chars : ""; }

/* Makes space for `added` more characters and the zero; returns false, permanently, if that fails. */
static bool reserve(struct text *text, size_t added) {
    char *grown = NULL;
    /* A length that wraps around would appear to fit. */
    if (!text->failed && added < SIZE_MAX - text->length)
        grown = bytes_grow(text->chars, &text->capacity, text->length + added + 1);
    if (!grown) {
        text->failed = true;
        return false;
    }
    text->chars = grown;
    return true;
}

/* `chars` must not point into the text, which may move. */
void text_add_chars(struct text *text, const char *chars, size_t length) {
    if (!reserve(text, length))
        return;
    if (length > 0)
        memcpy(text->chars + text->length, chars, length);
    text->length += length;
    text->chars[text->length] = '\0';
}

/* Prints into the existing space, and again if it was too small. */
void text_add(struct text *text, const char *format, ...) {
    size_t room = text->failed ? 0 : text->capacity - text->length;
    char *end = room ? text->chars + text->length : NULL;
    va_list args, again;
    /* A va_list can be read only once: one is for the existing space, one for the second attempt. */
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(end, room, format, args);
    bool fits = length >= 0 && (size_t)length < room;
    /* vsnprintf has truncated the text: restore the terminator of the previous text. */
    if (end && !fits)
        *end = '\0';
    if (length < 0)
        text->failed = true;
    else if (!fits && (fits = reserve(text, (size_t)length)))
        vsnprintf(text->chars + text->length, (size_t)length + 1, format, again);
    text->length += fits ? (size_t)length : 0;
    va_end(again);
    va_end(args);
}

/* Length in bytes of the valid UTF-8 sequence that starts here, or 0. Overlong forms, surrogates and code points above
   U+10FFFF are invalid; a zero ends every sequence. */
static size_t utf8_length(const unsigned char *s) {
    if (s[0] < 0x80)
        return 1;
    /* The leading byte determines the length; each following byte is 10xxxxxx. The terminating zero is not, so no
       sequence is read beyond it. */
    size_t length = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    /* 0xc0 and 0xc1 would begin overlong forms, 0xf5 and above code points above U+10FFFF. */
    if (s[0] < 0xc2 || s[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool surrogate = s[0] == 0xed && s[1] > 0x9f;
    bool too_large = s[0] == 0xf4 && s[1] > 0x8f;
    return overlong || surrogate || too_large ? 0 : length;
}

/* Emits one character of a JSON string: escapes with a letter, other control characters as \u and four digits, invalid
   UTF-8 (length 0) as U+FFFD, all others unchanged. */
static void add_json_char(struct text *text, const unsigned char *s, size_t length) {
    static const char named[] = "\"\"\\\\\bb\ff\nn\rr\tt"; /* pairs: character, letter */
    if (length == 0) {
        text_add(text, "\\ufffd");
        return;
    }
    for (const char *pair = named; *pair; pair += 2)
        if (s[0] == (unsigned char)pair[0]) {
            text_add(text, "\\%c", pair[1]);
            return;
        }
    if (s[0] < 0x20)
        text_add(text, "\\u%04x", (unsigned)s[0]);
    else
        text_add_chars(text, (const char *)s, length);
}

/* Number of bytes that need no escape, which are added in one call: the bulk of any text. */
static size_t plain_length(const unsigned char *s) {
    size_t length = 0;
    while (s[length] >= 0x20 && s[length] < 0x80 && s[length] != '"' && s[length] != '\\')
        length++;
    return length;
}

void text_json_string(struct text *text, const char *string) {
    if (!string) {
        text_add(text, "null");
        return;
    }
    text_add(text, "\"");
    for (const unsigned char *s = (const unsigned char *)string; *s;) {
        size_t plain = plain_length(s), length = utf8_length(s);
        if (plain > 0)
            text_add_chars(text, (const char *)s, plain);
        else
            add_json_char(text, s, length);
        /* An invalid byte is skipped by itself, because a valid sequence may begin with the next one. */
        s += plain > 0 ? plain : length > 0 ? length : 1;
    }
    text_add(text, "\"");
}

void text_json_number(struct text *text, double value) {
    /* Sign, 17 digits, a decimal point of a few bytes, and an exponent of up to five characters. */
    char digits[40];
    if (!isfinite(value)) {
        text_add(text, "null");
        return;
    }
    /* 17 digits always suffice to read back the same double; most numbers need far fewer. */
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        /* Both sides use the same locale, so its decimal point does not affect the comparison. */
        if (strtod(digits, NULL) == value)
            break;
    }
    /* The span ends at the locale's decimal point, which may have several bytes. */
    size_t integer_length = strspn(digits, "+-0123456789e");
    text_add_chars(text, digits, integer_length);
    if (digits[integer_length] == '\0')
        return;
    /* Digits follow the decimal point: %g never prints it without any. */
    const char *fraction = digits + integer_length + strcspn(digits + integer_length, "0123456789");
    text_add(text, ".%s", fraction);
}
