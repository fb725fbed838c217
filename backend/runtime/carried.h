/* SPDX-License-Identifier: Apache-2.0 */
/* Machine code that was not compiled here: what a saved plan carries. */
#ifndef WEFT_RUNTIME_CARRIED_H
#define WEFT_RUNTIME_CARRIED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct carried_code {
    uint8_t identity[32]; /* of its program, see cache_identify */
    const void *image;    /* a cubin, or PTX with its zero */
    size_t bytes;
    bool is_ptx;
};

struct carried_codes {
    int64_t count;
    const struct carried_code *items;
};

#endif
