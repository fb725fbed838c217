/* SPDX-License-Identifier: Apache-2.0 */
/* The growing string and its JSON spellings. Every addition goes through `reserve` or prints into room that is there:
   the sticky flag is set here and asked by who owns the text. It must not know what is JSON beyond a string and a
   number. */
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

/* Makes room for `added` more characters and the zero; false, for good, when there is none. */
static bool reserve(struct text *text, size_t added) {
    char *grown = NULL;
    /* A length that wraps would look like room enough. */
    if (!text->failed && added < SIZE_MAX - text->length)
        grown = bytes_grow(text->chars, &text->capacity, text->length + added + 1);
    if (!grown) {
        text->failed = true;
        return false;
    }
    text->chars = grown;
    return true;
}

/* `chars` must not point into the text: growing may move it. */
void text_add_chars(struct text *text, const char *chars, size_t length) {
    if (!reserve(text, length))
        return;
    if (length > 0)
        memcpy(text->chars + text->length, chars, length);
    text->length += length;
    text->chars[text->length] = '\0';
}

/* Prints into the room that there is, and once more where it was too little. */
void text_add(struct text *text, const char *format, ...) {
    size_t room = text->failed ? 0 : text->capacity - text->length;
    char *end = room ? text->chars + text->length : NULL;
    va_list args, again;
    /* A va_list is read once: one for the room that there is, one for the second try. */
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(end, room, format, args);
    bool fits = length >= 0 && (size_t)length < room;
    /* vsnprintf has cut the text off in the middle: what was there before ends again where it did. */
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

/* The bytes of the valid UTF-8 sequence that starts here, 0 when there is none. Overlong forms,
   surrogates and code points past U+10FFFF are not valid; the zero ends every sequence. */
static size_t utf8_length(const unsigned char *s) {
    if (s[0] < 0x80)
        return 1;
    /* The leading byte tells the length; each byte behind it is 10xxxxxx. The zero of the string is none, so no
       sequence reads beyond it. */
    size_t length = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    /* 0xc0 and 0xc1 would begin overlong forms, 0xf5 and above code points past U+10FFFF. */
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

/* One character as JSON wants it within quotes: those with a letter of their own, other control characters as \u and
   four digits, bytes that are no UTF-8 (length 0) as U+FFFD, all others as they are. */
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

/* Bytes from here on that stand for themselves: most of any text, added by one call. */
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
        /* A byte of no valid sequence is skipped alone: a valid one may begin right behind it. */
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
    /* 17 digits always read back as the same double; most numbers need far fewer. */
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        /* Both sides use the same locale, so that its decimal point does not disturb the comparison. */
        if (strtod(digits, NULL) == value)
            break;
    }
    /* What stops the span is the locale's decimal point, of one byte or several. */
    size_t whole = strspn(digits, "+-0123456789e");
    text_add_chars(text, digits, whole);
    if (digits[whole] == '\0')
        return;
    /* Digits follow the point at once: %g prints none without them. */
    const char *fraction = digits + whole + strcspn(digits + whole, "0123456789");
    text_add(text, ".%s", fraction);
}
