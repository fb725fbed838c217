/* SPDX-License-Identifier: Apache-2.0 */
#include "torch/key.h"

#include <string.h>

struct kinds kinds;

/* Tag of a value's first word, so that values of different types never have the same encoding. */
enum { NONE = 1, BOOL, INT, FLOAT, TEXT, DTYPE, SEQUENCE, TENSOR };

static uint64_t head(uint64_t kind, uint64_t what) { return kind << 56 | what; }

bool key_add_word(struct key *key, uint64_t word) {
    if (key->count == KEY_WORDS_MAX)
        return false;
    key->words[key->count++] = word;
    return true;
}

static bool add_bytes(struct key *key, const void *bytes, size_t size) {
    int words = (int)((size + 7) / 8);
    if (size > sizeof key->words || key->count + words > KEY_WORDS_MAX)
        return false;
    if (words)
        key->words[key->count + words - 1] = 0; /* pad the last word with zeros */
    memcpy(key->words + key->count, bytes, size);
    key->count += words;
    return true;
}

static bool add_tensor(struct key *key, void *tensor) {
    int64_t dim, *sizes, *strides;
    int32_t layout, dtype, type, index;
    if (torch.get_layout(tensor, &layout) || layout) /* torch would print an error for tensors without strides */
        return false;
    if (torch.get_dim(tensor, &dim) || torch.get_dtype(tensor, &dtype) || torch.get_device_type(tensor, &type) ||
        torch.get_device_index(tensor, &index) || torch.get_sizes(tensor, &sizes) ||
        torch.get_strides(tensor, &strides))
        return false;
    key->is_on_gpu |= type != 0;
    uint64_t where = (uint64_t)(uint8_t)type << 16 | (uint16_t)index;
    return key_add_word(key, head(TENSOR, where << 16 | (uint64_t)(uint8_t)dtype << 8 | (uint8_t)dim)) &&
           add_bytes(key, sizes, (size_t)dim * 8) && add_bytes(key, strides, (size_t)dim * 8);
}

static bool add_float(struct key *key, double value) {
    return key_add_word(key, head(FLOAT, 0)) && add_bytes(key, &value, sizeof value);
}

/* Values that do not fit a C type have no key. */
static bool clear_error(void) {
    python.clear_error();
    return false;
}

static bool add_int(struct key *key, struct object *value) {
    long long number = python.to_int(value);
    if (number == -1 && python.error())
        return clear_error();
    return key_add_word(key, head(INT, 0)) && key_add_word(key, (uint64_t)number);
}

bool key_add_text(struct key *key, struct object *text) {
    intptr_t bytes;
    const char *chars = python.to_text(text, &bytes);
    if (!chars)
        return clear_error();
    return key_add_word(key, head(TEXT, (uint64_t)bytes)) && add_bytes(key, chars, (size_t)bytes);
}

static bool add_number(struct key *key, struct object *value) {
    if (value->type == python.int_)
        return add_int(key, value);
    if (value->type == python.bool_)
        return key_add_word(key, head(BOOL, value == python.true_));
    return value->type == python.float_ && add_float(key, python.to_float(value));
}

static bool add_numbers(struct key *key, struct object *values) {
    bool is_list = values->type == python.list;
    intptr_t count = is_list ? python.list_count(values) : python.tuple_count(values);
    bool fits = key_add_word(key, head(SEQUENCE, (uint64_t)count));
    for (intptr_t i = 0; fits && i < count; i++)
        fits = add_number(key, is_list ? python.get_of_list(values, i) : python.get_of_tuple(values, i));
    return fits;
}

bool key_add(struct key *key, struct object *value) {
    if (is_tensor(value))
        return add_tensor(key, tensor_of(value));
    if (value == python.none)
        return key_add_word(key, head(NONE, 0));
    if (value->type == python.list || value->type == python.tuple)
        return add_numbers(key, value);
    if (value->type == python.str)
        return key_add_text(key, value);
    if (value->type == kinds.dtype) /* data types are singletons */
        return key_add_word(key, head(DTYPE, 0)) && key_add_word(key, (uint64_t)(uintptr_t)value);
    return add_number(key, value);
}

void key_finish(struct key *key) {
    uint64_t hash = (uint64_t)key->count;
    for (int i = 0; i < key->count; i++) {
        hash = (hash ^ key->words[i]) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    key->hash = hash;
}
