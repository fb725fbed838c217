/* SPDX-License-Identifier: Apache-2.0 */
/* Binary data: a growing writer, and a reader that validates everything. Numbers are little-endian on every machine.
   Both have a sticky error flag, so that callers check for errors once at the end. They do not interpret the data. */
#ifndef WEFT_BASE_BYTES_H
#define WEFT_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reallocates `data` (initially NULL) to at least `need` bytes, and keeps the contents; `*capacity` at least doubles.
   Returns NULL if out of memory, and leaves both unchanged. */
void *bytes_grow(void *data, size_t *capacity, size_t need);

struct byte_writer {
    uint8_t *data;
    size_t length, capacity;
    bool failed; /* out of memory; later puts have no effect */
};

void byte_writer_init(struct byte_writer *writer);
void byte_writer_free(struct byte_writer *writer);

void byte_put_u8(struct byte_writer *writer, uint8_t value);
void byte_put_u32(struct byte_writer *writer, uint32_t value);
void byte_put_i64(struct byte_writer *writer, int64_t value);
void byte_put_raw(struct byte_writer *writer, const void *data, size_t bytes);

/* Writes the length as int64, then the bytes. */
void byte_put_block(struct byte_writer *writer, const void *data, size_t bytes);

struct byte_reader {
    const uint8_t *data;
    size_t length, position;
    bool bad; /* out of bounds, or a count out of range; later gets return zeros */
};

void byte_reader_init(struct byte_reader *reader, const void *data, size_t bytes);

uint8_t byte_get_u8(struct byte_reader *reader);
uint32_t byte_get_u32(struct byte_reader *reader);
int64_t byte_get_i64(struct byte_reader *reader);

/* An int64 in 0..most; any other value is an error and returns 0. For all lengths and counts in the data. */
int64_t byte_get_count(struct byte_reader *reader, int64_t most);

/* Fills all of dst, with zeros after an error. */
void byte_get_raw(struct byte_reader *reader, void *dst, size_t bytes);

/* Reads data that byte_put_block wrote, and returns an unaligned pointer into it; `*bytes` receives the length. After
   an error: NULL and 0. */
const uint8_t *byte_get_block(struct byte_reader *reader, size_t *bytes);

#endif
