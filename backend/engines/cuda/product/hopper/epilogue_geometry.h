/* SPDX-License-Identifier: Apache-2.0 */
/* Epilogue tiles of the Hopper products: 16 rows of a warp's results. */
#ifndef WEFT_ENGINES_CUDA_PRODUCT_HOPPER_EPILOGUE_GEOMETRY_H
#define WEFT_ENGINES_CUDA_PRODUCT_HOPPER_EPILOGUE_GEOMETRY_H

#include "engines/cuda/core/geometry.h"

enum { EPILOGUE_TILE_ROWS = 16 };

/* A row is 128 bytes, the span of the swizzle: 64 elements of 16 bits or 32 of 32 bits; half of it for tiles that 64
   does not divide, or for elements of 8 bits. */
GEOMETRY int epilogue_tile_columns(int result_bytes, int block_n) {
    return result_bytes == 4 || block_n % 64 != 0 ? 32 : 64;
}

GEOMETRY unsigned epilogue_tile_bytes(int result_bytes, int block_n) {
    return EPILOGUE_TILE_ROWS * epilogue_tile_columns(result_bytes, block_n) * result_bytes;
}

#endif
