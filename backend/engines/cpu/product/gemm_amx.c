/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of C are in tiles 0 to 3, of B in 4 and 5, of A in 6 and 7:

              4   5
          6   0   1
          7   2   3

   A panel of A stores its rows' next 64 bytes row after row; 16 of them form a tile. A panel of B stores its columns'
   next 4 bytes side by side; 16 of them form a row of a tile. */
#include "engines/cpu/product/gemm_amx.h"

#if HAS_AMX
#include <immintrin.h>

enum {
    ROWS = 16,
    ROW_BYTES = 64,
    TILE_BYTES = ROWS * ROW_BYTES,
    B_BYTES = AMX_BLOCK * 4 /* row pitch of a panel of B */
};

/* The hardware format of the configuration: all tiles have full size. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} config = {.palette = 1,
            .row_bytes = {ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES},
            .rows = {ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS}};

__attribute__((target("amx-tile"))) void amx_begin(void) { _tile_loadconfig(&config); }

__attribute__((target("amx-tile"))) void amx_end(void) { _tile_release(); }

/* C's two tiles for some rows; a macro, because the intrinsics require tile numbers that are constants. */
#define BEGIN(left, right, c)                                                                                          \
    if (first) {                                                                                                       \
        _tile_zero(left);                                                                                              \
        _tile_zero(right);                                                                                             \
    } else {                                                                                                           \
        _tile_loadd(left, c, row);                                                                                     \
        _tile_loadd(right, (c) + ROW_BYTES, row);                                                                      \
    }
#define STORE(left, right, c)                                                                                          \
    _tile_stored(left, c, row);                                                                                        \
    _tile_stored(right, (c) + ROW_BYTES, row);

#define AMX_KERNELS(suffix, extension, DOT)                                                                            \
    __attribute__((target("amx-tile," extension))) void amx_multiply_##suffix(                                         \
        int64_t groups, const void *a_panel, const void *b_panel, void *c_block, int64_t ld, bool first) {             \
        const char *a = a_panel, *b = b_panel;                                                                         \
        int64_t row = ld * 4;                                                                                          \
        char *c = c_block, *below = c + ROWS * row;                                                                    \
        BEGIN(0, 1, c)                                                                                                 \
        BEGIN(2, 3, below)                                                                                             \
        for (; groups > 0; groups -= AMX_GROUPS, a += 2 * TILE_BYTES, b += 2 * TILE_BYTES) {                           \
            _tile_loadd(4, b, B_BYTES);                                                                                \
            _tile_loadd(6, a, ROW_BYTES);                                                                              \
            _tile_loadd(5, b + ROW_BYTES, B_BYTES);                                                                    \
            DOT(0, 6, 4);                                                                                              \
            _tile_loadd(7, a + TILE_BYTES, ROW_BYTES);                                                                 \
            DOT(1, 6, 5);                                                                                              \
            DOT(2, 7, 4);                                                                                              \
            DOT(3, 7, 5);                                                                                              \
        }                                                                                                              \
        STORE(0, 1, c)                                                                                                 \
        STORE(2, 3, below)                                                                                             \
    }                                                                                                                  \
    __attribute__((target("amx-tile," extension))) void amx_multiply_few_##suffix(                                     \
        int64_t groups, const void *a_panel, const void *b_panel, void *c, int64_t ld, bool first) {                   \
        const char *a = a_panel, *b = b_panel;                                                                         \
        int64_t row = ld * 4;                                                                                          \
        BEGIN(0, 1, (char *)c)                                                                                         \
        for (; groups > 0; groups -= AMX_GROUPS, a += 2 * TILE_BYTES, b += 2 * TILE_BYTES) {                           \
            _tile_loadd(4, b, B_BYTES);                                                                                \
            _tile_loadd(6, a, ROW_BYTES);                                                                              \
            _tile_loadd(5, b + ROW_BYTES, B_BYTES);                                                                    \
            DOT(0, 6, 4);                                                                                              \
            DOT(1, 6, 5);                                                                                              \
        }                                                                                                              \
        STORE(0, 1, (char *)c)                                                                                         \
    }

AMX_KERNELS(bf16, "amx-bf16", _tile_dpbf16ps)
AMX_KERNELS(i8, "amx-int8", _tile_dpbssd)
#endif
