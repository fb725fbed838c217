/* SPDX-License-Identifier: Apache-2.0 */
/* Constants of all Hopper attention kernels: panels are 64 columns of 16 bits, 128 bytes per row, with a swizzle of the
   same size. */
#ifndef WEFT_ENGINES_CUDA_ATTENTION_HOPPER_GEOMETRY_H
#define WEFT_ENGINES_CUDA_ATTENTION_HOPPER_GEOMETRY_H

#include "engines/cuda/core/geometry.h"

enum {
    PANEL_ROW = 128, /* bytes per row of a panel */
    FP8_TILE = 64,   /* keys and columns of an FP8 tile that is transposed as a unit: see fp8_transpose_sm90.cuh */
    FP8_TILE_BYTES = FP8_TILE * FP8_TILE,
};

#endif
