/* SPDX-License-Identifier: Apache-2.0 */
/* A growing writer and a validating reader of binary data. All reads go through `take`, all writes through
   byte_put_raw, so that bounds are checked in only two places. */
#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>

void *bytes_grow(void *data, size_t *capacity, size_t need) {
    if (need <= *capacity && data)
        return data;
    /* Doubling keeps the total cost of copying linear in the final length. */
    size_t doubled = *capacity > SIZE_MAX / 2 ? SIZE_MAX : *capacity * 2;
    size_t larger = need > doubled ? need : doubled;
    /* Avoids reallocations of 1, 2, 4 ... bytes. */
    if (larger < 64)
        larger = 64;
    /* If realloc fails the old memory is still valid, which this function guarantees, too. */
    void *grown = realloc(data, larger);
    if (grown)
        *capacity = larger;
    return grown;
}

void byte_writer_init(struct byte_writer *writer) { *writer = (struct byte_writer){0}; }

void byte_writer_free(struct byte_writer *writer) {
    free(writer->data);
    byte_writer_init(writer);
}

/* `data` must not be part of the writer's memory, which may move. */
void byte_put_raw(struct byte_writer *writer, const void *data, size_t bytes) {
    if (writer->failed || bytes == 0)
        return;
    uint8_t *grown = NULL;
    /* A sum that wraps around would appear to fit. */
    if (bytes <= SIZE_MAX - writer->length)
        grown = bytes_grow(writer->data, &writer->capacity, writer->length + bytes);
    if (!grown) {
        writer->failed = true;
        return;
    }
    writer->data = grown;
    memcpy(writer->data + writer->length, data, bytes);
    writer->length += bytes;
}

/* Writes the lowest 1, 4 or 8 bytes of `value`. */
static void put_little_endian(struct byte_writer *writer, uint64_t value, size_t bytes) {
    uint8_t encoded[8];
    for (size_t i = 0; i < bytes; i++)
        encoded[i] = (uint8_t)(value >> (8 * i));
    byte_put_raw(writer, encoded, bytes);
}

void byte_put_u8(struct byte_writer *writer, uint8_t value) { put_little_endian(writer, value, 1); }

void byte_put_u32(struct byte_writer *writer, uint32_t value) { put_little_endian(writer, value, 4); }

void byte_put_i64(struct byte_writer *writer, int64_t value) { put_little_endian(writer, (uint64_t)value, 8); }

/* The length always has 8 bytes, so that 32-bit and 64-bit hosts can exchange data. */
void byte_put_block(struct byte_writer *writer, const void *data, size_t bytes) {
    byte_put_i64(writer, (int64_t)bytes);
    byte_put_raw(writer, data, bytes);
}

void byte_reader_init(struct byte_reader *reader, const void *data, size_t bytes) {
    *reader = (struct byte_reader){.data = data, .length = bytes};
}

/* The next `bytes` bytes (a pointer into the data), or NULL after an error. Errors are sticky, even for 0 bytes. */
static const uint8_t *take(struct byte_reader *reader, size_t bytes) {
    /* Written as a difference: position never exceeds length, while position + bytes could wrap around. */
    if (reader->bad || bytes > reader->length - reader->position) {
        reader->bad = true;
        return NULL;
    }
    const uint8_t *taken = reader->data + reader->position;
    reader->position += bytes;
    return taken;
}

/* Reads byte by byte, independent of alignment and of the host's byte order. Returns 0 after an error. */
static uint64_t get_little_endian(struct byte_reader *reader, size_t bytes) {
    const uint8_t *encoded = take(reader, bytes);
    uint64_t value = 0;
    for (size_t i = 0; encoded && i < bytes; i++)
        value |= (uint64_t)encoded[i] << (8 * i);
    return value;
}

uint8_t byte_get_u8(struct byte_reader *reader) { return (uint8_t)get_little_endian(reader, 1); }

uint32_t byte_get_u32(struct byte_reader *reader) { return (uint32_t)get_little_endian(reader, 4); }

int64_t byte_get_i64(struct byte_reader *reader) { return (int64_t)get_little_endian(reader, 8); }

int64_t byte_get_count(struct byte_reader *reader, int64_t most) {
    /* `most` is limited by the remaining bytes, so that a corrupt count cannot cause a large allocation. */
    int64_t count = byte_get_i64(reader);
    if (count >= 0 && count <= most)
        return count;
    reader->bad = true;
    return 0;
}

void byte_get_raw(struct byte_reader *reader, void *dst, size_t bytes) {
    /* For 0 bytes, memset would require a valid pointer, which the caller need not have. */
    if (bytes == 0)
        return;
    const uint8_t *src = take(reader, bytes);
    if (src)
        memcpy(dst, src, bytes);
    else
        memset(dst, 0, bytes);
}

const uint8_t *byte_get_block(struct byte_reader *reader, size_t *bytes) {
    int64_t left = (int64_t)(reader->length - reader->position); /* upper bound of a length that can be valid */
    *bytes = (size_t)byte_get_count(reader, left);
    const uint8_t *block = take(reader, *bytes);
    if (!block)
        *bytes = 0;
    return block;
}
