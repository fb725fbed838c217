/* SPDX-License-Identifier: Apache-2.0 */
/* Byte blobs: a writer that grows and a reader that trusts nothing. Numbers are little-endian
   whatever the machine. Both carry one sticky flag, so that a caller does all its puts or gets
   and asks once at the end. They must not know what the bytes mean. */
#ifndef WEFT_BASE_BYTES_H
#define WEFT_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Room for at least `need` bytes, contents kept: reallocates `data` (NULL at first), at least
   doubling `*capacity`. On out-of-memory returns NULL and leaves both as they were. */
void *bytes_grow(void *data, size_t *capacity, size_t need);

struct byte_writer {
    uint8_t *data;
    size_t length, capacity;
    bool failed; /* out of memory; later puts do nothing */
};

void byte_writer_init(struct byte_writer *writer);
void byte_writer_free(struct byte_writer *writer);

void byte_put_u8(struct byte_writer *writer, uint8_t value);
void byte_put_u32(struct byte_writer *writer, uint32_t value);
void byte_put_i64(struct byte_writer *writer, int64_t value);
void byte_put_raw(struct byte_writer *writer, const void *data, size_t bytes);

/* The length as int64, then the bytes. */
void byte_put_block(struct byte_writer *writer, const void *data, size_t bytes);

struct byte_reader {
    const uint8_t *data;
    size_t length, position;
    bool bad; /* asked for more than there is, or a count out of range; later gets give zeros */
};

void byte_reader_init(struct byte_reader *reader, const void *data, size_t bytes);

uint8_t byte_get_u8(struct byte_reader *reader);
uint32_t byte_get_u32(struct byte_reader *reader);
int64_t byte_get_i64(struct byte_reader *reader);

/* An int64 in 0..most; anything else is bad and gives 0. For every length and count of a blob. */
int64_t byte_get_count(struct byte_reader *reader, int64_t most);

/* Fills all of dst, with zeros when bad. */
void byte_get_raw(struct byte_reader *reader, void *dst, size_t bytes);

/* What byte_put_block wrote, still inside the blob, aligned to nothing; `*bytes` is its length.
   When bad: NULL and 0. */
const uint8_t *byte_get_block(struct byte_reader *reader, size_t *bytes);

#endif
