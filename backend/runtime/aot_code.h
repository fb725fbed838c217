/* SPDX-License-Identifier: Apache-2.0 */
/* Ahead-of-time code: machine code from a saved plan, which is used instead of compiling. */
#ifndef WEFT_RUNTIME_AOT_CODE_H
#define WEFT_RUNTIME_AOT_CODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct aot_code {
    uint8_t identity[32]; /* identity of its program, see cache_identify */
    const void *image;    /* a cubin, or PTX with its terminating zero */
    size_t bytes;
    bool is_ptx;
};

struct aot_codes {
    int64_t count;
    const struct aot_code *items;
};

#endif
