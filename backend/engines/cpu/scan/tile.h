/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of some lines between memory and a tile. */
#ifndef WEFT_ENGINES_CPU_SCAN_TILE_H
#define WEFT_ENGINES_CPU_SCAN_TILE_H

#include "base/dtype.h"
#include "engines/lines.h"

enum { TILE_LANES = 16, TILE_STEPS = 256 };

/* Some adjacent lines of a tensor. */
struct tile_lines {
    weftDataType_t type;
    int64_t lanes, step;         /* number of lines; stride along the axis */
    int64_t offsets[TILE_LANES]; /* first element of each line */
    bool is_adjacent;            /* the lines are adjacent in memory */
};

struct tile_lines tile_lines_at(const struct lines *lines, int tensor, weftDataType_t type, int64_t line,
                                int64_t lanes);

/* Tiles are [lane][TILE_STEPS]; steps [begin, begin + count) are loaded or stored. */
void tile_load_f32(float *tile, const struct tile_lines *lines, const void *base, int64_t begin, int64_t count);
void tile_load_f64(double *tile, const struct tile_lines *lines, const void *base, int64_t begin, int64_t count);
void tile_load_i64(int64_t *tile, const struct tile_lines *lines, const void *base, int64_t begin, int64_t count);
void tile_store_f64(const double *tile, const struct tile_lines *lines, void *base, int64_t begin, int64_t count);
void tile_store_i64(const int64_t *tile, const struct tile_lines *lines, void *base, int64_t begin, int64_t count);

#endif
