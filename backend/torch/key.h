/* SPDX-License-Identifier: Apache-2.0 */
/* What a call's plan depends on, in words: its operator, numbers, the tensors' types, shapes, strides and devices. */
#ifndef WEFT_TORCH_KEY_H
#define WEFT_TORCH_KEY_H

#include "torch/python.h"

enum { KEY_WORDS_MAX = 1022 };

struct key {
    uint64_t hash;
    int count;
    bool is_on_gpu; /* whether some tensor is */
    uint64_t words[KEY_WORDS_MAX];
};

/* The types that make an object a tensor that is memory and nothing else, and that of data types; by torch. */
struct kinds {
    struct object *tensor, *parameter, *dtype;
};

extern struct kinds kinds;

static inline bool is_tensor(const struct object *value) {
    return value->type == kinds.tensor || value->type == kinds.parameter;
}

/* The tensor that an object of Python's holds, as torch's C functions take it: it stands behind the head. */
static inline void *tensor_of(struct object *value) { return value + 1; }

/* Adds an argument; false if it is of a kind that no key knows, or the key is full. */
bool key_add(struct key *key, struct object *value);

/* Adds a name. */
bool key_add_text(struct key *key, struct object *text);

bool key_add_word(struct key *key, uint64_t word);

/* To be called once all is added. */
void key_finish(struct key *key);

#endif
