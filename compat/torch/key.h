/* SPDX-License-Identifier: Apache-2.0 */
/* The key of a call's plan: operator, numbers, and the tensors' types, shapes, strides and devices. */
#ifndef WEFT_TORCH_KEY_H
#define WEFT_TORCH_KEY_H

#include "torch/python.h"

enum { KEY_WORDS_MAX = 1022 };

struct key {
    uint64_t hash;
    int count;
    bool is_on_gpu; /* true if any tensor is */
    uint64_t words[KEY_WORDS_MAX];
};

/* Types of torch: plain tensors (memory only), and data types. */
struct kinds {
    struct object *tensor, *parameter, *dtype;
};

extern struct kinds kinds;

static inline bool is_tensor(const struct object *value) {
    return value->type == kinds.tensor || value->type == kinds.parameter;
}

/* The tensor in a Python object as torch's C functions expect it: it is stored after the object header. */
static inline void *tensor_of(struct object *value) { return value + 1; }

/* Adds an argument; false if its type is not supported or the key is full. */
bool key_add(struct key *key, struct object *value);

/* Adds a name. */
bool key_add_text(struct key *key, struct object *text);

bool key_add_word(struct key *key, uint64_t word);

/* Must be called after everything has been added. */
void key_finish(struct key *key);

#endif
