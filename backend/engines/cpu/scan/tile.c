/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/cpu/scan/tile.h"

struct tile_lines tile_lines_at(const struct lines *lines, int tensor, weftDataType_t type, int64_t line,
                                int64_t lanes) {
    struct tile_lines t = {.type = type, .lanes = lanes, .step = lines->steps[tensor], .is_adjacent = true};
    for (int64_t l = 0; l < lanes; l++) {
        t.offsets[l] = lines_offset(lines, tensor, line + l);
        t.is_adjacent = t.is_adjacent && t.offsets[l] == t.offsets[0] + l;
    }
    return t;
}

/* A line of contiguous elements is converted as a whole; adjacent lines are converted step by step. */
#define LOAD(suffix, T)                                                                                                \
    void tile_load_##suffix(T *tile, const struct tile_lines *lines, const void *base, int64_t begin, int64_t count) { \
        T row[TILE_LANES];                                                                                             \
        for (int64_t l = 0; l < lines->lanes && lines->step == 1; l++)                                                 \
            dtype_to_##suffix(tile + l * TILE_STEPS, lines->type, base, lines->offsets[l] + begin, count);             \
        for (int64_t s = 0; s < count && lines->step != 1; s++) {                                                      \
            int64_t from = (begin + s) * lines->step;                                                                  \
            if (lines->is_adjacent)                                                                                    \
                dtype_to_##suffix(row, lines->type, base, lines->offsets[0] + from, lines->lanes);                     \
            for (int64_t l = 0; l < lines->lanes && !lines->is_adjacent; l++)                                          \
                dtype_to_##suffix(row + l, lines->type, base, lines->offsets[l] + from, 1);                            \
            for (int64_t l = 0; l < lines->lanes; l++)                                                                 \
                tile[l * TILE_STEPS + s] = row[l];                                                                     \
        }                                                                                                              \
    }
LOAD(f32, float)
LOAD(f64, double)

void tile_store_f64(const double *tile, const struct tile_lines *lines, void *base, int64_t begin, int64_t count) {
    double row[TILE_LANES];
    for (int64_t l = 0; l < lines->lanes && lines->step == 1; l++)
        dtype_from_f64(lines->type, base, lines->offsets[l] + begin, tile + l * TILE_STEPS, count);
    for (int64_t s = 0; s < count && lines->step != 1; s++) {
        int64_t to = (begin + s) * lines->step;
        for (int64_t l = 0; l < lines->lanes; l++)
            row[l] = tile[l * TILE_STEPS + s];
        if (lines->is_adjacent)
            dtype_from_f64(lines->type, base, lines->offsets[0] + to, row, lines->lanes);
        for (int64_t l = 0; l < lines->lanes && !lines->is_adjacent; l++)
            dtype_from_f64(lines->type, base, lines->offsets[l] + to, row + l, 1);
    }
}

void tile_load_i64(int64_t *tile, const struct tile_lines *lines, const void *base, int64_t begin, int64_t count) {
    for (int64_t l = 0; l < lines->lanes; l++)
        for (int64_t s = 0; s < count; s++)
            tile[l * TILE_STEPS + s] = dtype_load_i64(lines->type, base, lines->offsets[l] + (begin + s) * lines->step);
}

void tile_store_i64(const int64_t *tile, const struct tile_lines *lines, void *base, int64_t begin, int64_t count) {
    for (int64_t l = 0; l < lines->lanes; l++)
        for (int64_t s = 0; s < count; s++) {
            int64_t to = lines->offsets[l] + (begin + s) * lines->step;
            if (lines->type == WEFT_DATA_INT64)
                ((int64_t *)base)[to] = tile[l * TILE_STEPS + s];
            else
                dtype_store_i64(lines->type, base, to, tile[l * TILE_STEPS + s]);
        }
}
